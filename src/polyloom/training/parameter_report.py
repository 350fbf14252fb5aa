"""Report trainable parameters, and the size of the adapters' weights, before the first step."""

import torch

from polyloom.conditions import Condition
from polyloom.inference.cache import eval_mode
from polyloom.methods.base import Stage
from polyloom.model import Model
from polyloom.training.events import ParameterGroup


def parameter_report(model: Model) -> list[ParameterGroup]:
    """Count the parameters of every group and those that are trainable; each parameter is counted once."""
    groups, seen = [], set()
    ordered = sorted(model.groups().items(), key=lambda item: item[0] == "backbone")  # last: its norms are a group too
    for name, parameters in ordered:
        members = [p for p in parameters if p not in seen]
        seen |= set(members)
        trained = [p for p in members if p.requires_grad]
        num_trained, total = (sum(p.numel() for p in selected) for selected in (trained, members))
        groups.append(ParameterGroup(name, num_trained, total, len(trained)))
    return groups


def check_trainable(model: Model, stage: Stage) -> None:
    """Check that exactly the parameters of the stage require a gradient."""
    declared = {p for name in stage.trains for p in model.group(name)}
    actual = {p for p in model.parameters() if p.requires_grad}
    assert declared == actual, "the trainable parameters are not those of the stage"


@torch.no_grad()
def weight_std(model: Model, condition: Condition) -> dict[str, float]:
    """Compute the standard deviation of every tensor of a condition's weights.

    Generated weights should start small, but not at 0.
    """
    with eval_mode(model.method):
        weights = model.weights([condition])
    return {
        f"{block.kind}@{block.placement}.{name}": float(tensor[tensor.isfinite()].double().std())
        for block in weights.blocks
        for name, tensor in block.tensors.items()
        if tensor.isfinite().sum() > 1
    }


@torch.no_grad()
def language_shares(model: Model, *, most: int = 16) -> dict[str, float]:
    """Compute by task which share of the weights differs between languages, from 0 to 1.

    It is 0 if all languages have the same weights, by design or because the hypernetwork ignores the language.

    Args:
        model: The model.
        most: Number of languages that are compared, the first ones of the model.
    """
    shares = {}
    for task in model.tasks:
        conditions = [Condition(task, language) for language in model.method.languages]
        supported = [condition for condition in conditions if model.method.supports(condition)]
        if len(supported) > 1:
            with eval_mode(model.method):  # dropout would make a difference between languages where there is none
                weights = model.weights(supported[:most])
            # Of the weights w_l of languages l with mean m: √(Σ_l |w_l - m|² / Σ_l |w_l|²), over all tensors together.
            # The only infinite values are biases of generated classifiers, for surplus labels.
            tensors = [t for block in weights.blocks for t in block.tensors.values()]
            finite = [torch.where(t.isfinite(), t, 0.0).double() for t in tensors]
            between = sum(float((t - t.mean(0)).square().sum()) for t in finite)
            total = sum(float(t.square().sum()) for t in finite)
            shares[task] = (between / total) ** 0.5 if total else 0.0
    return shares
