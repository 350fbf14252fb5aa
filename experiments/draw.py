"""Draw tables and figures from the raw results into docs.

Tables replace the text between ``<!-- name -->`` and ``<!-- end -->`` in the result pages; figures go to docs/figures.
"""

import re
from collections.abc import Callable
from pathlib import Path

from experiments.tables import add_languages, transfer, translation
from polyloom.errors import PolyloomError, suggest

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "results.md": transfer.TABLES,
    "translation-results.md": translation.TABLES,
    "adding-languages-results.md": add_languages.TABLES,
}


def draw_table(name: str) -> str:
    """Draw one table."""
    tables = {name: table for page in PAGES.values() for name, table in page.items()}
    if name not in tables:
        raise PolyloomError(f"table {name!r}: there is none. {suggest(name, tables)}")
    return tables[name]()


def draw_pages() -> None:
    """Write all tables and figures."""
    from experiments.figures import draw_figures  # noqa: PLC0415 - matplotlib is not needed to check tables

    for page in PAGES:
        (DOCS / page).write_text(_fill(page), encoding="utf-8")
    draw_figures(DOCS / "figures")


def check_pages() -> None:
    """Check that all tables are up to date.

    Raises:
        PolyloomError: A table differs from the raw results.
    """
    for page in PAGES:
        if _fill(page) != (DOCS / page).read_text(encoding="utf-8"):
            raise PolyloomError(f"{DOCS / page}: tables differ from the raw results. Run python -m experiments draw")


def _fill(page: str) -> str:
    """Return the text of a page with new tables."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, table in PAGES[page].items():
        pattern, drawn = rf"(<!-- {name} -->\n).*?(<!-- end -->)", _draw_or_explain(table)
        text, count = re.subn(pattern, lambda m, t=drawn: f"{m[1]}\n{t}\n{m[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"{page}: {count} places for the table {name}"
    return text


def _draw_or_explain(table: Callable[[], str]) -> str:
    """Draw a table, or name the result that it lacks."""
    try:
        return table()
    except KeyError as missing:
        return f"*Not run yet: {missing.args[0]}.*\n"
