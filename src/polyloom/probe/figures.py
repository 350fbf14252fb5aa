"""Figures of probes: map and tree of languages, donor matrix, similarity and spread of weights, spectra."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.probe.languages import members

Found = Mapping[str, Any]
# Okabe and Ito's colours, which everyone can tell apart, each with a marker, for those who print in black.
STYLES = (
    ("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#e69f00", "D"), ("#56b4e9", "v"), ("#cc79a7", "P"),
    ("#f0e442", "X"),
)  # fmt: skip
OTHER, UNKNOWN = ("#888888", "p"), ("#ffffff", "o")
_NUMBERS = 25  # rows beyond which cells are too many to be read one by one
_CROWDED = 80  # languages beyond which names would cover one another


def draw_languages(found: Found, path: Path) -> None:
    """Map and dendrogram, families by colour and marker.

    Args:
        found: What `probe_languages` returns.
        path: Where to write; the suffix says the format.
    """
    languages, styles = found["languages"], family_styles(found["families"])
    small = 8 if len(languages) <= _CROWDED else 5
    figure = _figure(12, max(4.5, 0.6 + 0.02 * small * len(languages)))
    plane, tree = figure.subplots(1, 2, width_ratios=(3, 2))
    for family, (color, marker) in styles.items():
        some = [lang for lang in languages if _label(found["families"][lang], styles) == family]
        points = np.array([found["map"][lang] for lang in some]).reshape(-1, 2)
        plane.scatter(*points.T, c=color, marker=marker, s=45, ec="#222222", lw=0.6, label=f"{family} ({len(some)})")
        for lang, (x, y) in zip(some, points, strict=True):
            plane.annotate(lang, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=small)
    plane.set(xlabel="first principal component", ylabel="second principal component")
    plane.axhline(0, color="#dddddd", lw=0.6, zorder=0)
    plane.axvline(0, color="#dddddd", lw=0.6, zorder=0)
    plane.spines[["top", "right"]].set_visible(False)
    if styles:
        plane.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3)
    _tree(tree, found, styles, small)
    figure.savefig(path, dpi=150)


def _tree(ax: Any, found: Found, styles: Mapping[str, tuple[str, str]], small: int) -> None:
    """Leaves at the right, the height of every join to the left."""
    merges, languages = found["linkage"], found["languages"]
    order = members(merges)[2 * len(merges)]
    at = {leaf: (0.0, float(place)) for place, leaf in enumerate(order)}
    for step, (left, right, height, _) in enumerate(merges):
        (x1, y1), (x2, y2) = at[left], at[right]
        ax.plot([x1, height, height, x2], [y1, y1, y2, y2], color="#444444", lw=0.9)
        at[len(languages) + step] = (height, (y1 + y2) / 2)
    for leaf in range(len(languages)):
        color, marker = styles.get(_label(found["families"][languages[leaf]], styles), UNKNOWN)
        ax.plot(0, at[leaf][1], marker, color=color, mec="#222222", mew=0.6, ms=5, clip_on=False, zorder=3)
    ax.set_yticks(range(len(order)), [languages[leaf] for leaf in order], fontsize=small)
    ax.yaxis.tick_right()
    ax.tick_params(axis="y", length=0, pad=8)
    ax.set_xlim(left=1.02 * max((height for _, _, height, _ in merges), default=1.0) or 1.0, right=0)
    ax.set_xlabel("distance at which groups are joined (1 − cosine)")
    ax.spines[["top", "left", "right"]].set_visible(False)


def family_styles(families: Mapping[str, str | None]) -> dict[str, tuple[str, str]]:
    """Colour and marker of the largest families; the rest share one, and those not known another."""
    counts = Counter(family for family in families.values() if family)
    ranked = sorted(counts, key=lambda family: (-counts[family], family))
    styles = dict(zip(ranked, STYLES, strict=False))
    styles |= {"other": OTHER} if len(ranked) > len(STYLES) else {}
    return styles | ({"unknown": UNKNOWN} if None in families.values() else {})


def _label(family: str | None, styles: Mapping[str, Any]) -> str:
    return "unknown" if family is None else family if family in styles else "other"


def draw_swap(found: Found, path: Path) -> None:
    """Every language with every donor's weights; its own framed, a dot where there is no score.

    Args:
        found: What `donor_matrix` returns, with the metric.
        path: Where to write; the suffix says the format.
    """
    scores = np.array([[np.nan if s is None else s for s in row] for row in found["scores"]], dtype=np.float64)
    figure, ax = _grid_axes(scores, rows=found["languages"], columns=found["donors"])
    image = _results(ax, scores, numbers=scores.shape[1] <= _NUMBERS)
    for row, own in enumerate(found["own"]):
        if own in found["donors"]:
            ax.add_patch(_frame(found["donors"].index(own), row))
    ax.set(xlabel="whose weights", ylabel=f"{found['task']}: whose text")
    figure.colorbar(image, ax=ax, shrink=0.8, label=f"{found['metric']}, framed: its own weights")
    figure.savefig(path, dpi=150)


def draw_weights(found: Found, path: Path) -> None:
    """Similarity of all conditions, and how far languages and tasks are apart at every site.

    Args:
        found: What `probe_weights` returns.
        path: Where to write; the suffix says the format.
    """
    similarity, names = np.array(found["similarity"]), found["conditions"]
    many = len(names) > _CROWDED
    size = min(9.0, max(3.5, 0.25 * len(names)))
    figure = _figure(size + 6.5, max(size + 0.5, 1.0 + 0.25 * len(found["sites"])))
    square, bars = figure.subplots(1, 2, width_ratios=(size + 1.5, 4))
    image = square.imshow(similarity, cmap="cividis", vmin=min(0.0, float(similarity.min())), vmax=1.0)
    ticks = [] if many else range(len(names))
    square.set_xticks(ticks, [] if many else names, rotation=90, fontsize=7)
    square.set_yticks(ticks, [] if many else names, fontsize=7)
    square.set_xlabel(f"{len(names)} conditions")
    figure.colorbar(image, ax=square, shrink=0.8, label="cosine of their weights")
    places = np.arange(len(found["sites"]))
    series = [("between_languages", "languages", STYLES[0]), ("between_tasks", "tasks", STYLES[1])]
    series = [one for one in series if any(site[one[0]] is not None for site in found["sites"])]
    for number, (key, label, (color, marker)) in enumerate(series):
        values = [np.nan if site[key] is None else site[key] for site in found["sites"]]
        at = places + 0.4 * (number - (len(series) - 1) / 2)
        bars.barh(at, values, height=0.36, color=color, alpha=0.5, lw=0)
        bars.plot(values, at, marker, color=color, mec="#222222", mew=0.5, ms=5, label=f"between {label}")
    bars.set_yticks(places, [site["site"] for site in found["sites"]], fontsize=8)
    bars.invert_yaxis()
    bars.set_xlim(left=0)
    bars.set_xlabel("distance from the mean / length of the mean")
    if series:
        bars.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2)
    bars.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def draw_capacity(found: Found, path: Path) -> None:
    """Spectra of language embeddings and of what the heads read.

    Args:
        found: What `probe_capacity` returns.
        path: Where to write; the suffix says the format.
    """
    figure = _figure(6.5, 4)
    ax = figure.subplots()
    lines = (
        ("embeddings", "language embeddings", "participation_ratio", STYLES[0]),
        ("read", "what the heads read", "effective_rank", STYLES[1]),
    )
    for key, label, number, (color, marker) in lines:
        part = found[key]
        shares = np.array([share for share in part["spectrum"] if share > 0])
        said = f"{label}: {part[number]:.1f} of {part['width']}"
        ax.plot(np.arange(1, len(shares) + 1), shares, marker=marker, ms=4, lw=1, color=color, label=said)
    ax.set_yscale("log")
    ax.set(xlabel="direction", ylabel="share of the variance")
    ax.legend(fontsize=8, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _grid_axes(scores: Any, *, rows: Sequence[str], columns: Sequence[str]) -> tuple[Any, Any]:
    unit = 0.42 if scores.shape[1] <= _NUMBERS else 0.16
    figure = _figure(unit * len(columns) + 2.6, unit * len(rows) + 1.2)
    ax = figure.subplots()
    small = 8 if scores.shape[1] <= _NUMBERS else 6
    ax.set_xticks(range(len(columns)), columns, rotation=90)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0, labelsize=small, top=True, labeltop=True, bottom=False, labelbottom=False)
    ax.xaxis.set_label_position("top")
    ax.spines[:].set_visible(False)
    return figure, ax


def _results(ax: Any, scores: Any, *, numbers: bool) -> Any:
    known = scores[~np.isnan(scores)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    high = high if high > low else low + 1.0
    digits = 0 if high >= 20 else 1  # perplexities, and scores of what has hardly learnt
    image = ax.imshow(scores, cmap="cividis", vmin=low, vmax=high)
    ax.plot(*np.argwhere(np.isnan(scores)).T[::-1], ".", color="#999999", ms=3)
    for (row, column), score in np.ndenumerate(scores):
        if numbers and not np.isnan(score):
            color = "white" if score < low + 0.55 * (high - low) else "black"
            ax.text(column, row, f"{score:.{digits}f}", ha="center", va="center", color=color, fontsize=8)
    return image


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    return Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, fill=False, ec="#d55e00", lw=1.4)


def _figure(width: float, height: float) -> Any:
    """A figure of its own, so that neither the backend nor the settings of the caller's figures matter or change."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PolyloomError(
            "figures: the package matplotlib is not installed. pip install 'polyloom[plots]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")
