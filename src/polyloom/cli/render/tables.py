"""Format tables as text: aligned columns, Markdown or tab-separated values."""

from collections.abc import Sequence
from typing import Literal

Format = Literal["table", "markdown", "json", "tsv"]


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with aligned columns, the first one to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(fields: Sequence[str]) -> str:
        first, *others = zip(fields, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(field.rjust(width) for field, width in others)]).rstrip()

    return "\n".join([line(columns), "─" * (sum(widths) + 2 * len(widths) - 2), *map(line, rows)]) + "\n"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table as Markdown."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "".join("| " + " | ".join(field.replace("|", "\\|") for field in fields) + " |\n" for fields in lines)


def tabs(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table as tab-separated values."""
    return "".join("\t".join(fields) + "\n" for fields in (columns, *rows))
