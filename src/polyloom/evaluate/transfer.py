"""Tabulate transfer: the scores of several runs, by the languages of their labelled data and the language tested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError, suggest
from polyloom.evaluate.matrix import MARK, Matrix
from polyloom.metrics.score import Array, Score
from polyloom.metrics.significance import require_same_data
from polyloom.tasks import TASKS

Cell = tuple[str, str]  # source and target
Scored = tuple[Sequence[str], Matrix]  # conditions with training data, and scores


@dataclass(frozen=True)
class Transfer:
    """Scores of one task by source and target.

    Attributes:
        task: The task.
        metric: Name of the metric.
        sources: Languages with labelled data in training, joined by ``+``: one row each.
        targets: Languages that were tested: one column each.
        scores: The scores ``[source, target]``; NaN where there is none.
        zero_shot: The cells whose target has no labelled data in training.
    """

    task: str
    metric: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    scores: Array
    zero_shot: frozenset[Cell]

    def means(self) -> Array:
        """Compute the mean zero-shot score of each target over sources; NaN if a source has no score for it."""
        means = np.full(len(self.targets), np.nan)
        for column, target in enumerate(self.targets):
            rows = [row for row, source in enumerate(self.sources) if (source, target) in self.zero_shot]
            if rows and not np.isnan(self.scores[:, column]).any():
                means[column] = self.scores[rows, column].mean()
        return means

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and rows as text: zero-shot scores are marked; the last row has means of those."""
        rows = [
            [source, *(self._text(value, (source, target)) for target, value in zip(self.targets, values, strict=True))]
            for source, values in zip(self.sources, self.scores.tolist(), strict=True)
        ]
        means = [self._text(value) for value in self.means().tolist()]
        return [r"source \ target", *self.targets], [*rows, [f"mean of zero-shot{MARK}", *means]]

    def _text(self, value: float, cell: Cell | None = None) -> str:
        return "" if np.isnan(value) else f"{value:.2f}{MARK if cell in self.zero_shot else ''}"


def transfer_table(runs: Mapping[str, Scored], *, task: str | None = None, metric: str | None = None) -> Transfer:
    """Collect the scores of runs of one method into a table of sources by targets.

    The source of a pair of languages such as ``pos/en/sw`` (BAD-X) is its first one. That of all other conditions are
    the languages in which the run has labelled data of the task.

    Args:
        runs: The runs by name.
        task: The task. Default: the only labelled task that was scored.
        metric: The metric. Default: the task's first.

    Raises:
        PolyloomError: The runs differ in method or test data, two have the same source, or there is nothing to show.
    """
    methods = dict.fromkeys(str(matrix.run.get("method")) for _, matrix in runs.values())
    if len(methods) > 1:
        raise PolyloomError(f"transfer: runs of {' and '.join(methods)}. A table is of one method.")
    task = task or _only_task(runs)
    scores: dict[Cell, tuple[str, Score]] = {}  # with the run that each is of
    first_for: dict[str, tuple[str, Score]] = {}  # target
    zero_shot = set()
    for name, (trained_on, matrix) in runs.items():
        labelled = [c.source for c in map(Condition.parse, trained_on) if c.task == task]
        for condition, result in matrix.results.items():
            scores_of_metric = [s for s in result.scores if metric in (None, s.metric.name)]
            if condition.task != task or not scores_of_metric:
                continue
            if not labelled:
                raise PolyloomError(f"transfer: {name} has no labelled data of {task}, so it has no source.")
            target = condition.languages[-1]
            cell = condition.source if condition.target else "+".join(dict.fromkeys(labelled)), target
            if cell in scores:
                raise PolyloomError(
                    f"transfer: {scores[cell][0]} and {name} both have a score from {' to '.join(cell)}."
                )
            scores[cell] = name, scores_of_metric[0]
            if result.zero_shot:
                zero_shot.add(cell)
            # A column compares sources, so all its scores must be of the same test data.
            other, score = first_for.setdefault(target, scores[cell])
            try:
                require_same_data(score, scores_of_metric[0])
            except PolyloomError as error:
                raise PolyloomError(f"transfer: {other} and {name}, {task} in {target}: {error}") from error
    if not scores:
        raise PolyloomError(f"transfer: no run has a score of {task}{f' by {metric}' if metric else ''}.")

    # Targets that are also sources come first and in the same order, so that these cells are the diagonal.
    sources, targets = (tuple(dict.fromkeys(cell[side] for cell in scores)) for side in (0, 1))
    targets = tuple(sorted(targets, key=lambda t: sources.index(t) if t in sources else len(sources)))
    table = np.full((len(sources), len(targets)), np.nan)
    for (source, target), (_, score) in scores.items():
        table[sources.index(source), targets.index(target)] = score.value
    return Transfer(task, score.metric.name, sources, targets, table, frozenset(zero_shot))


def _only_task(runs: Mapping[str, Scored]) -> str:
    scored = dict.fromkeys(condition.task for _, matrix in runs.values() for condition in matrix.results)
    tasks = [task for task in scored if task not in TASKS or not (TASKS[task].raw_text or TASKS[task].generates)]
    if len(tasks) != 1:
        raise PolyloomError(f"transfer: which task? Name one with --task. {suggest('', tasks)}")
    return tasks[0]
