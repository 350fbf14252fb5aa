"""Training data: how many examples each dataset has, and how often they were sampled."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyloom.figures.bars import bar_figure
from polyloom.report.sources import Source
from polyloom.report.tables import Row, Table, percent
from polyloom.report.templating import Section, inline
from polyloom.training.history import History

DRAWN = 40  # the shares of more datasets than this are not drawn


def mixture_section(sources: Sequence[Source]) -> Section:
    """Build the section on the mixture of each stage."""
    runs = [(source.name, [_stage(source, stage) for stage in source.history.mixtures]) for source in sources]
    notes = [source.missing["log"] for source in sources if "log" in source.missing]
    return Section("mixture", "Training data", {"notes": notes, "runs": runs})


def _stage(source: Source, stage: str) -> dict[str, Any]:
    datasets = source.history.mixtures[stage]
    seen = examples_seen(source.history)[stage]
    examples = sum(size for _, size, *_ in datasets)
    rows: list[Row] = [
        [
            name, f"{size:,}", percent(size / examples), percent(share),
            percent(seen[name] / seen.total()) if seen else "", f"{epochs:.2f}",
        ]
        for name, size, share, epochs in datasets
    ]  # fmt: skip
    label = f"Training data of {source.name}, stage {stage}"
    columns = ["dataset", "examples", "share of data", "sampling share", "share of examples seen", "epochs"]
    svg = None
    if len(datasets) <= DRAWN:
        series = {
            "share of data": [100 * size / examples for _, size, *_ in datasets],
            "sampling share": [100 * share for _, _, share, _ in datasets],
        }
        svg = inline(bar_figure([name for name, *_ in datasets], series, label="%"), label=f"Bars: {label}")
    return {"table": Table(label, columns, rows), "svg": svg}


def examples_seen(history: History) -> dict[str, Counter[str]]:
    """Count the examples of each dataset in the batches of each stage."""
    seen: dict[str, Counter[str]] = {stage: Counter() for stage in (*history.stages, *history.mixtures)}
    stages = iter(history.stages.items())
    stage, first = next(stages, ("", None))
    end: float = first.steps if first else math.inf
    for step in history.steps:
        while step.total > end and (following := next(stages, None)):
            stage, end = following[0], end + following[1].steps
        seen.setdefault(stage, Counter()).update(step.datasets)
    return seen
