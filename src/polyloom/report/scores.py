"""Scores: the heat map of tasks and languages, grids of directions, every number with its interval and data."""

import math
from collections.abc import Iterator, Sequence

from polyloom.conditions import Condition
from polyloom.evaluate.matrix import MARK, Matrix, Result
from polyloom.metrics.score import METRICS, Score, read_signature
from polyloom.metrics.significance import bootstrap_interval
from polyloom.report.colors import SCALE, shade
from polyloom.report.html import (
    Markup,
    details,
    escaped,
    figure,
    header_row,
    heat_class,
    joined,
    made_by,
    note,
    row,
    section,
    table,
    tag,
)
from polyloom.report.sources import Source

LISTED = 400  # scores that are listed one by one; more are the business of `polyloom evaluate`
Column = tuple[str, str]  # a task and one of its metrics


class Shading:
    """Colours of one metric of one task, from its worst to its best score in any of the runs."""

    def __init__(self, values: Sequence[float], metric: str) -> None:
        known = METRICS.get(metric)
        self.rising = known.higher_is_better if known else True
        finite = [value for value in values if math.isfinite(value)]
        self.low, self.high = (min(finite), max(finite)) if finite else (0.0, 1.0)

    def of(self, value: float) -> str:
        """The class of a score; perplexities differ by factors."""
        if not math.isfinite(value):
            return ""
        low, high = self.low, self.high
        if not self.rising and low > 0:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 1.0
        return shade(share if self.rising else 1 - share)


def scores_section(sources: Sequence[Source]) -> Markup:
    """The section on scores."""
    scored = [source for source in sources if source.matrix]
    parts: list[Markup | None] = [note(source.missing["scores"]) for source in sources if "scores" in source.missing]
    if scored:
        columns = _columns(scored)
        grids = [column for column in columns if _is_grid(scored, column[0])]
        plain = [column for column in columns if column not in grids]
        if plain:
            parts.append(_heat_map(scored, plain))
        parts += [_grid(source, column, _shading(scored, column)) for column in grids for source in scored]
        parts += [_legend(), _refusals(scored), _listing(scored)]
    return section("scores", "Scores", *parts)


def _columns(scored: Sequence[Source]) -> list[Column]:
    return list(dict.fromkeys(column for source in scored if source.matrix for column in source.matrix.metrics()))


def _results(source: Source, task: str) -> Iterator[tuple[Condition, Result]]:
    assert source.matrix is not None
    return ((c, result) for c, result in source.matrix.results.items() if c.task == task)


def _is_grid(scored: Sequence[Source], task: str) -> bool:
    """Whether directions are better seen as sources by targets than one below another."""
    conditions = [c for source in scored for c, _ in _results(source, task)]
    sources, targets = {c.source for c in conditions}, {c.target for c in conditions}
    return None not in targets and len(sources) > 1 and len(targets) > 1


def _score(result: Result | None, metric: str) -> Score | None:
    return next((score for score in result.scores if score.metric.name == metric), None) if result else None


def _shading(scored: Sequence[Source], column: Column) -> Shading:
    task, metric = column
    found = (_score(result, metric) for source in scored for _, result in _results(source, task))
    return Shading([score.value for score in found if score], metric)


def _heat_map(scored: Sequence[Source], columns: Sequence[Column]) -> Markup:
    """Languages by tasks, the runs side by side within each task."""
    shadings = {column: _shading(scored, column) for column in columns}
    heads = _heads(scored, columns)
    tasks = {task for task, _ in columns}
    conditions = [c for s in scored if s.matrix for c in (*s.matrix.results, *s.matrix.refused) if c.task in tasks]
    languages = dict.fromkeys("/".join(c.languages) for c in conditions)
    rows = [
        row(language, *(_result(s.matrix, f"{column[0]}/{language}", column[1], shadings[column])
                        for column in columns for s in scored if s.matrix))
        for language in languages
    ]  # fmt: skip
    foot = [
        row(name, *(_mean(s.matrix, column, zero_shot=kind) for column in columns for s in scored if s.matrix))
        for name, kind in (("mean", None), ("… trained", False), (f"… zero-shot {MARK}", True))
    ]
    label = "Scores by language and task"
    drawn = table(label, joined(heads), rows, foot=joined(foot), class_="heat")
    return figure(drawn, caption=joined([f"{label}. ", _made(scored)]))


def _heads(scored: Sequence[Source], columns: Sequence[Column]) -> list[Markup]:
    names = [f"{task} {metric}" for task, metric in columns]
    if len(scored) == 1:
        return [header_row("language", *names)]
    groups = (tag("th", name, scope="colgroup", colspan=len(scored)) for name in names)
    runs = (tag("th", source.name, scope="col") for _ in columns for source in scored)
    return [tag("tr", tag("th", "language", scope="col", rowspan=2), *groups), tag("tr", *runs)]


