"""What `polyloom probe` found: the map and the tree of languages, donors, where in the network languages differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polyloom.probe.capacity import capacity_rows
from polyloom.report.html import (
    Markup,
    details,
    figure,
    header_row,
    heat_class,
    joined,
    made_by,
    note,
    row,
    scrolling,
    section,
    table,
    tag,
)
from polyloom.report.maps import dendrogram, family_legend, language_map
from polyloom.report.plots import bar
from polyloom.report.scores import Shading
from polyloom.report.sources import Source

WIDEST = 60  # conditions whose similarities are shown one by one
Probe = Mapping[str, Any]


def probe_sections(sources: Sequence[Source]) -> list[Markup]:
    """Languages, donors, weights."""
    return [
        section("languages", "Languages", *_each(sources, "languages", _languages)),
        section("donors", "Donors", *_each(sources, "swap", _swap)),
        section("weights", "Weights", *_each(sources, "weights", _weights)),
    ]


def _each(sources: Sequence[Source], kind: str, show: Any) -> Iterator[Markup]:
    """What there is of every run, or the command that makes it."""
    for source in sources:
        if len(sources) > 1:
            yield tag("h3", source.name)
        if kind not in source.probes:
            yield note(source.missing[kind])
            continue
        try:
            yield from show(source, source.probes[kind])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            yield note(f"{source.path}/probes/{kind}.json: not as this version writes it ({error!r}). "
                       f"Make it anew: {source.probing(kind)}")  # fmt: skip


def _languages(source: Source, probe: Probe) -> list[Markup]:
    languages, families = probe["languages"], probe["families"]
    source_line = made_by(f"polyloom probe languages {source.shell}")
    places = {language: (float(x), float(y)) for language, (x, y) in probe["map"].items()}
    parts = [
        figure(
            family_legend(families), scrolling(f"Map of languages by {source.name}", language_map(places, families)),
            caption=joined(["Languages by what was learnt of them, on the plane that shows most of it. ", source_line]),
        ),
        figure(
            scrolling(f"Dendrogram of languages by {source.name}", dendrogram(languages, probe["linkage"], families)),
            caption=joined(["Languages joined by average distance: the further right, the less alike. ", source_line]),
        ),
    ]  # fmt: skip
    rows = [
        row(language, families.get(language) or "", ", ".join(f"{other} {value:.2f}" for other, value in near))
        for language, near in probe["neighbours"].items()
    ]
    near = table(
        f"Nearest languages by {source.name}", header_row("language", "family", "nearest, with similarity"), rows
    )
    return [*parts, _agreement(probe["agreement"]), details("Nearest languages", near)]


def _agreement(found: Probe) -> Markup:
    said = []
    if found.get("purity") is not None:
        said.append(
            f"The nearest language is of the same family for {100 * found['purity']:.0f} % "
            f"(chance: {100 * found['chance']:.0f} %, p = {found['p']:.3g})."
        )
    if found.get("correlation") is not None:
        said.append(
            f"Correlation with typological distance: {found['correlation']:.2f} (p = {found['correlation_p']:.3g})."
        )
    return tag("p", " ".join(said) or "Agreement with families and typology: not known.")


def _swap(source: Source, probe: Probe) -> list[Markup]:
    """Scores of every language with the weights of every other."""
    values = [value for scores in probe["scores"] for value in scores if value is not None]
    shading = Shading(values, probe["metric"])

    def result(language: str, donor: str, value: float | None) -> Markup:
        if value is None:
            return tag("td", "–")
        own = language == donor
        return tag(
            "td",
            tag("b", f"{value:.1f}") if own else f"{value:.1f}",
            class_=shading.of(value) + (" own" if own else ""),
        )

    rows = [
        row(language, *(result(language, d, v) for d, v in zip(probe["donors"], scores, strict=True)))
        for language, scores in zip(probe["languages"], probe["scores"], strict=True)
    ]
    label = (
        f"{probe['task']} {probe['metric']} of each language (row) with the weights of another (column), {source.name}"
    )
    drawn = table(label, header_row("of ↓ with →", *probe["donors"]), rows, class_=heat_class(len(rows)))
    line = f"polyloom probe swap {source.shell} --task {probe['task']}"
    return [figure(drawn, caption=joined([f"{label}; framed and bold: its own. –: refused. ", made_by(line)]))]


def _weights(source: Source, probe: Probe) -> list[Markup]:
    """Where in the network weights differ, and how alike those of any two conditions are."""
    keys = ("between_languages", "between_tasks", "effective_rank")
    tallest = {key: max((site[key] or 0.0 for site in probe["sites"]), default=0.0) or 1.0 for key in keys}

    def measured(key: str, value: float | None) -> Markup:
        return tag("td", "" if value is None else joined([bar(value / tallest[key]), f" {value:.2f}"]), class_="plot")

    rows = [row(site["site"], *(measured(key, site[key]) for key in keys)) for site in probe["sites"]]
    line = made_by(f"polyloom probe weights {source.shell}")
    label = f"Spread of the weights of {source.name} at each site"
    head = header_row("site", "between languages", "between tasks", "effective rank over languages")
    caption = joined([f"{label}: how far they differ, relative to their mean. ", line])
    parts = [figure(table(label, head, rows, class_="numbers"), caption=caption)]
    conditions = probe["conditions"]
    if len(conditions) > WIDEST:
        parts.append(
            note(f"{len(conditions)} conditions: similarities of all pairs are in {source.path}/probes/weights.json.")
        )
    else:
        parts.append(_similarity(source, probe, line))
    if "capacity" in source.probes:  # of methods that generate
        parts.append(_capacity(source, source.probes["capacity"]))
    return parts


def _capacity(source: Source, probe: Probe) -> Markup:
    """How much of the hypernetwork is used."""
    rows = [row(*results) for results in capacity_rows(probe)]
    label = f"How full the hypernetwork of {source.name} is"
    drawn = table(label, header_row("part", "used", "of"), rows, class_="numbers")
    return figure(drawn, caption=joined([f"{label}. ", made_by(f"polyloom probe capacity {source.shell}")]))


def _similarity(source: Source, probe: Probe, line: Markup) -> Markup:
    conditions, similarity = probe["conditions"], probe["similarity"]
    shading = Shading([value for values in similarity for value in values], "cosine")
    rows = [
        row(name, *(tag("td", f"{value:.2f}", class_=shading.of(value)) for value in values))
        for name, values in zip(conditions, similarity, strict=True)
    ]
    label = f"Cosine similarity of the weights of any two conditions, {source.name}"
    drawn = table(label, header_row("condition", *conditions), rows, class_=heat_class(len(rows)))
    return figure(drawn, caption=joined([f"{label}. ", line]))
