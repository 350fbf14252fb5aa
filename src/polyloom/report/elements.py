"""Parts of the page: sections rendered by templates, tables as data, figures as inline SVG, numbers as text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from polyloom.figures.canvas import printable, to_svg
from polyloom.figures.palette import SCALE
from polyloom.metrics.score import METRICS

MANY = 12  # with more columns than this, column heads are rotated


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        name: Its id, and the name of its template.
        title: Its heading.
        data: What its template shows.
    """

    name: str
    title: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def html(self) -> Markup:
        """Render the section."""
        return render("section.html", section=self, **self.data)


def render(template: str, **data: Any) -> Markup:
    """Render a template of this package."""
    return Markup(_environment().get_template(template).render(**data))  # noqa: S704 - escaped by Jinja


def inline(figure: Any, *, label: str, classes: str = "figure") -> Markup:
    """Turn a figure into inline SVG."""
    return Markup(to_svg(figure, label=label, class_=classes))  # noqa: S704 - escaped by ElementTree


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("polyloom.report"),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name in a template is an error, not an empty text
        # Names and texts come from runs and corpora: what is not markup of ours loses characters that HTML forbids.
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )


class TableCell(NamedTuple):
    """A cell with more than text.

    Attributes:
        text: Its text.
        classes: Classes of the style sheet.
        title: Shown on hover.
        note: A second line, in small print.
    """

    text: str
    classes: str = ""
    title: str = ""
    note: str = ""


Row = Sequence[str | TableCell]  # the first entry is the row's head


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        label: What it shows; unique in the report.
        columns: Column heads.
        rows: Its rows.
        foot: Rows below, such as means.
        classes: Classes of the style sheet.
        groups: Heads over several columns each, with their number of columns; the first column stands beside them.
    """

    label: str
    columns: Sequence[str]
    rows: Sequence[Row]
    foot: Sequence[Row] = ()
    classes: str = "numbers"
    groups: Sequence[tuple[str, int]] = ()


class Shading:
    """Colours for the values of one metric, from the worst to the best.

    Args:
        values: All values that are compared by colour.
        metric: Name of the metric; of perplexities the lowest is the best, and they are compared by their logarithms.
    """

    def __init__(self, values: Iterable[float], metric: str) -> None:
        known = METRICS.get(metric)
        self.rising = known.higher_is_better if known else True
        finite = [value for value in values if math.isfinite(value)]
        self.low, self.high = (min(finite), max(finite)) if finite else (0.0, 1.0)

    def classes(self, value: float) -> str:
        """Return the class of a value; none if it is not finite."""
        if not math.isfinite(value):
            return ""
        low, high = self.low, self.high
        # Perplexities span orders of magnitude: on a linear scale one poor language would take all colours.
        if not self.rising and low > 0:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 1.0
        return shade(share if self.rising else 1 - share)


def shade(share: float) -> str:
    """Return the class of the colour that lies so far (0 to 1) from the darkest to the brightest."""
    return f"s{min(len(SCALE) - 1, max(0, int(share * len(SCALE))))}"


def heat_classes(columns: int) -> str:
    """Return the classes of a coloured table."""
    return "heat many" if columns > MANY else "heat"


def signed(value: float) -> str:
    """Write a difference."""
    return f"{value:+.1f}".replace("-", "−")


def interval(low: float, high: float) -> str:
    """Write an interval of a difference."""
    return f"{signed(low)} to {signed(high)}"


def p_value(p: float) -> str:
    """Write a p-value after "p": never as zero."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def percent(share: float) -> str:
    """Write a share."""
    return f"{100 * share:.1f} %"


def listed(names: Sequence[object], most: int = 24) -> str:
    """Write names with commas; of many only the first."""
    rest = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {rest} more" if rest > 0 else "")


def joined_with_and(names: Sequence[str]) -> str:
    """Write names as in a sentence: a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
