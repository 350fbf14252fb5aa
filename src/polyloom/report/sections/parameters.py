"""Trainable parameters: by group and stage, and how much of the weights depends on the language."""

import math
from collections.abc import Sequence
from typing import Any

from polyloom.report.sources import Source
from polyloom.report.tables import Row, Table
from polyloom.report.templating import Section
from polyloom.training.events import LanguageShares, StageStarted

DEAD = 0.01  # share of the weights that depends on the language, below which all languages have the same weights


def parameters_section(sources: Sequence[Source]) -> Section:
    """Build the section on trainable parameters."""
    runs = [(s.name, [_stage(s, name, event) for name, event in s.history.stages.items()]) for s in sources]
    notes = [source.missing["log"] for source in sources if "log" in source.missing]
    return Section("parameters", "Trainable parameters", {"notes": notes, "runs": runs})


def _stage(source: Source, stage: str, event: StageStarted) -> dict[str, Any]:
    groups = event.parameter_report
    rows: list[Row] = [
        [group.name, f"{group.total:,}", f"{group.trained:,}", _share(group.trained, group.total)] for group in groups
    ]
    trained, total = (sum(getattr(group, key) for group in groups) for key in ("trained", "total"))
    foot = [["all", f"{total:,}", f"{trained:,}", _share(trained, total)]]
    label = f"Parameters of {source.name}, stage {stage}"
    initial = f"Initial scale of the adapters of {source.name}, stage {stage}"
    scales: list[Row] = [[name, f"{value:.3g}"] for name, value in event.weight_std.items()]
    shares = source.history.shares.get(stage) or LanguageShares(stage=stage, before={}, after={})
    return {
        "table": Table(label, ["group", "parameters", "trainable", "share"], rows, foot),
        "steps": event.steps,
        "weight_std": Table(initial, ["tensor", "standard deviation"], scales) if scales else None,
        "shares": [
            f"{task} {100 * shares.before.get(task, math.nan):.0f} % → {100 * after:.0f} %"
            for task, after in shares.after.items()
        ],
        "dead": [t for t, after in shares.after.items() if after < DEAD <= shares.before.get(t, 0.0)],
    }


def _share(trained: int, total: int) -> str:
    return f"{100 * trained / total:.2f} %" if total else ""
