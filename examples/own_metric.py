"""Add a metric of your own: the share of sentences without any wrong tag.

A metric is a few sufficient statistics per sentence and a function of their sums, so that its confidence intervals and
comparisons work like those of every other metric. A recipe names it for a task: ``tasks: {pos: {metrics: [exact_match,
accuracy]}}``. The first one selects checkpoints.

Use it on the command line: ``polyloom train recipe.yaml --code examples/own_metric.py``.
"""

from collections.abc import Sequence

import numpy as np

import polyloom as pl
from polyloom.extend import Array, Metric, Score, Tagged, TagPrediction, register_metric


def count_exact(records: Sequence[Tagged], predictions: Sequence[TagPrediction]) -> Array:
    """Count for each sentence whether all its tags are right, and one."""
    pairs = zip(records, predictions, strict=True)
    return np.array([[int(record.tags == prediction.labels), 1] for record, prediction in pairs])


EXACT_MATCH = register_metric(
    Metric(
        "exact_match",
        ("exact", "sentences"),
        lambda sums: 100 * sums[..., 0] / sums[..., 1],
        measure=count_exact,
        kinds=("tags",),  # so it can be named for every task whose records are words with tags
    )
)


def main() -> None:
    """Score three sentences, and name the metric in a recipe."""
    records = [Tagged(("a", "b"), ("NOUN", "VERB")), Tagged(("c",), ("ADJ",)), Tagged(("d",), ("NOUN",))]
    labels = [("NOUN", "VERB"), ("NOUN",), ("NOUN",)]
    predictions = [TagPrediction(record.words, tags, ()) for record, tags in zip(records, labels, strict=True)]
    score = Score(EXACT_MATCH, count_exact(records, predictions), "")
    print(f"{score.metric.name}: {score.value:.1f} of {score.count} sentences")
    recipe = pl.parse_recipe(
        {
            "backbone": {"config": {"model_type": "bert", "vocab_size": 100}},
            "method": {"name": "hyperx"},
            "languages": ["en", "tr"],
            "tasks": {"pos": {"labels": 17, "metrics": ["exact_match", "accuracy"]}},
        }
    )
    print("metrics of pos:", *recipe.tasks["pos"].metrics)


if __name__ == "__main__":
    main()
