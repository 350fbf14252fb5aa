"""Templates of the report: everything that is not markup already is escaped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from polyloom.figures.canvas import printable, to_svg


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
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
