"""Training: learning curves, the mixture of training data and trainable parameters, from the log of each run."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from polyloom.figures.bars import bar_figure
from polyloom.figures.curves import Curve, Point, curve_figure, line_sample, thinned
from polyloom.metrics.score import PERPLEXITY, metric_title
from polyloom.report.elements import Row, Section, Table, inline, percent
from polyloom.report.sources import Source
from polyloom.tasks import TASKS
from polyloom.training.events import StageStarted, StepSkipped
from polyloom.training.history import History

DRAWN = 40  # the shares of more datasets than this are not drawn
DEAD = 0.01  # share of the weights that depends on the language, below which all languages have the same weights
Chart = tuple[str, Markup]  # caption and SVG


def curves_section(sources: Sequence[Source]) -> Section:
    """Build small charts over steps: each task's training loss, then its validation score."""
    logged = [source for source in sources if source.history.steps]
    charts = []

    for task in dict.fromkeys(task for s in logged for step in s.history.steps for task in step.losses):
        curves = []
        for series, source in enumerate(logged):
            points = [(float(s.total), float(s.losses[task])) for s in source.history.steps if task in s.losses]
            if points:
                curves.append(Curve(thinned(points), series))
        per_token = task not in TASKS or TASKS[task].generates or TASKS[task].metrics[0] is PERPLEXITY
        unit = "nats per token" if per_token else "nats per label"
        charts.append(_chart(curves, logged, f"Training loss of {task}", unit))

    validated = dict.fromkeys(
        name.partition("/")[0] for s in logged for v in s.history.validations for name in v.scores
    )
    for task in validated:
        curves, metric = [], ""
        for series, source in enumerate(logged):
            if curve := _validation_curve(source.history, task, series):
                curves.append(curve)
                for validation in source.history.validations:
                    for name, metric_of_condition in validation.metrics.items():
                        if name.partition("/")[0] == task:
                            metric = metric_of_condition
        if curves:
            log = metric == PERPLEXITY.name
            unit = "perplexity per token" if log else metric_title(metric)
            charts.append(_chart(curves, logged, f"Validation of {task}", unit, log=log))

    legend = [(s.name, inline(line_sample(i), label="Line of", classes="sample")) for i, s in enumerate(logged)]
    skipped = [(s.name, sum(isinstance(step, StepSkipped) for step in s.history.steps)) for s in logged]
    data: dict[str, Any] = {
        "notes": [source.missing["log"] for source in sources if "log" in source.missing],
        "legend": legend if len(legend) > 1 else [],
        "charts": charts,
        "validated": bool(validated),
        "skipped": [(name, count) for name, count in skipped if count],
    }
    return Section("curves", "Learning curves", data)


def _validation_curve(history: History, task: str, series: int) -> Curve | None:
    """Return the mean over languages, a band from the lowest to the highest, and a ring at the chosen checkpoint."""
    points: list[Point] = []
    band: list[tuple[float, float, float]] = []
    best: list[Point] = []
    for validation in history.validations:
        scores = validation.scores.items()
        values = [value for name, value in scores if name.partition("/")[0] == task and value is not None]
        if values:
            points.append((float(validation.total), sum(values) / len(values)))
            band.append((float(validation.total), min(values), max(values)))
            best = [points[-1]] if validation.best else best
    return Curve(points, series, band if len(points) > 1 else (), best) if points else None


def _chart(curves: Sequence[Curve], sources: Sequence[Source], title: str, unit: str, *, log: bool = False) -> Chart:
    # The ends of stages are drawn if all runs have the same, or their lines could not be told apart.
    borders = set()
    for source in sources:
        ends, total = [], 0
        for stage in source.history.stages.values():
            total += stage.steps
            ends.append(float(total))
        borders.add(tuple(ends[:-1]))
    end = max(float(source.history.steps[-1].total) for source in sources)
    figure = curve_figure(curves, label=unit, end=end, borders=borders.pop() if len(borders) == 1 else (), log=log)
    caption = f"{title} ({unit})"
    return caption, inline(figure, label=f"{caption} by step", classes="figure chart")


def mixture_section(sources: Sequence[Source]) -> Section:
    """Build the section on training data: how many examples each dataset has, and how often they were sampled."""
    runs = [(source.name, [_mixture(source, stage) for stage in source.history.mixtures]) for source in sources]
    notes = [source.missing["log"] for source in sources if "log" in source.missing]
    return Section("mixture", "Training data", {"notes": notes, "runs": runs})


def _mixture(source: Source, stage: str) -> dict[str, Any]:
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
    # Steps are counted over all stages, so a step belongs to the first stage that ends at it or later. What comes
    # after the last end, or without any stage in the log, belongs to the last.
    stages = list(history.stages) or [""]
    ends, total = [], 0
    for stage in history.stages.values():
        total += stage.steps
        ends.append(total)
    place = 0
    for step in history.steps:
        while place + 1 < len(stages) and step.total > ends[place]:
            place += 1
        seen.setdefault(stages[place], Counter()).update(step.datasets)
    return seen


def parameters_section(sources: Sequence[Source]) -> Section:
    """Build the section on trainable parameters: by group, and how much of the weights depends on the language."""
    runs = [(s.name, [_parameters(s, name, event) for name, event in s.history.stages.items()]) for s in sources]
    notes = [source.missing["log"] for source in sources if "log" in source.missing]
    return Section("parameters", "Trainable parameters", {"notes": notes, "runs": runs})


def _parameters(source: Source, stage: str, event: StageStarted) -> dict[str, Any]:
    def share(trained: int, total: int) -> str:
        return f"{100 * trained / total:.2f} %" if total else ""

    groups = event.parameter_report
    rows: list[Row] = [[g.name, f"{g.total:,}", f"{g.trained:,}", share(g.trained, g.total)] for g in groups]
    trained, total = sum(group.trained for group in groups), sum(group.total for group in groups)
    foot = [["all", f"{total:,}", f"{trained:,}", share(trained, total)]]
    of_stage = f"of {source.name}, stage {stage}"
    table = Table(f"Parameters {of_stage}", ["group", "parameters", "trainable", "share"], rows, foot)
    weight_std = None
    if event.weight_std:
        scales: list[Row] = [[name, f"{value:.3g}"] for name, value in event.weight_std.items()]
        weight_std = Table(f"Initial scale of the adapters {of_stage}", ["tensor", "standard deviation"], scales)

    # Weights may lose their dependence on the language in training. Then all languages have the same ones.
    changes, dead = [], []
    if shares := source.history.shares.get(stage):
        for task, after in shares.after.items():
            before = shares.before.get(task)
            changes.append(f"{task} {math.nan if before is None else 100 * before:.0f} % → {100 * after:.0f} %")
            if before is not None and after < DEAD <= before:
                dead.append(task)
    return {"table": table, "steps": event.steps, "weight_std": weight_std, "shares": changes, "dead": dead}
