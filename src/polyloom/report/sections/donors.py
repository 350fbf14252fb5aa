"""Donors: scores of each language with the weights of another, from `polyloom probe swap`."""

from collections.abc import Sequence

from polyloom.figures.titles import metric_title
from polyloom.report.probes import Probe, Shown, each_probe
from polyloom.report.sources import Source
from polyloom.report.tables import Row, Shading, Table, TableCell, heat_classes
from polyloom.report.templating import Section


def donors_section(sources: Sequence[Source]) -> Section:
    """Build the section on donors."""
    return Section("donors", "Donors", {"runs": each_probe(sources, "swap", _show)})


def _show(source: Source, probe: Probe) -> Shown:
    shading = Shading([v for scores in probe["scores"] for v in scores if v is not None], probe["metric"])
    owners = probe["own"]

    def result(owner: str, donor: str, value: float | None) -> TableCell:
        if value is None:
            return TableCell("–")
        return TableCell(f"{value:.1f}", shading.classes(value) + (" own" if owner == donor else ""))

    rows: list[Row] = [
        [language, *(result(owner, donor, value) for donor, value in zip(probe["donors"], scores, strict=True))]
        for language, owner, scores in zip(probe["languages"], owners, probe["scores"], strict=True)
    ]
    score = f"{probe['task']} {metric_title(probe['metric'])}"
    label = f"{score} of each language (row) with the weights of another (column), {source.name}"
    columns = ["language ↓ donor →", *probe["donors"]]
    return {
        "table": Table(label, columns, rows, classes=heat_classes(len(probe["donors"]))),
        "command": f"polyloom probe swap {source.shell} --task {probe['task']}",
    }
