"""The verdict: which run is better, in what and by how much, and what else may explain the difference."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from polyloom.conditions import Condition
from polyloom.evaluate.matrix import MARK, Matrix
from polyloom.metrics.score import Metric, Score, metric_title
from polyloom.metrics.significance import LEVEL, BootstrapTest, holm, mean_difference
from polyloom.report.elements import Section, interval, joined_with_and, listed, p_value, signed
from polyloom.report.sections.comparison import Compared
from polyloom.report.sections.settings import differing_settings
from polyloom.report.sources import Source

_UNEQUAL = 0.05  # relative difference of training tokens that is worth a caveat


class Finding(NamedTuple):
    """A result for one task: a claim, and the numbers behind it."""

    claim: str
    numbers: str


class Caveat(NamedTuple):
    """Something that limits the conclusion."""

    title: str
    text: str


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
        """0 if the first run is better, 1 if the second one is, ``None`` if the difference is not significant."""
        if self.corrected >= LEVEL:
            return None
        return 0 if (self.comparison.difference > 0) == self.metric.higher_is_better else 1

    def numbers(self) -> str:
        """Write means, difference, interval and p-value."""
        a, b = self.means
        return (
            f"mean {_title(self.metric)} over {_counted(self.conditions)}: {a:.1f} against {b:.1f}, "
            f"difference {signed(a - b)} (95 % interval {interval(self.comparison.low, self.comparison.high)}, "
            f"p {p_value(self.corrected)})"
        )


def verdict_section(sources: Sequence[Source], compared: Sequence[Compared]) -> Section:
    """Build the verdict.

    Args:
        sources: The runs.
        compared: The comparison of the first run with each further one.
    """
    first, *others = sources
    verdicts = [_on_pair(first, other, result) for other, result in zip(others, compared, strict=True)]
    return Section("verdict", "Result", {"verdicts": verdicts or [_on_run(first)]})


def _on_run(source: Source) -> Verdict:
    """Summarize the scores of a single run: mean, best and worst language, and zero-shot languages alone."""
    if source.matrix is None:
        return Verdict("", f"{source.name} has no scores yet. Run: {source.evaluation}", [], caveats([source]))
    matrix, findings = source.matrix, []
    tasks = _first_scores(matrix)
    for task, (metric, scores) in tasks.items():
        ranked = sorted(scores, key=lambda c: scores[c].value, reverse=metric.higher_is_better)
        text = f"Mean {_title(metric)} over {_counted(ranked)}"
        if len(ranked) > 1:
            best, worst = (f"{'/'.join(c.languages)} {scores[c].value:.1f}" for c in (ranked[0], ranked[-1]))
            text += f"; best {best}, worst {worst}"
        zero_shot = [c for c in scores if matrix.results[c].zero_shot]
        if 0 < len(zero_shot) < len(scores):
            mean = matrix.mean(task, metric.name, zero_shot=True)
            text += f"; zero-shot only: {mean:.1f} over {_counted(zero_shot)}"
        mean = matrix.mean(task, metric.name)
        findings.append(Finding(f"{task}: {metric_title(metric.name)} {mean:.1f}.", f"{text}."))
    headline = f"{source.name} was scored on {joined_with_and(list(tasks))} ({source.split} data)."
    return Verdict("", headline, findings, caveats([source]))


def _on_pair(first: Source, other: Source, compared: Compared) -> Verdict:
    """Say which of two runs is better, task by task, and where zero-shot languages alone show another winner."""
    names, heading = (first.name, other.name), f"{first.name} and {other.name}"
    if isinstance(compared, str) or first.matrix is None or other.matrix is None:
        return Verdict(heading, f"No comparison: {compared}", [], caveats([first, other]))
    a, b = first.matrix, other.matrix
    zero_shot = {c for c, result in a.results.items() if c in b.results and result.zero_shot and b.results[c].zero_shot}
    zero_shot_results = {result.task: result for result in task_results(a, b, zero_shot)}

    # A difference of means may come from languages with training data alone. So languages that are zero-shot for both
    # runs are compared too, and a task with another winner there is reported.
    findings = []
    won: tuple[list[str], list[str]] = [], []
    won_zero_shot_only: tuple[list[str], list[str]] = [], []
    undecided: list[str] = []
    for result in task_results(a, b):
        numbers = result.numbers()
        text = f"{numbers[0].upper()}{numbers[1:]}."
        part = zero_shot_results.get(result.task)
        if part and len(part.conditions) < len(result.conditions):
            text += f" Zero-shot only: {part.numbers()}."
        if part and part.better is not None and part.better != result.better:
            won_zero_shot_only[part.better].append(result.task)
        (undecided if result.better is None else won[result.better]).append(result.task)
        claim = "no significant difference" if result.better is None else f"{names[result.better]} is better"
        findings.append(Finding(f"{result.task}: {claim}.", text))

    clauses = [
        f"{names[side]} is better than {names[1 - side]} in {joined_with_and(won[side])}"
        for side in (0, 1)
        if won[side]
    ]
    if undecided and clauses:
        clauses.append(f"no significant difference in {joined_with_and(undecided)}")
    elif undecided:
        clauses = [f"{names[0]} and {names[1]} do not differ significantly in {joined_with_and(undecided)}"]
    headline = "; ".join(clauses) + "."
    for name, tasks in zip(names, won_zero_shot_only, strict=True):
        headline += f" On zero-shot languages alone, {name} is better in {joined_with_and(tasks)}." if tasks else ""
    return Verdict(heading, headline, findings, caveats([first, other]))


def task_results(a: Matrix, b: Matrix, conditions: Collection[Condition] | None = None) -> list[TaskResult]:
    """Compare two runs task by task, by each task's first metric.

    Args:
        a: Scores of the first run.
        b: Scores of the second run, on the same data.
        conditions: Only these. Default: all that both were scored on.
    """
    tasks_a, tasks_b = _first_scores(a), _first_scores(b)
    compared = []
    for task, (metric, scores) in tasks_a.items():
        others = tasks_b[task][1] if task in tasks_b and tasks_b[task][0] == metric else {}
        common = [c for c in scores if c in others and (conditions is None or c in conditions)]
        pairs = [(scores[c], others[c]) for c in common]
        if pairs and all(score.count > 1 for score, _ in pairs):  # a single sentence cannot be resampled
            compared.append((task, metric, common, pairs, mean_difference(pairs)))
    # One test per task, so Holm's correction is over tasks. That of `compare` is over all scores of all languages.
    corrected = holm([comparison.p_value for *_, comparison in compared])
    results = []
    for (task, metric, common, pairs, comparison), p in zip(compared, corrected, strict=True):
        means = fmean(ours.value for ours, _ in pairs), fmean(theirs.value for _, theirs in pairs)
        results.append(TaskResult(task, metric, common, means, comparison, p))
    return results


def _first_scores(matrix: Matrix) -> dict[str, tuple[Metric, dict[Condition, Score]]]:
    """Collect the first score of every condition, by task."""
    tasks: dict[str, tuple[Metric, dict[Condition, Score]]] = {}
    for condition, result in matrix.results.items():
        score = result.scores[0]
        # Only scores of one metric can be averaged. Evaluations are stored together, and one of them may have scored
        # translations by perplexity, another one by BLEU.
        metric, scores = tasks.setdefault(condition.task, (score.metric, {}))
        if metric == score.metric:
            scores[condition] = score
    return tasks


def _title(metric: Metric) -> str:
    return metric_title(metric.name) + ("" if metric.higher_is_better else " (lower is better)")


def _counted(conditions: Sequence[Condition]) -> str:
    noun = "language" if all(condition.target is None for condition in conditions) else "direction"
    return f"{len(conditions)} {noun}{'' if len(conditions) == 1 else 's'}"


# -- caveats ----------------------------------------------------------------------------------------------------------


def caveats(sources: Sequence[Source]) -> list[Caveat]:
    """List what besides the methods may explain the scores of a run, or the difference between two."""
    limits: list[Caveat] = []
    if len(sources) == 2 and set(differing_settings(sources)) == {"train.seed"}:
        text = "the runs differ only in their seed, so a difference is due to chance in training."
        limits.append(Caveat("Same settings", text))
    else:
        seeds = joined_with_and([f"{source.recipe.train.seed} for {source.name}" for source in sources])
        text = (
            f"each run was trained once (seed {seeds}). Intervals and p-values cover the choice of test sentences, not "
            "the variation between seeds. Repeat with other seeds before you draw a conclusion."
        )
        limits.append(Caveat("One seed", text))
    if len(sources) == 2:
        limits += _caveats_of_pair(*sources)
    for source in sources:
        if not source.history.done and source.history.steps:
            steps = source.history.steps[-1].total
            text = f"{source.name} is still in training or was stopped, after {steps:,} steps."
            limits.append(Caveat("Unfinished", text))
    if sources[0].split != "test":
        text = "the checkpoints were chosen on these data, so scores are optimistic."
        limits.append(Caveat("Validation data", text))
    results = [item for source in sources if source.matrix for item in source.matrix.results.items()]
    zero_shot = list(dict.fromkeys(condition for condition, result in results if result.zero_shot))
    if zero_shot:
        text = (
            f"{len(zero_shot)} of {len(dict(results))} scored conditions are zero-shot (marked {MARK}): no labelled "
            f"example of the task in that language was in the training data ({listed(zero_shot, 8)})."
        )
        limits.append(Caveat("Zero-shot", text))
    return limits


def _caveats_of_pair(first: Source, other: Source) -> Iterator[Caveat]:
    pair = [first, other]

    # Names of corpora and their contents: a file may have changed between the runs.
    data = [source.recipe.data.train for source in pair]
    hashes: list[Mapping[str, str]] = [s.history.begin.corpora if s.history.begin else {} for s in pair]
    parts = []
    for source, theirs in ((first, data[1]), (other, data[0])):
        only = [name for name in source.recipe.data.train if name not in theirs]
        parts += [f"only {source.name} was trained on {listed(only, 8)}"] if only else []
    changed = [name for name in data[0] if name in data[1] and data[0][name] != data[1][name]]
    parts += [f"they were trained on different corpora for {listed(changed, 8)}"] if changed else []
    rewritten = [name for name in hashes[0] if name in hashes[1] and hashes[0][name] != hashes[1][name]]
    parts += [f"the contents of {listed(rewritten, 4)} changed between the runs"] if rewritten else []
    if parts:
        yield Caveat("Unequal training data", "; ".join(parts) + ".")

    steps = [source.history.steps[-1].total if source.history.steps else 0 for source in pair]
    tokens = [s.history.done.tokens if s.history.done else sum(step.tokens for step in s.history.steps) for s in pair]
    if steps[0] != steps[1] or abs(tokens[0] - tokens[1]) > _UNEQUAL * max(tokens):
        spent = [f"{source.name} took {steps[i]:,} steps and {tokens[i]:,} tokens" for i, source in enumerate(pair)]
        yield Caveat("Unequal training budgets", f"{joined_with_and(spent)}.")
    if first.recipe.backbone != other.recipe.backbone:
        yield Caveat("Different backbones", "the runs extend different models, or one model with different settings.")

    for source, against in ((first, other), (other, first)):
        if source.matrix and against.matrix:
            results = against.matrix.results
            trained = [c for c, result in source.matrix.results.items() if not result.zero_shot and c in results]
            zero_shot = [condition for condition in trained if results[condition].zero_shot]
            if zero_shot:
                names = listed(zero_shot, 8)
                text = f"{source.name} was trained on the task and language of {names}, {against.name} was not."
                yield Caveat("Zero-shot for one run only", text)
