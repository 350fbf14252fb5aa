"""What learns, how much and why, and how large generated weights are, before the first step is taken."""

from dataclasses import dataclass

import torch

from polyloom.conditions import Condition
from polyloom.methods.base import Stage
from polyloom.model import Model


@dataclass(frozen=True)
class Group:
    """A group of parameters.

    Attributes:
        name: As stages name it.
        trained: How many numbers learn.
        total: How many there are.
        tensors: How many tensors learn.
    """

    name: str
    trained: int
    total: int
    tensors: int


def parameter_report(model: Model) -> list[Group]:
    """Every group of parameters, and what of it learns; each parameter is counted once."""
    groups, seen = [], set()
    ordered = sorted(model.groups().items(), key=lambda item: item[0] == "backbone")  # its norms are a group before it
    for name, parameters in ordered:
        own = [p for p in parameters if p not in seen]
        seen |= set(own)
        trained = [p for p in own if p.requires_grad]
        groups.append(Group(name, sum(p.numel() for p in trained), sum(p.numel() for p in own), len(trained)))
    return groups


def check_trainable(model: Model, stage: Stage) -> None:
    """What requires a gradient must be exactly what the stage trains."""
    declared = {p for name in stage.trains for p in model.group(name)}
    actual = {p for p in model.parameters() if p.requires_grad}
    assert declared == actual, "the parameters that learn are not those of the stage"


@torch.no_grad()
def weight_std(model: Model, condition: Condition) -> dict[str, float]:
    """Standard deviation of every tensor of a condition's weights: what is generated must begin small, but not at 0."""
    weights = model.weights([condition])
    return {
        f"{block.kind}@{block.placement}.{name}": float(tensor[tensor.isfinite()].std())
        for block in weights.blocks
        for name, tensor in block.tensors.items()
        if tensor.isfinite().sum() > 1
    }


@torch.no_grad()
def language_shares(model: Model, *, most: int = 16) -> dict[str, float]:
    """By task, how much of its weights is the language's own: 0 if all have the same, by design or because it died."""
    found = {}
    for task in model.tasks:
        rows = [
            c for c in (Condition(task, language) for language in model.method.languages) if model.method.supports(c)
        ]
        if len(rows) > 1:
            made = [t for block in model.weights(rows[:most]).blocks for t in block.tensors.values()]
            finite = [torch.where(t.isfinite(), t, 0.0).float() for t in made]
            own = sum(float((t - t.mean(0)).square().sum()) for t in finite)
            total = sum(float(t.square().sum()) for t in finite)
            found[task] = (own / total) ** 0.5 if total else 0.0
    return found
