"""Figures as files, and as SVG that can stand in a page: Matplotlib's settings, and what is done to its SVG."""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from xml.etree import ElementTree as ET

from polyloom.errors import PolyloomError
from polyloom.figures.palette import INK, LINE, SOFT

FORMATS = (".png", ".svg", ".pdf")
SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_TOOLTIP = "tooltip:"
# Control characters and halves of surrogate pairs: neither HTML nor XML may contain them.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SETTINGS = {
    "font.size": 9, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": SOFT, "axes.linewidth": 0.8,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": LINE,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8,
    "text.parse_math": False,  # a name may contain $
    "svg.fonttype": "none",  # text stays text instead of becoming outlines
    "svg.hashsalt": "polyloom",  # ids are random without it
    "path.simplify": True,
}  # fmt: skip
P = ParamSpec("P")
T = TypeVar("T")


def require_matplotlib(option: str = "figures") -> None:
    """Raise an error that says what to install if Matplotlib is missing.

    Args:
        option: What needs it, for the message.
    """
    if find_spec("matplotlib") is None:
        raise PolyloomError(f"{option}: the package matplotlib is not installed. pip install 'polyloom[plots]'")


@contextmanager
def _settings() -> Iterator[None]:
    """Apply the project's settings and leave those of the caller's own figures alone."""
    require_matplotlib()
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # SVG and PDF viewers have other fonts
        yield


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Make a function draw with the project's settings."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with _settings():
            return draw(*args, **kwargs)

    return wrapper


def new_figure(width: float, height: float) -> Any:
    """Create a figure of a size in inches, without pyplot and its global state."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    return Figure(figsize=(width, height), layout="constrained")


def printable(text: object) -> str:
    """Replace characters that no page may contain."""
    return _FORBIDDEN.sub("\ufffd", str(text))


def tooltip(text: str) -> str:
    """Return a ``gid`` for an artist. In SVG it becomes a title, which browsers show on hover."""
    return _TOOLTIP + printable(text)


def save(figure: Any, path: Path, *, label: str) -> None:
    """Write a figure to a file; the suffix is the format.

    Args:
        figure: A Matplotlib figure.
        path: Ends in one of `FORMATS`.
        label: What the figure shows, for the title of an SVG file.
    """
    if path.suffix == ".svg":
        path.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{to_svg(figure, label=label, xmlns=SVG)}\n', "utf-8")
        return
    with _settings():
        # A date, or the version of Matplotlib, would make equal figures differ in their bytes.
        dates = {".pdf": "CreationDate", ".png": "Software"}
        figure.savefig(path, dpi=150, metadata={dates[path.suffix]: None} if path.suffix in dates else None)


def to_svg(figure: Any, *, label: str, **attributes: str) -> str:
    """Write a figure as SVG that can stand in a page with a strict content security policy.

    Text stays text. Styles become attributes, because the policy forbids inline styles. Shapes that Matplotlib defines
    once and refers to are written out where they are used, and nothing is clipped, so no id is left that could collide
    with one of another figure. The same figure always gives the same SVG.

    Args:
        figure: A Matplotlib figure.
        label: What the figure shows, for screen readers.
        **attributes: Further attributes of the ``svg`` element.
    """
    buffer = io.StringIO()
    with _settings():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())  # noqa: S314 - Matplotlib's own output
    shapes = {element.get("id", ""): element for element in root.iter() if _name(element) == "path"}
    # Matplotlib's unit is the point, 1/72 inch; the pixel of CSS is 1/96 inch.
    _, _, width, height = root.get("viewBox", "").split()
    svg = new_svg((float(width) * 4 / 3, float(height) * 4 / 3), label=label, **attributes)
    svg.set("viewBox", f"0 0 {width} {height}")
    svg.set("stroke-linejoin", "round")
    for child in root:
        _copy(child, svg, shapes)
    return ET.tostring(svg, encoding="unicode")


def new_svg(size: tuple[float, float], *, label: str, **attributes: str) -> ET.Element:
    """Create an ``svg`` element of a size in pixels with what it shows in words."""
    width, height = (f"{side:.0f}" for side in size)
    # `class` is a keyword of Python, so it is passed as `class_`.
    named = {name.rstrip("_"): value for name, value in attributes.items()}
    svg = ET.Element(
        "svg", {**named, "viewBox": f"0 0 {width} {height}", "width": width, "height": height, "role": "img"}
    )
    ET.SubElement(svg, "title").text = printable(label)
    return svg


def _copy(element: ET.Element, parent: ET.Element, shapes: dict[str, ET.Element]) -> None:
    """Copy an element of Matplotlib's SVG, and all that it contains, into another one.

    Args:
        element: The element. Only attributes that are named here are copied: no ids, no references, no clipping.
        parent: Where the copy goes.
        shapes: Paths by their ids, which ``use`` elements refer to.
    """
    name = _name(element)
    if name in ("metadata", "defs"):  # the shapes of `defs` are written out where they are used
        return
    attributes = _attributes(element)
    if name == "use":
        # A marker or a tick: it becomes a copy of its shape, moved to its place.
        name, shape = "path", shapes[element.get(_HREF, "").removeprefix("#")]
        at = f"translate({_short(element.get('x', '0'))} {_short(element.get('y', '0'))})"
        attributes |= _attributes(shape) | {"d": _short(shape.get("d", "")), "transform": at}
    elif name == "path":
        attributes["d"] = _short(element.get("d", ""))
    elif name == "text":
        attributes |= {key: _short(element.get(key, "0")) for key in ("x", "y")}
        # Matplotlib writes a rotation by zero degrees to every text that is not rotated.
        rotation = element.get("transform", "")
        if rotation and not rotation.startswith("rotate(-0 "):
            attributes["transform"] = _short(rotation)

    title = element.get("id", "").partition(_TOOLTIP)[2]
    if name == "g" and not attributes and not title:  # such a group carries an id alone: its children replace it
        copied = parent
    else:
        copied = ET.SubElement(parent, name, attributes)
        copied.text = (element.text or "").strip() or None
    if title:
        ET.SubElement(copied, "title").text = title
    for child in element:
        _copy(child, copied, shapes)


def _attributes(element: ET.Element) -> dict[str, str]:
    """Turn the declarations of ``style`` into attributes; the page chooses the font's family."""
    declarations = (part.partition(":") for part in element.get("style", "").split(";") if part.strip())
    style = {name.strip(): value.strip() for name, _, value in declarations}
    style.pop("font-family", None)
    if style.get("stroke-dashoffset") == "0":
        del style["stroke-dashoffset"]
    return style


def _short(numbers: str) -> str:
    """Round coordinates to a tenth of a point and drop the spaces that paths do not need."""
    rounded = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), numbers)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", rounded.strip()) if rounded[:1] == "M" else rounded


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
