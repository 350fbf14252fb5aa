"""Draw tables and figures from the raw results into docs.

Tables replace the text between ``<!-- name -->`` and ``<!-- end -->`` in docs/results.md; figures go to docs/figures.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments import pages
from experiments.comparison import UnfairError
from experiments.read import MissingError
from polyloom.errors import PolyloomError, suggest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "results.md"
TABLES: Mapping[str, Callable[[], str]] = pages.TABLES


def draw_table(name: str) -> str:
    """Draw one table, or say why it is left out: a result is missing, or the rows cannot be compared."""
    if name not in TABLES:
        raise PolyloomError(f"table {name!r}: there is none. {suggest(name, TABLES)}")
    try:
        return TABLES[name]()
    except UnfairError as unfair:
        return f"*Left out, since the rows cannot be compared: {unfair}*\n"
    except MissingError as missing:
        return f"*Not measured yet: {missing.args[0]}.*\n"


def draw_page() -> None:
    """Write all tables and figures."""
    from experiments.figures import draw_figures  # noqa: PLC0415 - matplotlib is not needed to check tables

    PAGE.write_text(_fill(), encoding="utf-8")
    draw_figures(DOCS / "figures")


def check_page() -> None:
    """Check that all tables are up to date.

    Raises:
        PolyloomError: A table differs from the raw results.
    """
    if _fill() != PAGE.read_text(encoding="utf-8"):
        raise PolyloomError(f"{PAGE}: tables differ from the raw results. Run python -m experiments draw")


def _fill() -> str:
    """Return the text of the page with new tables."""
    text = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        new = draw_table(name)
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, t=new: f"{m[1]}\n{t}\n{m[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"{PAGE}: {count} places for the table {name}"
    return text
