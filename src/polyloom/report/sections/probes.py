"""Probes: languages, donors and weights, as `polyloom probe` stored them with each run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyloom.figures.bars import SITE_SERIES, bar_figure
from polyloom.figures.languages import dendrogram_figure, map_figure
from polyloom.metrics.score import metric_title
from polyloom.probe.capacity import capacity_rows
from polyloom.report.elements import Row, Section, Shading, Table, TableCell, heat_classes, inline, p_value
from polyloom.report.sources import Source

WIDEST = 60  # the similarities of more conditions than this are not shown
Probe = Mapping[str, Any]
Prepared = dict[str, Any]  # data of a template


def languages_section(sources: Sequence[Source]) -> Section:
    """Build the section on languages: map, dendrogram and nearest languages."""
    return Section("languages", "Languages", {"runs": _each_run(sources, "languages", _languages)})


def donors_section(sources: Sequence[Source]) -> Section:
    """Build the section on donors: scores of each language with the weights of another."""
    return Section("donors", "Donors", {"runs": _each_run(sources, "swap", _donors)})


def weights_section(sources: Sequence[Source]) -> Section:
    """Build the section on weights: where they differ, how similar they are, how much of a hypernetwork is used."""
    return Section("weights", "Weights", {"runs": _each_run(sources, "weights", _weights)})


def _each_run(sources: Sequence[Source], kind: str, prepare: Callable[[Source, Probe], Prepared]) -> list[Prepared]:
    """Prepare a probe of every run for a template; what is missing or unreadable becomes a note with a command."""
    runs = []
    for source in sources:
        data: Prepared = {"name": source.name, "note": None}
        if kind not in source.probes:
            data["note"] = source.missing[kind]
        else:
            try:
                data |= prepare(source, source.probes[kind])
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                data["note"] = (
                    f"{source.path}/probes/{kind}.json: not in the format of this version ({error!r}). "
                    f"Run again: {source.probing(kind)}"
                )
        runs.append(data)
    return runs


def _languages(source: Source, probe: Probe) -> Prepared:
    families, count, agreement = probe["families"], len(probe["languages"]), probe["agreement"]
    rows: list[Row] = [
        [language, families.get(language) or "", ", ".join(f"{other} {value:.2f}" for other, value in near)]
        for language, near in probe["neighbours"].items()
    ]
    sentences = []
    if agreement.get("purity") is not None:
        sentences.append(
            f"The nearest language is of the same family for {100 * agreement['purity']:.0f} % of the languages "
            f"(chance: {100 * agreement['chance']:.0f} %, p {p_value(agreement['p_value'])})."
        )
    if agreement.get("correlation") is not None:
        sentences.append(
            f"Correlation with typological distance: {agreement['correlation']:.2f} "
            f"(p {p_value(agreement['correlation_p_value'])})."
        )
    columns = ["language", "family", "nearest languages, with cosine similarity"]
    umap = probe.get("projection") == "umap"
    return {
        "plane": "projected by UMAP" if umap else "on their first two principal components",
        "map": inline(map_figure(probe), label=f"Map of {count} languages", classes="figure map"),
        "dendrogram": inline(dendrogram_figure(probe), label=f"Dendrogram of {count} languages"),
        "agreement": " ".join(sentences) or "Agreement with families and typology: unknown.",
        "nearest": Table(f"Nearest languages by {source.name}", columns, rows, classes="facts"),
        "command": f"polyloom probe languages {source.shell}{' --projection umap' if umap else ''}",
    }


def _donors(source: Source, probe: Probe) -> Prepared:
    shading = Shading([v for scores in probe["scores"] for v in scores if v is not None], probe["metric"])
    rows: list[Row] = []
    for language, owner, scores in zip(probe["languages"], probe["own"], probe["scores"], strict=True):
        row: list[str | TableCell] = [language]
        for donor, value in zip(probe["donors"], scores, strict=True):
            own = " own" if owner == donor else ""
            row.append(TableCell("–") if value is None else TableCell(f"{value:.1f}", shading.classes(value) + own))
        rows.append(row)
    score = f"{probe['task']} {metric_title(probe['metric'])}"
    label = f"{score} of each language (row) with the weights of another (column), {source.name}"
    columns = ["language ↓ donor →", *probe["donors"]]
    return {
        "table": Table(label, columns, rows, classes=heat_classes(len(probe["donors"]))),
        "command": f"polyloom probe swap {source.shell} --task {probe['task']}",
    }


def _weights(source: Source, probe: Probe) -> Prepared:
    sites, conditions = probe["sites"], probe["conditions"]
    keys = (*SITE_SERIES, "effective_rank")
    rows: list[Row] = [
        [site["site"], *("" if site[key] is None else f"{site[key]:.2f}" for key in keys)] for site in sites
    ]
    label = f"Spread of the weights of {source.name} at each site"
    series = {name: [site[key] for site in sites] for key, name in SITE_SERIES.items()}
    figure = bar_figure([site["site"] for site in sites], series, label="spread / length of the mean")

    similarity = None
    if len(conditions) <= WIDEST:
        shading = Shading([value for values in probe["similarity"] for value in values], "cosine")
        cells: list[Row] = [
            [name, *(TableCell(f"{value:.2f}", shading.classes(value)) for value in values)]
            for name, values in zip(conditions, probe["similarity"], strict=True)
        ]
        title = f"Cosine similarity of the weights of any two conditions, {source.name}"
        similarity = Table(title, ["condition", *conditions], cells, classes=heat_classes(len(cells)))
    capacity = None
    if "capacity" in source.probes:  # of methods that generate weights
        parts: list[Row] = [list(row) for row in capacity_rows(source.probes["capacity"])]
        title = f"Used capacity of the hypernetwork of {source.name}"
        capacity = Table(title, ["part", "used", "of"], parts)
    return {
        "spread": Table(label, ["site", *SITE_SERIES.values(), "effective rank over languages"], rows),
        "svg": inline(figure, label=f"Bars: {label}"),
        "similarity": similarity,
        "many": f"{len(conditions)} conditions: their similarities are in {source.path}/probes/weights.json.",
        "capacity": capacity,
        "command": f"polyloom probe weights {source.shell}",
        "capacity_command": f"polyloom probe capacity {source.shell}",
    }
