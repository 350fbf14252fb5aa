"""Which layers' weights know their language to what end: ``python experiments/layers.py runs/transfer/hyperx-multi-0``.

Tags of finished runs are scored with a language's own weights in some layers and English's in all others, and with a
stranger's in the lower ones. Results are JSON in docs/results/layers, one file a run; what has one is not scored again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from finished import look_into_runs
from job import HERE
from torch import Tensor

from polyloom.conditions import ConditionIds
from polyloom.io.yaml import read_settings
from polyloom.methods import Method
from polyloom.weights import Site
from polyloom.workflows.run import Run

PEERS = read_settings(HERE / "corpora.yaml")["peer"]
SETS: Mapping[str, Callable[[int, int], bool]] = {
    "none": lambda _layer, _count: False,
    "lower": lambda layer, count: layer < count // 2,
    "upper": lambda layer, count: layer >= count // 2,
    "all": lambda _layer, _count: True,
}


def own_weights_in(method: Method, chosen: Callable[[int, int], bool]) -> None:
    """From now on, only these layers have the weights of the language that is asked for."""
    source, count = method.languages.row("en"), len(method.shape.sites)

    def stack_languages(ids: ConditionIds, sites: Sequence[Site]) -> Tensor:
        own_KS = type(method).stack_languages(method, ids, sites)
        keep_S = torch.tensor([chosen(site.layer, count) for site in sites])
        return torch.where(keep_S, own_KS, source)

    method.stack_languages = stack_languages  # type: ignore[method-assign]


def measure(run: Run) -> dict[str, Any]:
    """Tags with the language's own weights in each set of layers."""
    tags = {name: corpora for name, corpora in run.recipe.data.test.items() if name.startswith("pos/")}
    cells = {}
    for name, chosen in SETS.items():
        own_weights_in(run.model.method, chosen)
        cells[name] = run.evaluate(tags).to_dict()["cells"]
    own_weights_in(run.model.method, SETS["lower"])
    cells["peer"] = {
        name: run.evaluate({(donor := f"pos/{PEERS[name[4:]]}"): corpora}).to_dict()["cells"][donor]
        for name, corpora in tags.items()
        if name[4:] in PEERS
    }
    return {"cells": cells}


if __name__ == "__main__":
    look_into_runs(measure, "layers", __doc__)
