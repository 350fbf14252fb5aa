"""Tiny models of every family, worlds in which conditions matter, and inputs for them."""

from collections.abc import Hashable, Iterable
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from polyloom.backbones import FAMILIES, Backbone, backbone_from_config
from polyloom.conditions import Inventory
from polyloom.methods import METHODS, build_method
from polyloom.methods.base import AdapterConfig, AdapterMethod, MethodConfig, layer_blocks
from polyloom.model import Model, classify
from polyloom.nn.blocks import BLOCKS
from polyloom.weights import Weights
from tests.covering import Case, covering, pairs
from tests.own import OWN

VOCAB = 60
LANGUAGES = ("en", "tr", "sw", "yo", "no", "quy")
TASKS: dict[str, int | None] = {"pos": 5, "ner": 3, "mt": 4}
CONFIGS: dict[str, dict[str, Any]] = {name: dict(family.tiny) for name, family in FAMILIES.items()}
SIZES: dict[str, Any] = {  # every width of every method, small
    "adapter_size": 6,
    "task_adapter_size": 4,
    "projection_size": 7,
    "hidden_size": 9,
    "embedding_size": 5,
    "latent_size": 5,
}
# Pairs, so that one list of rows serves methods that store pairs and methods that do not; the task varies as well.
ROWS = ("pos/en/tr", "ner/tr/sw", "mt/sw/yo", "pos/yo/no", "ner/no/quy", "mt/quy/en", "pos/en/tr")


def config_of(family: str) -> dict[str, Any]:
    """The tiny configuration with which a family is registered."""
    tiny = dict(FAMILIES[family].tiny)
    assert tiny, f"family {family!r} has no tiny configuration: register_family({family!r}, …, tiny={{…}})"
    return tiny


def method_with(*conditioned_on: str) -> str:
    """The first method whose weights depend on exactly these parts of a condition."""
    return next(name for name, method in METHODS.items() if method.conditioned_on == conditioned_on)


def tiny_config(method: str, **settings: Any) -> MethodConfig:
    """Settings of a method, with small sizes."""
    config_type = METHODS[method].config_type
    known = {field.name for field in fields(config_type)}
    return config_type(**({name: size for name, size in SIZES.items() if name in known} | settings))


def tiny_backbone(family: str, *, shallow: bool = False) -> Backbone:
    """A fresh tiny backbone; the same weights every time. Shallow: one layer per stack instead of two."""
    torch.manual_seed(7)
    config = {"model_type": family} | config_of(family)
    if shallow:
        config |= {key: 1 for key in config if key.endswith("layers")}
    backbone = backbone_from_config(config)
    for parameter in backbone.norm_parameters().values():  # norms that matter
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    return backbone


@cache
def shared_backbone(family: str, *, shallow: bool = False) -> Backbone:
    """The same, built once; for tests that leave it as it was."""
    return tiny_backbone(family, shallow=shallow)


def tiny_model(
    method: str, family: str, *, backbone: Backbone | None = None, strength: float = 0.3, **settings: Any
) -> Model:
    """A model whose weights differ widely between conditions."""
    directions = [row.partition("/")[2] for row in ROWS]
    backbone = backbone or shared_backbone(family)
    inventory = Inventory.of(LANGUAGES, TASKS, directions)
    model = Model(backbone, build_method(tiny_config(method, **settings), shape=backbone.shape, inventory=inventory))
    torch.manual_seed(11)
    for parameter in model.method.parameters():
        parameter.data.normal_(std=strength)
    return model.eval()


def tiny_inputs(family: str, num_rows: int = len(ROWS), length: int = 6) -> dict[str, Tensor]:
    """Random ids with padding; left padding for decoders."""
    torch.manual_seed(3)
    pad = int(config_of(family).get("pad_token_id", 0))
    vocab = int(config_of(family).get("vocab_size", VOCAB))
    ids = torch.randint(4, vocab, (num_rows, length))
    mask = torch.ones_like(ids)
    for row in range(num_rows):
        gap = row % 3
        if gap:
            where = slice(0, gap) if is_decoder(family) else slice(length - gap, length)
            ids[row, where], mask[row, where] = pad, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if has_two_stacks(family):
        inputs["decoder_input_ids"] = torch.randint(4, vocab, (num_rows, length - 1))
    return inputs


