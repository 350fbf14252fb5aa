"""Add a metric of your own: the share of sentences without any mistake.

A metric is a few sufficient statistics per sentence and a function of their sums, so that its confidence intervals and
comparisons work like those of every other metric.
"""

import numpy as np

from polyloom.extend import Metric, Score, register_metric

EXACT_MATCH = register_metric(
    Metric("exact_match", ("exact", "sentences"), lambda sums: 100 * sums[..., 0] / sums[..., 1])
)


def exact_match_statistics(gold: list[list[str]], predicted: list[list[str]]) -> np.ndarray:
    """Count for each sentence whether all its labels are right, and one."""
    return np.array([[int(g == p), 1] for g, p in zip(gold, predicted, strict=True)])


def main() -> None:
    """Score three sentences."""
    gold = [["NOUN", "VERB"], ["ADJ"], ["NOUN"]]
    predicted = [["NOUN", "VERB"], ["NOUN"], ["NOUN"]]
    score = Score(EXACT_MATCH, exact_match_statistics(gold, predicted), "")
    print(f"{score.metric.name}: {score.value:.1f} of {score.count} sentences")


if __name__ == "__main__":
    main()
