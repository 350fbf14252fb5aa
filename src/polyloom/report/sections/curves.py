"""Learning curves: training losses and validation scores of all runs, over steps."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from polyloom.figures.curves import Curve, Point, curve_figure, line_sample, thinned
from polyloom.figures.titles import metric_title
from polyloom.metrics.score import PERPLEXITY
from polyloom.report.sources import Source
from polyloom.report.templating import Section, inline
from polyloom.tasks import TASKS
from polyloom.training.events import StepSkipped
from polyloom.training.history import History

Chart = tuple[str, Markup]  # caption and SVG


def curves_section(sources: Sequence[Source]) -> Section:
    """Build small charts, one for each task's loss and one for its validation score."""
    logged = [source for source in sources if source.history.steps]
    tasks = dict.fromkeys(task for s in logged for step in s.history.steps for task in step.losses)
    validated = dict.fromkeys(
        name.partition("/")[0] for s in logged for v in s.history.validations for name in v.scores
    )
    charts = [_loss_chart(logged, task) for task in tasks] + [_validation_chart(logged, task) for task in validated]
    legend = [(s.name, inline(line_sample(i), label="Line of", classes="sample")) for i, s in enumerate(logged)]
    skipped = [(s.name, sum(isinstance(step, StepSkipped) for step in s.history.steps)) for s in logged]
    data: dict[str, Any] = {
        "notes": [source.missing["log"] for source in sources if "log" in source.missing],
        "legend": legend if len(legend) > 1 else [],
        "charts": [chart for chart in charts if chart],
        "validated": bool(validated),
        "skipped": [(name, count) for name, count in skipped if count],
    }
    return Section("curves", "Learning curves", data)


def loss_unit(task: str) -> str:
    """Return the unit of a task's training loss."""
    per_token = task not in TASKS or TASKS[task].generates or TASKS[task].metrics[0] is PERPLEXITY
    return "nats per token" if per_token else "nats per label"


def _loss_chart(sources: Sequence[Source], task: str) -> Chart | None:
    curves = []
    for series, source in enumerate(sources):
        points = [(float(s.total), float(s.losses[task])) for s in source.history.steps if task in s.losses]
        if points:
            curves.append(Curve(thinned(points), series))
    return _chart(curves, sources, f"Training loss of {task}", loss_unit(task)) if curves else None


def _validation_chart(sources: Sequence[Source], task: str) -> Chart | None:
    """Draw the mean over languages, a band from the lowest to the highest, and a ring at the chosen checkpoint."""
    curves, metric = [], ""
    for series, source in enumerate(sources):
        points: list[Point] = []
        band: list[tuple[float, float, float]] = []
        best: list[Point] = []
        for validation in source.history.validations:
            scores = validation.scores.items()
            values = [v for name, v in scores if name.partition("/")[0] == task and v is not None]
            if values:
                metric = next(m for name, m in validation.metrics.items() if name.partition("/")[0] == task)
                points.append((float(validation.total), sum(values) / len(values)))
                band.append((float(validation.total), min(values), max(values)))
                best = [points[-1]] if validation.best else best
        if points:
            curves.append(Curve(points, series, band if len(points) > 1 else (), best))
    if not curves:
        return None
    if metric == PERPLEXITY.name:
        return _chart(curves, sources, f"Validation of {task}", "perplexity per token", log=True)
    return _chart(curves, sources, f"Validation of {task}", metric_title(metric))


def _chart(curves: Sequence[Curve], sources: Sequence[Source], title: str, unit: str, *, log: bool = False) -> Chart:
    end = max(float(source.history.steps[-1].total) for source in sources)
    figure = curve_figure(curves, label=unit, end=end, borders=_borders(sources), log=log)
    caption = f"{title} ({unit})"
    return caption, inline(figure, label=f"{caption} by step", classes="figure chart")


def _borders(sources: Sequence[Source]) -> list[float]:
    """List the steps at which stages end, if all runs have the same."""
    borders = {tuple(_ends(source.history)) for source in sources}
    return list(borders.pop()) if len(borders) == 1 else []


def _ends(history: History) -> list[float]:
    ends, total = [], 0
    for stage in history.stages.values():
        total += stage.steps
        ends.append(float(total))
    return ends[:-1]
