"""Analyse finished runs: weights of some layers, losses with a wrong source, magnitudes of generated weights."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.jobs import ENGLISH
from experiments.storage import read_plan, write_result
from polyloom.conditions import Condition, ConditionIds
from polyloom.data.catalog import resolve
from polyloom.data.records import Bitext
from polyloom.methods import Method
from polyloom.weights import Site
from polyloom.workflows.run import Run
from polyloom.workflows.train import prepare_training

PEERS = read_plan("corpora")["peer"]
LAYERS: Mapping[str, Callable[[int, int], bool]] = {
    "none": lambda _layer, _count: False,
    "lower": lambda layer, count: layer < count // 2,
    "upper": lambda layer, count: layer >= count // 2,
    "all": lambda _layer, _count: True,
}


def analyse(name: str, runs: Sequence[Path], *, results: Path) -> None:
    """Analyse every run that has no result of this analysis yet."""
    torch.set_num_threads(1)
    for path in runs:
        result = results / name / f"{path.name}.json"
        if not result.exists():
            write_result(result, {"run": path.name} | ANALYSES[name](Run.load(path)))
            print(path.name, file=sys.stderr)


def layers(run: Run) -> dict[str, Any]:
    """Score tags with a language's own weights in some layers and English weights in the others.

    ``peer`` has the weights of an unrelated language in the lower layers.
    """
    tags = {name: corpora for name, corpora in run.recipe.data.test.items() if name.startswith("pos/")}
    scores = {}
    for name, chosen in LAYERS.items():
        _use_own_weights_in(run.model.method, chosen)
        scores[name] = run.evaluate(tags).to_dict()["results"]
    _use_own_weights_in(run.model.method, LAYERS["lower"])
    scores["peer"] = {
        name: run.evaluate({(donor := f"pos/{PEERS[name[4:]]}"): corpora}).to_dict()["results"][donor]
        for name, corpora in tags.items()
        if name[4:] in PEERS
    }
    return {"results": scores}


def _use_own_weights_in(method: Method, chosen: Callable[[int, int], bool]) -> None:
    """Make a method use the language's own weights in the chosen layers only, and English weights in the others."""
    source, count = method.languages.row("en"), len(method.shape.sites)

    def stack_languages(ids: ConditionIds, sites: Sequence[Site]) -> Tensor:
        own_KS = type(method).stack_languages(method, ids, sites)
        keep_S = torch.tensor([chosen(site.layer, count) for site in sites])
        return torch.where(keep_S, own_KS, source)

    method.stack_languages = stack_languages  # type: ignore[method-assign]


def sources(run: Run) -> dict[str, Any]:
    """Measure the loss of every trained direction with its own sources and with those of the next pairs."""
    losses = {}
    for name in run.recipe.data.train:
        condition = Condition.parse(name)
        (corpus,) = run.recipe.data.test[name]
        records = run.model.task("mt").records(resolve(corpus), condition)
        pairs = [record for record in records if isinstance(record, Bitext)]
        moved = [Bitext(other.source, pair.target) for pair, other in zip(pairs, pairs[1:] + pairs[:1], strict=True)]
        losses[name] = {"own": _loss(run, condition, pairs), "other": _loss(run, condition, moved)}
    return {"results": losses}


def _loss(run: Run, condition: Condition, pairs: Sequence[Bitext]) -> float:
    """Compute the loss of the targets given the sources, in nats per token."""
    total, count = np.sum(list(run.predictor.predict(pairs, condition, losses=True)), axis=0)
    return float(total / count)


def magnitudes(run: Run) -> dict[str, Any]:
    """Measure the generated weights of a newly initialised and of the trained model."""
    return {"fresh": _magnitude(prepare_training(run.recipe).model.method), "trained": _magnitude(run.model.method)}


@torch.inference_mode()
def _magnitude(method: Method) -> float:
    """Compute the RMS of all down- and up-projections for English into every other language."""
    directions = [Condition("mt", ENGLISH, language) for language in method.languages if language != ENGLISH]
    weights = method.weights(directions)
    matrices = [block.tensors[name].flatten() for block in weights.blocks for name in ("down", "up")]
    return float(torch.cat(matrices).double().square().mean().sqrt())


ANALYSES: Mapping[str, Callable[[Run], dict[str, Any]]] = {
    "layers": layers,
    "sources": sources,
    "magnitudes": magnitudes,
}
