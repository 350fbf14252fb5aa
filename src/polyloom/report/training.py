"""How the runs went: learning curves, what the batches were made of, what learnt."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from polyloom.report.html import Markup, details, figure, header_row, joined, note, row, section, table, tag
from polyloom.report.plots import STYLES, Line, Point, bar, chart, legend, pair_bar, thinned
from polyloom.report.sources import Event, History, Source
from polyloom.tasks import TASKS

DEAD = 0.01  # share of weights that is a language's own, below which languages cannot be told apart


def training_sections(sources: Sequence[Source]) -> list[Markup]:
    """Curves, mixture, audit."""
    absent = [note(source.missing["log"]) for source in sources if "log" in source.missing]
    return [
        section("curves", "Learning curves", *absent, *_curves(sources)),
        section("mixture", "Mixture", *absent, *(part for source in sources for part in _mixture(source, sources))),
        section(
            "parameter_report",
            "What learnt",
            *absent,
            *(part for source in sources for part in _audit(source, sources)),
        ),
    ]


def _curves(sources: Sequence[Source]) -> Iterator[Markup]:
    """Small charts: the loss of every task, then its validation scores, all runs in each."""
    drawn = [source for source in sources if source.history.steps]
    if not drawn:
        return
    names = legend([source.name for source in drawn])
    if names:
        yield names
    tasks = dict.fromkeys(task for s in drawn for step in s.history.steps for task in step["losses"])
    charts = [_loss_chart(drawn, task) for task in tasks]
    validated = dict.fromkeys(
        name.partition("/")[0] for s in drawn for v in s.history.validations for name in v["scores"]
    )
    charts += [_validation_chart(drawn, task) for task in validated]
    yield tag("div", *(one for one in charts if one), class_="charts")
    if validated:
        said = "mean over languages; the band reaches from the lowest to the highest, the ring is"
        yield note(f"Validation: {said} the checkpoint with the best mean over all that is validated.")
    skipped = {s.name: sum(step["event"] == "skipped" for step in s.history.steps) for s in drawn}
    for name, count in skipped.items():
        if count:
            yield note(f"{name}: {count} steps were skipped, because a loss or a gradient was not finite.")


def _loss_chart(sources: Sequence[Source], task: str) -> Markup | None:
    lines = []
    for style, source in enumerate(sources):
        points = [(float(s["total"]), float(s["losses"][task])) for s in source.history.steps if task in s["losses"]]
        if points:
            lines.append(Line(thinned(points), style % STYLES))
    if not lines:
        return None
    label = f"Loss of {task} by step"
    return figure(chart(lines, label=label, end=_last(sources), borders=_borders(sources)), caption=label)


def _validation_chart(sources: Sequence[Source], task: str) -> Markup | None:
    """The mean over languages, with a band from the lowest to the highest; the chosen checkpoints ringed."""
    lines = []
    for style, source in enumerate(sources):
        points: list[Point] = []
        band: list[tuple[float, float, float]] = []
        best: list[Point] = []
        for one in source.history.validations:
            values = [v for name, v in one["scores"].items() if name.partition("/")[0] == task and v is not None]
            if values:
                points.append((float(one["total"]), sum(values) / len(values)))
                band.append((float(one["total"]), min(values), max(values)))
                best = [points[-1]] if one["best"] else best
        if points:
            lines.append(Line(points, style % STYLES, band if len(points) > 1 else (), best))
    if not lines:
        return None
    metric = "perplexity" if task == "mt" or task not in TASKS else TASKS[task].metrics[0].name
    label = f"Validation of {task} by step: {metric}"
    return figure(
        chart(lines, label=label, end=_last(sources), borders=_borders(sources), log=metric == "perplexity"),
        caption=label,
    )


def _last(sources: Sequence[Source]) -> float:
    return max(float(source.history.steps[-1]["total"]) for source in sources)


def _borders(sources: Sequence[Source]) -> list[float]:
    """Where stages end, if all runs agree on it."""
    found = {tuple(_ends(source.history)) for source in sources}
    return list(found.pop()) if len(found) == 1 else []


def _ends(history: History) -> list[float]:
    ends, total = [], 0
    for stage in history.stages.values():
        total += stage["steps"]
        ends.append(float(total))
    return ends[:-1]


def _mixture(source: Source, sources: Sequence[Source]) -> Iterator[Markup]:
    """For every stage and cell, its share of the data and of what was drawn."""
    if source.history.mixtures:
        yield from _title(source, sources)
    seen = _drawn(source.history)
    for stage, results in source.history.mixtures.items():
        examples = sum(size for _, size, *_ in results)
        rows_seen = sum(seen[stage].values())
        most = max(max(share, size / examples) for _, size, share, _ in results)
        rows = [
            row(
                result, f"{size:,}", f"{100 * size / examples:.1f} %", f"{100 * share:.1f} %",
                f"{100 * seen[stage][result] / rows_seen:.1f} %" if rows_seen else "",
                tag("td", pair_bar(size / examples, share, most=most), class_="plot"), f"{passes:.2f}",
            )
            for result, size, share, passes in results
        ]  # fmt: skip
        head = header_row("dataset", "examples", "of the data", "of the draws", "of rows seen", "drawn", "passes")
        label = f"Mixture of stage {stage} of {source.name}"
        caption = f"{label}. Outlined: share of the data; filled: share of the draws, which are rows or tokens."
        yield figure(table(label, head, rows, class_="numbers"), caption=caption)


def _drawn(history: History) -> dict[str, Counter[str]]:
    """Rows of every cell in the batches of every stage, as they were counted."""
    seen: dict[str, Counter[str]] = {stage: Counter() for stage in history.stages}
    names = iter(history.stages.items())
    stage, event = next(names, ("", {"steps": math.inf}))
    end = event["steps"]
    for step in history.steps:
        while step["total"] > end and (following := next(names, None)):
            stage, end = following[0], end + following[1]["steps"]
        seen.setdefault(stage, Counter()).update(step["datasets"])
    return seen


def _audit(source: Source, sources: Sequence[Source]) -> Iterator[Markup]:
    """Groups of parameters: how many there are, how many learn, in every stage."""
    if source.history.stages:
        yield from _title(source, sources)
    for stage, event in source.history.stages.items():
        groups = event["parameter_report"]
        rows = [
            row(
                group["name"], f"{group['total']:,}", f"{group['trained']:,}",
                tag("td", bar(group["trained"] / group["total"] if group["total"] else 0.0), class_="plot"),
            )
            for group in groups
        ]  # fmt: skip
        trained, total = (sum(group[key] for group in groups) for key in ("trained", "total"))
        foot = row("all", f"{total:,}", f"{trained:,}", f"{100 * trained / total:.2f} %" if total else "")
        label = f"Parameters in stage {stage} of {source.name}"
        head = header_row("group", "parameters", "learn", "share")
        yield figure(
            table(label, head, rows, foot=foot, class_="numbers"), caption=f"{label}: {event['steps']:,} steps."
        )
        if event.get("weight_std"):
            yield _scales(source, event)
        if stage in source.history.shares:
            yield from _shares(source.history.shares[stage])


def _scales(source: Source, event: Event) -> Markup:
    rows = [row(name, f"{value:.3g}") for name, value in event["weight_std"].items()]
    label = f"How large the weights of a condition of {source.name} began in stage {event['stage']}"
    return details(label, table(label, header_row("tensor", "standard deviation"), rows, class_="numbers"))


def _shares(event: Event) -> Iterator[Markup]:
    """How much of the weights is a language's own, and a warning where that went to nothing."""
    said = [
        f"{task} {100 * event['before'].get(task, math.nan):.0f} % → {100 * after:.0f} %"
        for task, after in event["after"].items()
    ]
    if said:
        yield note(f"Share of the weights that is a language's own, before and after: {', '.join(said)}.")
    dead = [t for t, after in event["after"].items() if after < DEAD <= event["before"].get(t, 0.0)]
    if dead:
        yield note(
            joined([tag("strong", "⚠ Dead weights: "), f"all languages have the same weights for {', '.join(dead)}."])
        )


def _title(source: Source, sources: Sequence[Source]) -> Iterator[Markup]:
    if len(sources) > 1:
        yield tag("h3", source.name)
