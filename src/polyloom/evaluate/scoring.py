"""Score a condition on corpora."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyloom.conditions import Condition
from polyloom.data.catalog import Corpus
from polyloom.inference.predictor import Predictor
from polyloom.metrics.score import PERPLEXITY, Array, Metric, Score, signature


def score_corpora(
    predictor: Predictor,
    condition: Condition,
    corpora: Sequence[Corpus],
    *,
    losses: bool = False,
    predictions: Sequence[Any] | None = None,
) -> list[Score]:
    """Score a condition on corpora by all metrics of its task, the one that selects checkpoints first.

    Args:
        predictor: The model.
        condition: The task, and the languages whose weights are used.
        corpora: The test data.
        losses: Score tasks that generate text by perplexity instead, without generating.
        predictions: The predictions, if they are known already.
    """
    task = predictor.model.task(condition.task)
    records = [record for corpus in corpora for record in task.records(corpus, condition)]
    if predictions is None:
        predictions = list(predictor.predict(records, condition, losses=losses))
    if task.generates and losses:
        measured: Mapping[Metric, Array] = {PERPLEXITY: np.array(predictions, dtype=np.float64)}
    else:
        measured = task.measure_chosen(records, predictions, condition.languages[-1])
        if task.generates and predictor.extra_metrics:
            measured = {**measured, **predictor.extra_metrics(records, predictions)}
    name = "+".join(corpus.name for corpus in corpora)
    sha256 = corpora[0].sha256
    if len(corpora) > 1:
        sha256 = hashlib.sha256("+".join(corpus.sha256 for corpus in corpora).encode()).hexdigest()
    return [
        Score(
            metric,
            statistics_NP,
            signature(metric, statistics_NP, condition=str(condition), corpus=name, sha256=sha256),
        )
        for metric, statistics_NP in measured.items()
    ]
