"""The version of the code that runs: read once, as what lies on disk can change or become unreadable while it runs."""

from importlib.metadata import version

__version__ = version("polyloom")
