"""Markup that cannot be broken into: whatever is not `Markup` already is text, and is escaped."""

import html
import re
from collections.abc import Iterable

# What no page may hold, and no encoder writes: control characters and halves of surrogate pairs.
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = {"meta", "br", "col"}


class Markup(str):
    """Text that is HTML, and stays as it is."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Any value as text of a page."""
    return value if isinstance(value, Markup) else Markup(html.escape(_UNSHOWN.sub("�", str(value)), quote=True))


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Parts one after another."""
    return Markup(escaped(between).join(escaped(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element.

    Args:
        name: Such as ``td``.
        *children: Markup, or text that is escaped; ``None`` is nothing.
        **attributes: ``class_`` is ``class``, ``aria_label`` is ``aria-label``; ``None`` and ``False`` are left out.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(_short(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{joined(children)}</{name}>")


def _short(value: object) -> object:
    """Coordinates to a tenth: nobody sees more, and a page with thousands of them stays small."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def scrolling(label: str, *children: object) -> Markup:
    """What may be wider than a phone, in a region of its own that a keyboard can reach and scroll."""
    return tag("div", *children, class_="wide", role="region", tabindex="0", aria_label=label)


def table(
    label: str, head: object, rows: Iterable[Markup], *, foot: object = None, class_: str | None = None
) -> Markup:
    """A table in a region that scrolls."""
    parts = [tag("caption", label, class_="unseen"), tag("thead", head), tag("tbody", *rows)]
    return scrolling(label, tag("table", *parts, tag("tfoot", foot) if foot else None, class_=class_))


def header_row(*names: object) -> Markup:
    """The heads of columns."""
    return tag("tr", *(tag("th", name, scope="col") for name in names))


def row(name: object, *fields: object) -> Markup:
    """A row with its head; cells are text unless they are elements ``td`` already."""
    shown = (field if isinstance(field, Markup) and field.startswith("<td") else tag("td", field) for field in fields)
    return tag("tr", tag("th", name, scope="row"), *shown)


def figure(*children: object, caption: object, class_: str | None = None) -> Markup:
    """A figure with what it shows and how it came about."""
    return tag("figure", tag("figcaption", caption), *children, class_=class_)


def section(name: str, title: str, *children: object) -> Markup:
    """A section that the table of contents leads to."""
    return tag("section", tag("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title")


def details(summary: object, *children: object) -> Markup:
    """What is there for whoever asks; open on paper."""
    return tag("details", tag("summary", summary), *children)


def command(*lines: str) -> Markup:
    """Commands to type."""
    return tag(
        "pre",
        tag("code", "\n".join(lines)),
        class_="command",
        tabindex="0",
        role="region",
        aria_label="Commands to type",
    )


def made_by(*lines: str) -> Markup:
    """The commands that a figure can be had from."""
    return joined(["From: ", joined((tag("code", line) for line in lines), ", ")])


def heat_class(columns: int) -> str:
    """Of a table of colours: where there are many columns, their heads stand upright."""
    return "heat many" if columns > 12 else "heat"


def note(*children: object) -> Markup:
    """A remark."""
    return tag("p", *children, class_="note")
