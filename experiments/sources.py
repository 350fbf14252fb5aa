"""How much of a translation is read from its source: ``python experiments/sources.py runs/mt-table/*-[0-9]``.

The loss of every tested translation, and its loss if the source were that of the next pair: what the latter is higher
by says how much a model goes by its source. Results are JSON in docs/results/sources, one file a run, in nats per piece
of every direction; what has one is not scored again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from finished import look_into_runs

from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.records import Bitext
from polyloom.workflows.run import Run


def loss(run: Run, condition: Condition, pairs: Sequence[Bitext]) -> float:
    """Of the targets, given the sources, per piece."""
    found = list(run.predictor.predict(pairs, condition, losses=True))
    total, count = np.sum(found, axis=0)
    return float(total / count)


def measure(run: Run) -> dict[str, Any]:
    """Every direction that was learnt, with its own sources and with others."""
    cells = {}
    for name in run.recipe.data.train:
        condition = Condition.parse(name)
        (corpus,) = run.recipe.data.test[name]
        records = run.model.task("mt").records(resolve(corpus), condition)
        pairs = [record for record in records if isinstance(record, Bitext)]
        moved = [Bitext(other.source, pair.target) for pair, other in zip(pairs, pairs[1:] + pairs[:1], strict=True)]
        cells[name] = {"own": loss(run, condition, pairs), "other": loss(run, condition, moved)}
    return {"cells": cells}


if __name__ == "__main__":
    look_into_runs(measure, "sources", __doc__)
