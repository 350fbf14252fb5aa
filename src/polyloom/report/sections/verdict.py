"""The verdict: which run is better, in what and by how much, and what limits the conclusion."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from polyloom.conditions import Condition
from polyloom.evaluate.comparison import LEVEL, holm
from polyloom.evaluate.matrix import Matrix
from polyloom.evaluate.mean_difference import mean_difference
from polyloom.figures.titles import metric_title
from polyloom.metrics.score import Metric, Score
from polyloom.metrics.significance import BootstrapTest
from polyloom.report.caveats import Caveat, caveats_of_pair, caveats_of_run
from polyloom.report.sections.comparison import Compared
from polyloom.report.sources import Source
from polyloom.report.tables import interval, joined_with_and, p_value, signed
from polyloom.report.templating import Section


class Finding(NamedTuple):
    """A result for one task: a claim, and the numbers behind it."""

    claim: str
    numbers: str


class Verdict(NamedTuple):
    """The verdict on two runs, or on one.

    Attributes:
        heading: Which runs; empty for a single run.
        headline: The result in one sentence.
        findings: One per task.
        caveats: What limits the conclusion.
    """

    heading: str
    headline: str
    findings: Sequence[Finding]
    caveats: Sequence[Caveat]


@dataclass(frozen=True)
class TaskResult:
    """Two runs on one task.

    Attributes:
        task: The task.
        metric: Its first metric.
        conditions: What both runs were scored on.
        means: Mean scores of both runs.
        comparison: Difference of the means, interval and p-value.
        corrected: The p-value after Holm's correction for the number of tasks.
    """

    task: str
    metric: Metric
    conditions: Sequence[Condition]
    means: tuple[float, float]
    comparison: BootstrapTest
    corrected: float

    @property
    def better(self) -> int | None:
        """0 if the first run is better, 1 if the second one is, ``None`` if no difference is shown."""
        if self.corrected >= LEVEL:
            return None
        return 0 if (self.comparison.difference > 0) == self.metric.higher_is_better else 1


def verdict_section(sources: Sequence[Source], compared: Sequence[Compared]) -> Section:
    """Build the verdict.

    Args:
        sources: The runs.
        compared: The comparison of the first run with each further one.
    """
    first, *others = sources
    verdicts = [_of_pair(first, other, result) for other, result in zip(others, compared, strict=True)]
    return Section("verdict", "Result", {"verdicts": verdicts or [_of_run(first)]})


def _of_run(source: Source) -> Verdict:
    caveats = caveats_of_run(source)
    if source.matrix is None:
        return Verdict("", f"{source.name} has no scores yet. Run: {source.evaluation}", [], caveats)
    tasks = first_scores(source.matrix)
    headline = f"{source.name} was scored on {joined_with_and(list(tasks))} ({source.split} data)."
    return Verdict("", headline, [_summary(source.matrix, task, *scores) for task, scores in tasks.items()], caveats)


def _summary(matrix: Matrix, task: str, metric: Metric, scores: Mapping[Condition, Score]) -> Finding:
    ranked = sorted(scores, key=lambda c: scores[c].value, reverse=metric.higher_is_better)
    text = f"Mean {_title(metric)} over {_counted(ranked)}"
    if len(ranked) > 1:
        best, worst = (f"{'/'.join(c.languages)} {scores[c].value:.1f}" for c in (ranked[0], ranked[-1]))
        text += f"; best {best}, worst {worst}"
    zero_shot = [c for c in scores if matrix.results[c].zero_shot]
    if 0 < len(zero_shot) < len(scores):
        mean = matrix.mean(task, metric.name, zero_shot=True)
        text += f"; zero-shot only: {mean:.1f} over {_counted(zero_shot)}"
    return Finding(f"{task}: {metric_title(metric.name)} {matrix.mean(task, metric.name):.1f}.", f"{text}.")


def _of_pair(first: Source, other: Source, compared: Compared) -> Verdict:
    names, heading = (first.name, other.name), f"{first.name} and {other.name}"
    caveats = caveats_of_pair(first, other)
    if isinstance(compared, str) or first.matrix is None or other.matrix is None:
        return Verdict(heading, f"No comparison: {compared}", [], caveats)
    a, b = first.matrix, other.matrix
    zero_shot = {c for c, result in a.results.items() if c in b.results and result.zero_shot and b.results[c].zero_shot}
    results, zero_shot_results = task_results(a, b), {r.task: r for r in task_results(a, b, zero_shot)}
    findings = []
    for result in results:
        numbers = _numbers(result)
        text = f"{numbers[0].upper()}{numbers[1:]}."
        part = zero_shot_results.get(result.task)
        if part and len(part.conditions) < len(result.conditions):
            text += f" Zero-shot only: {_numbers(part)}."
        claim = "no difference is shown" if result.better is None else f"{names[result.better]} is better"
        findings.append(Finding(f"{result.task}: {claim}.", text))
    headline = f"{_headline(results, names)}{_reversals(results, zero_shot_results, names)}"
    return Verdict(heading, headline, findings, caveats)


def task_results(a: Matrix, b: Matrix, conditions: Collection[Condition] | None = None) -> list[TaskResult]:
    """Compare two runs task by task, by each task's first metric.

    Args:
        a: Scores of the first run.
        b: Scores of the second run, on the same data.
        conditions: Only these; all that both were scored on by default.
    """
    ours, theirs = first_scores(a), first_scores(b)
    compared = []
    for task, (metric, scores) in ours.items():
        others = theirs[task][1] if task in theirs and theirs[task][0] == metric else {}
        common = [c for c in scores if c in others and (conditions is None or c in conditions)]
        pairs = [(scores[c], others[c]) for c in common]
        if pairs and all(score.count > 1 for score, _ in pairs):
            compared.append((task, metric, common, pairs, mean_difference(pairs)))
    corrected = holm([comparison.p_value for *_, comparison in compared])
    return [
        TaskResult(
            task, metric, common, (_mean(a for a, _ in pairs), _mean(b for _, b in pairs)), comparison, p
        )
        for (task, metric, common, pairs, comparison), p in zip(compared, corrected, strict=True)
    ]  # fmt: skip


def _mean(scores: Iterable[Score]) -> float:
    return fmean(score.value for score in scores)


def first_scores(matrix: Matrix) -> dict[str, tuple[Metric, dict[Condition, Score]]]:
    """Collect the first score of every condition, by task."""
    tasks: dict[str, tuple[Metric, dict[Condition, Score]]] = {}
    for condition, result in matrix.results.items():
        score = result.scores[0]
        metric, scores = tasks.setdefault(condition.task, (score.metric, {}))
        if metric == score.metric:
            scores[condition] = score
    return tasks


def _headline(results: Sequence[TaskResult], names: tuple[str, str]) -> str:
    wins = [[result.task for result in results if result.better == side] for side in (0, 1)]
    open_ = [result.task for result in results if result.better is None]
    parts = [
        f"{names[side]} is better than {names[1 - side]} in {joined_with_and(tasks)}"
        for side, tasks in enumerate(wins)
        if tasks
    ]
    if not parts:
        return f"No difference between {names[0]} and {names[1]} is shown in {joined_with_and(open_)}."
    return "; ".join([*parts, *([f"no difference is shown in {joined_with_and(open_)}"] if open_ else [])]) + "."


def _reversals(results: Sequence[TaskResult], parts: Mapping[str, TaskResult], names: tuple[str, str]) -> str:
    """Report where zero-shot scores show another winner than all scores together."""
    text = ""
    for side, name in enumerate(names):
        tasks = [r.task for r in results if r.task in parts and parts[r.task].better == side and r.better != side]
        text += f" On zero-shot languages alone, {name} is better in {joined_with_and(tasks)}." if tasks else ""
    return text


def _numbers(result: TaskResult) -> str:
    a, b = result.means
    _, low, high, _ = result.comparison
    return (
        f"mean {_title(result.metric)} over {_counted(result.conditions)}: {a:.1f} against {b:.1f}, "
        f"difference {signed(a - b)} (95 % interval {interval(low, high)}, p {p_value(result.corrected)})"
    )


def _title(metric: Metric) -> str:
    return metric_title(metric.name) + ("" if metric.higher_is_better else " (lower is better)")


def _counted(conditions: Sequence[Condition]) -> str:
    noun = "language" if all(condition.target is None for condition in conditions) else "direction"
    return f"{len(conditions)} {noun}{'' if len(conditions) == 1 else 's'}"
