"""Tiny models of every family, worlds in which conditions matter, and inputs for them."""

from collections.abc import Hashable
from dataclasses import fields
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from polyloom.backbones import FAMILIES, Backbone, Family, backbone_from_config
from polyloom.conditions import Inventory
from polyloom.methods import METHODS, build_method
from polyloom.methods.base import AdapterConfig, AdapterMethod, MethodConfig, layer_blocks
from polyloom.model import Model, classify
from polyloom.nn.blocks import BLOCKS
from polyloom.weights import BackboneShape, Weights
from tests.covering import Case, covering, pairs

WIDTH = 16
VOCAB = 60
LANGUAGES = ("en", "tr", "sw", "yo", "no", "quy")
TASKS: dict[str, int | None] = {"pos": 5, "ner": 3, "mt": 4}

_ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "initializer_range": 0.15,
}
_DECODER = _ENCODER | {"num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_ENCODER_DECODER = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 40,
    "init_std": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_T5 = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "initializer_factor": 0.3,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": _ENCODER,
    "roberta": _ENCODER | {"pad_token_id": 1},
    "xlm-roberta": _ENCODER | {"pad_token_id": 1},
    "distilbert": {
        "vocab_size": VOCAB,
        "dim": WIDTH,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "max_position_embeddings": 40,
        "initializer_range": 0.15,
    },
    "deberta-v2": _ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "modernbert": _ENCODER
    | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "m2m_100": _ENCODER_DECODER,
    "mbart": _ENCODER_DECODER,
    "marian": _ENCODER_DECODER,
    "t5": _T5,
    "mt5": _T5 | {"tie_word_embeddings": False},
    "llama": _DECODER,
    "qwen2": {key: value for key, value in _DECODER.items() if key != "head_dim"},
    "qwen3": _DECODER,
    "gemma2": _DECODER,
    "gemma3_text": _DECODER,
}
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
    """Small sizes for a family; for one that others registered, under the names that most models use."""
    usual = _ENCODER_DECODER if has_two_stacks(family) else _DECODER if is_decoder(family) else _ENCODER
    return CONFIGS.get(family, usual)


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
    ids = torch.randint(4, VOCAB, (num_rows, length))
    mask = torch.ones_like(ids)
    for row in range(num_rows):
        gap = row % 3
        if gap:
            where = slice(0, gap) if is_decoder(family) else slice(length - gap, length)
            ids[row, where], mask[row, where] = pad, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if has_two_stacks(family):
        inputs["decoder_input_ids"] = torch.randint(4, VOCAB, (num_rows, length - 1))
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
        return classify(out[..., :WIDTH], weights).nan_to_num(neginf=-1.0)
    return out


def cases(*, adapters_only: bool = False) -> list[Case]:
    """Every method × family × kind of block × placement that is registered."""
    found: list[Case] = []
    for method, method_type in METHODS.items():
        for family, entry in FAMILIES.items():
            if issubclass(method_type, AdapterMethod):
                found += [(method, family, settings) for settings in block_settings(entry)]
            elif not adapters_only:
                found += [(method, family, {})]
    return found


def block_settings(family: Family) -> list[dict[str, str]]:
    """Every kind of block at every placement that it may have in a family."""
    settings = []
    for name in layer_blocks():
        chosen = {} if name == AdapterConfig.block else {"block": name}
        chosen |= {"targets": "all-linear"} if name == "lora" else {}
        placements = BLOCKS[name].placements(cast("BackboneShape", family))  # which has the same placements
        settings += [chosen | ({"placement": p} if len(placements) > 1 else {}) for p in placements]
    return settings


def block_of(case: Case) -> str:
    """The kind of block and the placement of a case; nothing for methods that have no choice."""
    return "".join(case[2].values())


def pairwise_cases(*, adapters_only: bool = False):
    """Every case; in CI every method meets every family, every family every block, every method every block."""
    return covering(cases(adapters_only=adapters_only), meetings, name=case_id)


def covering_cases():
    """Every case; in CI there is every method, every family and every block, for facts that do not depend on pairs."""
    return covering(cases(), factors, name=case_id)


def factors(case: Case) -> set[Hashable]:
    """Method, family and block."""
    return {case[0], case[1], block_of(case)}


def meetings(case: Case) -> set[Hashable]:
    """Every two of method, family and block."""
    return pairs(case[0], case[1], block_of(case))


def case_id(case: Case) -> str:
    method, family, settings, *more = case
    return "-".join([method, family, *map(str, settings.values()), *map(str, more)])