def _made(scored: Sequence[Source]) -> Markup:
    return made_by(*(source.evaluation for source in scored))


def _result(matrix: Matrix, name: str, metric: str, shading: Shading) -> Markup:
    """A score in its colour; a dash where the method refused, nothing where nobody asked."""
    condition = Condition.parse(name)
    if condition in matrix.refused:
        return tag("td", "–", title=matrix.refused[condition])
    result = matrix.results.get(condition)
    score = _score(result, metric)
    if result is None or score is None:
        return tag("td")
    colors = shading.of(score.value)
    return tag(
        "td", _text(score, result.zero_shot), class_=f"{colors} z".strip() if result.zero_shot else colors or None
    )


def _text(score: Score, zero_shot: bool) -> str:
    value = score.value
    return (f"{value:.1f}" if abs(value) < 1000 else f"{value:.3g}") + (MARK if zero_shot else "")


def _mean(matrix: Matrix, column: Column, *, zero_shot: bool | None) -> str:
    mean = matrix.mean(*column, zero_shot=zero_shot)
    return f"{mean:.1f}" if math.isfinite(mean) else ""


def _grid(source: Source, column: Column, shading: Shading) -> Markup:
    """Directions of one run by one metric: from rows to columns."""
    assert source.matrix is not None
    (task, metric), matrix = column, source.matrix
    conditions = [c for c in (*matrix.results, *matrix.refused) if c.task == task]
    languages = dict.fromkeys(language for c in conditions for language in c.languages)
    sources, targets = ([one for one in languages if one in {getattr(c, side) for c in conditions}]
                        for side in ("source", "target"))  # fmt: skip
    rows = [
        row(one, *(_result(matrix, f"{task}/{one}/{other}", metric, shading)
                   if one != other else tag("td", class_="same")
                   for other in targets))
        for one in sources
    ]  # fmt: skip
    label = f"{task} {metric} of {source.name}, from the language of the row into that of the column"
    drawn = table(label, header_row("from ↓ into →", *targets), rows, class_=heat_class(len(targets)))
    mean = matrix.mean(task, metric)
    return figure(drawn, caption=joined([f"{label}; mean {mean:.1f}. ", made_by(source.evaluation)]))


def _legend() -> Markup:
    swatches = tag(
        "span", *(tag("span", class_=f"s{i}") for i in range(len(SCALE))), class_="scale", aria_hidden="true"
    )
    meaning = f"{MARK} and a dashed frame: zero-shot, no labelled example of this task in this language in training."
    return note(
        "worst ", swatches, " best of each column (of all runs). ", meaning, " –: the method cannot serve this."
    )


def _refusals(scored: Sequence[Source]) -> Markup | None:
    refused = [(s.name, c, reason) for s in scored if s.matrix for c, reason in s.matrix.refused.items()]
    if not refused:
        return None
    items = (tag("li", tag("b", f"{name}, {condition}"), f": {reason}") for name, condition, reason in refused)
    return details(f"What was refused, and why ({len(refused)})", tag("ul", *items))


def _listing(scored: Sequence[Source]) -> Markup:
    """Every score with its interval and what it was measured on."""
    found = [
        (source.name, condition, score)
        for source in scored if source.matrix
        for condition, result in source.matrix.results.items()
        for score in result.scores
    ]  # fmt: skip
    if len(found) > LISTED:
        return note(f"{len(found)} scores: too many to list each with its interval and corpus. "
                    "polyloom evaluate RUN --bootstrap --signatures does.")  # fmt: skip
    rows = []
    for name, condition, score in found:
        fields = read_signature(score.signature)
        corpus = fields.get("corpus", ""), tag("code", fields.get("sha256", "")), f"{score.count:,}"
        rows.append(
            row(joined([name, " ", condition]), score.metric.name, f"{score.value:.2f}", _interval(score), *corpus)
        )
    head = header_row("run, condition", "metric", "score", "95 % interval", "corpus", "sha256", "sentences")
    listed = table("Every score with its interval and corpus", head, rows, class_="numbers")
    return details(
        "Every score with its interval and corpus",
        listed,
        note("Bootstrap over sentences, as polyloom evaluate --bootstrap has it."),
    )


def _interval(score: Score) -> Markup:
    if score.count < 2:
        return escaped("")
    low, high = bootstrap_interval(score, 0)
    return escaped(f"{low:.2f} to {high:.2f}")
