"""Languages as they lie to one another: on a plane, and as a tree of clusters."""

from collections.abc import Iterator, Mapping, Sequence

from polyloom.report.html import Markup, tag
from polyloom.report.plots import STYLES, Point, svg

_PATHS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4H4V4H-4Z", "M0-5L5 4H-5Z", "M0-6L5 0L0 6L-5 0Z", "M-5-4H5L0 5Z",
    "M-1-5H1V-1H5V1H1V5H-1V1H-5V-1H-1Z",
)  # fmt: skip
_OTHER = "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0"
_WIDTH, _HEIGHT, _EDGE = 640.0, 440.0, 30.0
_LEAF = 17  # pixels between languages of a dendrogram


def styles_of(families: Mapping[str, str | None]) -> dict[str, int]:
    """A style for each of the largest families; what is left has none."""
    names = [name for name in families.values() if name]
    ordered = sorted(set(names), key=lambda name: (-names.count(name), name))
    return {name: style for style, name in enumerate(ordered[:STYLES])}


def marker(style: int | None, at: Point, *, title: str | None = None) -> Markup:
    """The sign of a family."""
    shape, name = (_OTHER, "other") if style is None else (_PATHS[style], f"c{style}")
    where = f"translate({at[0]:.1f} {at[1]:.1f})"
    return tag("path", tag("title", title) if title else None, d=shape, transform=where, class_=f"mark {name}")


def language_map(places: Mapping[str, Point], families: Mapping[str, str | None]) -> Markup:
    """Points with names beside them; a name that has no room is left out, its point tells it when pointed at."""
    styles = styles_of(families)
    at = _spread(places)
    drawn, taken = [], [(x - 5, y - 5, x + 5, y + 5) for x, y in at.values()]
    for language, (x, y) in at.items():
        family = families.get(language)
        title = f"{language}: {family}" if family else language
        drawn.append(marker(styles.get(family or ""), (x, y), title=title))
        for left, top, box in _label_places(language, (x, y)):
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                drawn.append(tag("text", language, x=left, y=top))
                break
    return svg(*drawn, size=(_WIDTH, _HEIGHT), label=f"Map of {len(places)} languages", class_="map")


def _spread(places: Mapping[str, Point]) -> dict[str, Point]:
    """One scale for both directions, as distances are to be seen."""
    xs, ys = zip(*places.values(), strict=True)
    middle = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
    width, height = max(xs) - min(xs), max(ys) - min(ys)
    room = _WIDTH - 2 * _EDGE - 30, _HEIGHT - 2 * _EDGE
    scale = min((r / size for r, size in zip(room, (width, height), strict=True) if size > 0), default=1.0)
    return {
        name: (_WIDTH / 2 + (x - middle[0]) * scale, _HEIGHT / 2 - (y - middle[1]) * scale)
        for name, (x, y) in places.items()
    }


Box = tuple[float, float, float, float]


def _label_places(name: str, at: Point) -> Iterator[tuple[float, float, Box]]:
    """Beside the point, to the other side, above, below: where the text begins, and what it covers."""
    width, (x, y) = 7.0 * len(name), at
    for left, base in ((x + 7, y + 4), (x - 7 - width, y + 4), (x - width / 2, y - 8), (x - width / 2, y + 17)):
        if 0 <= left <= _WIDTH - width:
            yield left, base, (left, base - 10, left + width, base + 2)


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def family_legend(families: Mapping[str, str | None]) -> Markup | None:
    """Which sign is which family's."""
    styles = styles_of(families)
    if not styles:
        return None
    signs = [(marker(style, (8.0, 8.0)), name) for name, style in styles.items()]
    if any(name not in styles for name in families.values()):
        signs.append((marker(None, (8.0, 8.0)), "other or unknown"))
    items = (tag("li", tag("svg", sign, width=16, height=16, aria_hidden="true"), " ", name) for sign, name in signs)
    return tag("ul", *items, class_="legend")


def dendrogram(
    languages: Sequence[str], linkage: Sequence[Sequence[float]], families: Mapping[str, str | None]
) -> Markup:
    """A tree of clusters with its leaves one below another; `linkage` as SciPy has it."""
    styles, count = styles_of(families), len(languages)
    members: dict[int, list[int]] = {i: [i] for i in range(count)}
    for number, (left, right, *_) in enumerate(linkage, start=count):
        members[number] = members[int(left)] + members[int(right)]
    order = members[count + len(linkage) - 1] if linkage else list(range(count))
    names = 9.0 + max(7.0 * len(name) for name in languages) + 16
    tallest = max((float(join[2]) for join in linkage), default=1.0) or 1.0
    at: dict[int, Point] = {leaf: (names, 10.0 + _LEAF * rank) for rank, leaf in enumerate(order)}
    drawn = []
    for leaf, (x, y) in at.items():
        family = families.get(languages[leaf])
        drawn.append(tag("text", languages[leaf], x=x - 20, y=y + 4, class_="end"))
        drawn.append(marker(styles.get(family or ""), (x - 9, y), title=family))
    for number, (left, right, height, *_) in enumerate(linkage, start=count):
        (x1, y1), (x2, y2) = at[int(left)], at[int(right)]
        x = names + (_WIDTH - names - 10) * float(height) / tallest
        drawn.append(tag("path", d=f"M{x1:.1f} {y1:.1f}H{x:.1f}V{y2:.1f}H{x2:.1f}", class_="branch"))
        at[number] = (x, (y1 + y2) / 2)
    size = _WIDTH, 10.0 + _LEAF * count
    return svg(*drawn, size=size, label=f"Dendrogram of {count} languages", class_="map")