def is_decoder(family: str) -> bool:
    return tuple(FAMILIES[family].stacks) == ("decoder",)


def has_two_stacks(family: str) -> bool:
    return len(FAMILIES[family].stacks) == 2


def logits(model: Model, inputs: dict[str, Tensor], rows: Any, weights: Weights | None = None) -> Tensor:
    """Language-modelling logits; where classifiers are generated, theirs on what enters the head."""
    weights = model.weights(rows) if weights is None else weights
    out: Tensor = model(inputs, rows, weights=weights).logits
    if any(block.placement == "head" for block in weights.blocks):
        return classify(out[..., : model.backbone.shape.width], weights).nan_to_num(neginf=-1.0)
    return out


def own_or_all(registered: Iterable[str]) -> list[str]:
    """The names of a registry; with --code those that it registers."""
    return [name for name in registered if not OWN or name in OWN]


def cases(*, adapters_only: bool = False) -> list[Case]:
    """Every method × family × kind of block × placement that is registered; with --code those with something of it."""
    every: list[Case] = []
    for method, method_type in METHODS.items():
        for family in FAMILIES:
            if issubclass(method_type, AdapterMethod):
                every += [(method, family, settings) for settings in block_settings(family)]
            elif not adapters_only:
                every += [(method, family, {})]
    return [case for case in every if not OWN or OWN & names_of(case)]


def block_settings(family: str) -> list[dict[str, str]]:
    """Every kind of block at every placement that it may have in a family, on all linear layers if it may choose."""
    settings = []
    for name in layer_blocks():
        chosen = {} if name == AdapterConfig.block else {"block": name}
        chosen |= {"targets": "all-linear"} if "targets" in BLOCKS[name].options else {}
        placements = BLOCKS[name].placements(shared_backbone(family).shape)
        settings += [chosen | ({"placement": p} if len(placements) > 1 else {}) for p in placements]
    return settings


def names_of(case: Case) -> set[str]:
    """The method, the family and the kind of block of a case."""
    return {case[0], case[1], case[2].get("block", AdapterConfig.block)}


def block_of(case: Case) -> str:
    """The kind of block and the placement of a case; nothing for methods that have no choice."""
    return "".join(case[2].values())


def without_neutral_values() -> list[str]:
    """Kinds of blocks that declare no value without effect."""
    kinds = {}
    for family in FAMILIES:
        for settings in block_settings(family):
            name = settings.get("block", AdapterConfig.block)
            kinds[name] = BLOCKS[name].tensors(shared_backbone(family).shape, 4)
    return [name for name, specs in kinds.items() if all(spec.neutral is None for spec in specs.values())]


def pairwise_cases(*, adapters_only: bool = False):
    """Every case; in CI every method meets every family, every family every block, every method every block."""
    return covering(cases(adapters_only=adapters_only), meetings, name=case_id)


def neutral_cases():
    """The same of adapters; kinds that declare no value without effect are named and skipped."""
    unable = without_neutral_values()
    able = [case for case in cases(adapters_only=True) if case[2].get("block") not in unable]
    skip = pytest.mark.skip
    return covering(able, meetings, name=case_id) + [
        pytest.param(None, id=name, marks=skip(reason=f"{name} declares no value without effect (TensorSpec.neutral)"))
        for name in unable
    ]


def covering_cases():
    """Every case; in CI there is every method, every family and every block, for facts that do not depend on pairs."""
    return covering(cases(), factors, name=case_id)


def factors(case: Case) -> set[Hashable]:
    """Method, family and block; with --code what it registers."""
    return {name for name in (case[0], case[1], block_of(case)) if not OWN or any(own in name for own in OWN)}


def meetings(case: Case) -> set[Hashable]:
    """Every two of method, family and block; with --code those with something of it."""
    return only_own(pairs(case[0], case[1], block_of(case)))


def only_own(facts: set[Any]) -> set[Hashable]:
    """Pairs of factors; with --code those with something that it registers."""
    return {two for two in facts if not OWN or any(own in str(value) for own in OWN for _, value in two)}


def case_id(case: Case) -> str:
    method, family, settings, *more = case
    return "-".join([method, family, *map(str, settings.values()), *map(str, more)])
