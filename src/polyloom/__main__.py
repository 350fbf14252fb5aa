"""``python -m polyloom``."""

from polyloom.cli import main

main()
