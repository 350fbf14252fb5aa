"""Draw tables and figures from the raw results into docs.

Tables replace the text between ``<!-- name -->`` and ``<!-- end -->`` in the result pages; figures go to docs/figures.
"""

import re
from collections.abc import Callable
from pathlib import Path

from experiments.comparison import Comparison, Tables, UnfairError
from experiments.tables import add_languages, confirmations, transfer, translation
from polyloom.errors import PolyloomError, suggest

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[str, dict[str, Callable[[], Tables]]] = {
    "results.md": transfer.TABLES,
    "translation-results.md": translation.TABLES,
    "adding-languages-results.md": add_languages.TABLES,
    "confirmations.md": confirmations.TABLES,
}
BANNERS = {
    "results.md": "the language-modelling head was frozen",
    "translation-results.md": "adapters began several times as strong as the layers that they sit on",
    "adding-languages-results.md": "the language-modelling head was frozen and translation adapters began too strong",
}
BANNER = """> **Superseded.** This page was measured while {cause}, which decides several of its results
> ([confirmations](confirmations.md)). It will be measured again. Do not choose a method by it.
"""


def draw_table(name: str) -> str:
    """Draw one table."""
    tables = {name: table for page in PAGES.values() for name, table in page.items()}
    if name not in tables:
        raise PolyloomError(f"table {name!r}: there is none. {suggest(name, tables)}")
    return _table(tables[name]())


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
    """Return the text of a page with new tables and, if it is superseded, a new banner."""
    text = (DOCS / page).read_text(encoding="utf-8")
    drawn = {name: _table(table()) for name, table in PAGES[page].items()}
    if page in BANNERS:
        drawn["superseded"] = BANNER.format(cause=BANNERS[page])
    for name, new in drawn.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, t=new: f"{m[1]}\n{t}\n{m[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"{page}: {count} places for the table {name}"
    return text


def _table(comparisons: Tables) -> str:
    """Draw the comparisons of a table below their titles."""
    return "\n".join((f"**{title}**\n\n" if title else "") + _draw(build) for title, build in comparisons.items())


def _draw(build: Callable[[], Comparison]) -> str:
    """Draw a comparison, or say why it is left out: a result is missing, or the rows cannot be compared."""
    try:
        return build().markdown()
    except UnfairError as unfair:
        return f"*Left out, since the rows cannot be compared: {unfair}*\n"
    except KeyError as missing:
        return f"*Not measured yet: {missing.args[0]}.*\n"
