"""Weights: where in the network they differ, how similar they are, how much of the hypernetwork is used."""

from collections.abc import Sequence

from polyloom.figures.bars import SITE_SERIES, bar_figure
from polyloom.probe.capacity import capacity_rows
from polyloom.report.probes import Probe, Shown, each_probe
from polyloom.report.sources import Source
from polyloom.report.tables import Row, Shading, Table, TableCell, heat_classes
from polyloom.report.templating import Section, inline

WIDEST = 60  # the similarities of more conditions than this are not shown


def weights_section(sources: Sequence[Source]) -> Section:
    """Build the section on weights."""
    return Section("weights", "Weights", {"runs": each_probe(sources, "weights", _show)})


def _show(source: Source, probe: Probe) -> Shown:
    keys = (*SITE_SERIES, "effective_rank")
    sites, conditions = probe["sites"], probe["conditions"]
    rows: list[Row] = [
        [site["site"], *("" if site[key] is None else f"{site[key]:.2f}" for key in keys)] for site in sites
    ]
    label = f"Spread of the weights of {source.name} at each site"
    series = {name: [site[key] for site in sites] for key, name in SITE_SERIES.items()}
    figure = bar_figure([site["site"] for site in sites], series, label="spread / length of the mean")
    capacity = source.probes.get("capacity")  # of methods that generate weights
    return {
        "spread": Table(label, ["site", *SITE_SERIES.values(), "effective rank over languages"], rows),
        "svg": inline(figure, label=f"Bars: {label}"),
        "similarity": _similarity(source, probe) if len(conditions) <= WIDEST else None,
        "many": f"{len(conditions)} conditions: their similarities are in {source.path}/probes/weights.json.",
        "capacity": _capacity(source, capacity) if capacity else None,
        "command": f"polyloom probe weights {source.shell}",
        "capacity_command": f"polyloom probe capacity {source.shell}",
    }


def _similarity(source: Source, probe: Probe) -> Table:
    conditions, similarity = probe["conditions"], probe["similarity"]
    shading = Shading([value for values in similarity for value in values], "cosine")
    rows: list[Row] = [
        [name, *(TableCell(f"{value:.2f}", shading.classes(value)) for value in values)]
        for name, values in zip(conditions, similarity, strict=True)
    ]
    label = f"Cosine similarity of the weights of any two conditions, {source.name}"
    return Table(label, ["condition", *conditions], rows, classes=heat_classes(len(rows)))


def _capacity(source: Source, probe: Probe) -> Table:
    rows: list[Row] = [list(map(str, results)) for results in capacity_rows(probe)]
    return Table(f"Used capacity of the hypernetwork of {source.name}", ["part", "used", "of"], rows)
