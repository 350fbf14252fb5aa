"""The map and the dendrogram of languages, with a colour and a marker for each family."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyloom.figures.canvas import new_figure, printable, save, styled, tooltip
from polyloom.figures.palette import INK, LINE, OTHER, SOFT, STYLES, UNKNOWN, Style
from polyloom.probe.languages import members

Probe = Mapping[str, Any]
Families = Mapping[str, str | None]
Box = tuple[float, float, float, float]  # left, bottom, right, top
_CROWDED = 80  # more languages than this get smaller names


@styled
def draw_languages(probe: Probe, path: Path) -> None:
    """Write the map and the dendrogram to a file.

    Args:
        probe: The result of `probe_languages`.
        path: The file; its suffix is the format.
    """
    figure = new_figure(12, max(4.5, _tree_height(probe)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_dendrogram(right, probe)
    _draw_map(left, probe)
    save(figure, path, label=f"Map and dendrogram of {len(probe['languages'])} languages")


@styled
def map_figure(probe: Probe) -> Any:
    """Draw languages on the plane that the probe projected them on."""
    figure = new_figure(6.4, 4.8)
    _draw_map(figure.subplots(), probe)
    return figure


@styled
def dendrogram_figure(probe: Probe) -> Any:
    """Draw the tree of clusters of languages."""
    figure = new_figure(3.4, max(1.2, _tree_height(probe)))
    _draw_dendrogram(figure.subplots(), probe)
    return figure


def family_styles(families: Families) -> dict[str, Style]:
    """Assign styles to the largest families; all others share one, and languages without a known family another."""
    counts = Counter(family for family in families.values() if family)
    ranked = sorted(counts, key=lambda family: (-counts[family], family))
    styles = dict(zip(ranked, STYLES, strict=False))
    styles |= {"other": OTHER} if len(ranked) > len(STYLES) else {}
    return styles | ({"unknown": UNKNOWN} if None in families.values() else {})


def _group(family: str | None, styles: Mapping[str, Style]) -> str:
    return "unknown" if family is None else family if family in styles else "other"


def _mark(ax: Any, at: tuple[float, float], language: str, families: Families, **options: Any) -> None:
    """Draw the marker of a language."""
    family, styles = families.get(language), family_styles(families)
    style = styles.get(_group(family, styles), UNKNOWN)
    title = tooltip(f"{language}: {family}" if family else language)
    ax.plot(*at, style.marker, color=style.color, mec=INK, mew=0.6, clip_on=False, gid=title, **options)


def _draw_map(ax: Any, probe: Probe) -> None:
    """Draw one marker per language; a name is left out if it would cover another."""
    families: Families = probe["families"]
    styles = family_styles(families)
    for language in probe["languages"]:
        x, y = probe["map"][language]
        _mark(ax, (float(x), float(y)), language, families, ms=6)
    counts = Counter(_group(families.get(language), styles) for language in probe["languages"])
    if counts.keys() - {"unknown"}:
        for name, style in styles.items():
            label = f"{printable(name)} ({counts[name]})"
            ax.plot([], [], style.marker, color=style.color, mec=INK, mew=0.6, ms=6, label=label)
        ax.legend(loc="upper left", bbox_to_anchor=(0, -0.13), ncols=3)
    pca = probe.get("projection", "pca") == "pca"
    x_label, y_label = (f"{n} {'principal component' if pca else 'dimension of UMAP'}" for n in ("first", "second"))
    ax.set(xlabel=x_label, ylabel=y_label)
    ax.margins(0.08)
    ax.set_aspect("equal", adjustable="datalim")  # distances compare in both directions
    for line in (ax.axhline, ax.axvline) if pca else ():  # UMAP has no origin
        line(0, color=LINE, lw=0.6, zorder=0)
    _write_names(ax, {language: probe["map"][language] for language in probe["languages"]})


def _write_names(ax: Any, places: Mapping[str, Sequence[float]]) -> None:
    """Write each name beside its marker where it covers no marker and no other name, or leave it out."""
    # The layout engine sets the scale of the axes when a figure is drawn, so it is drawn once. From then on a place is
    # known in points, the unit of fonts. The names are kept out of the layout: they would change the scale again.
    ax.figure.draw_without_rendering()
    points = 72 / ax.figure.dpi
    at = {name: tuple(points * ax.transData.transform(place)) for name, place in places.items()}
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in at.values()]  # the markers
    height = 8 if len(places) <= _CROWDED else 6
    for name, (x, y) in at.items():
        width = 0.62 * height * len(name)  # an estimate of the font's mean width
        right, left = (5, -0.35 * height), (-5 - width, -0.35 * height)
        above, below = (-width / 2, 5), (-width / 2, -5 - height)
        for dx, dy in (right, left, above, below):
            box = (x + dx, y + dy, x + dx + width, y + dy + height)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                taken.append(box)
                text = ax.annotate(
                    printable(name), places[name], xytext=(dx, dy), textcoords="offset points", fontsize=height
                )
                text.set_in_layout(False)
                break


def _tree_height(probe: Probe) -> float:
    return 0.7 + (0.17 if len(probe["languages"]) <= _CROWDED else 0.12) * len(probe["languages"])


def _draw_dendrogram(ax: Any, probe: Probe) -> None:
    """Draw leaves at the right; each join lies at its distance."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - an extra

    linkage, languages = probe["linkage"], probe["languages"]
    order = max(members(linkage).values(), key=len)  # the cluster of all languages, without crossings
    at = {leaf: (0.0, float(rank)) for rank, leaf in enumerate(order)}
    for number, (left, right, height, *_) in enumerate(linkage, start=len(languages)):
        (x1, y1), (x2, y2) = at[int(left)], at[int(right)]
        ax.plot([x1, height, height, x2], [y1, y1, y2, y2], color=SOFT, lw=1, solid_joinstyle="miter")
        at[number] = (float(height), (y1 + y2) / 2)
    for rank, leaf in enumerate(order):
        _mark(ax, (0.0, float(rank)), languages[leaf], probe["families"], ms=5, zorder=3)
    size = 8 if len(languages) <= _CROWDED else 6
    ax.set_yticks(range(len(order)), [printable(languages[leaf]) for leaf in order], fontsize=size)
    ax.yaxis.tick_right()
    ax.tick_params(axis="y", length=0, pad=8)
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.set_xlim(left=1.02 * max((float(join[2]) for join in linkage), default=1.0) or 1.0, right=0)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set_xlabel("distance of the joined groups (1 − cosine)")
    ax.spines[["left", "right"]].set_visible(False)
