"""Model families: the paths of their layers and of the modules at which adapters are placed.

`register_family` adds a family. Module paths are relative to a layer, except those of `stacks`, which are relative to
the base model. No model code is copied and no class is replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from polyloom.errors import BackboneError, suggest
from polyloom.registry import HINT, Registry


@dataclass(frozen=True)
class Family:
    """The layout of one family of models."""

    stacks: Mapping[str, str]
    """Path of the list of layers of each stack (``encoder``, ``decoder``), in the order of computation."""
    output: str
    """Module whose output the feed-forward sublayer adds to its residual (placement ``output``)."""
    projections: Mapping[str, str]
    """The linear layers that blocks can act on: ``q``, ``k``, ``v`` and ``o`` of the self-attention, ``gate``, ``up``
    and ``down`` of the feed-forward sublayer, as far as the family has them. ``wi|wi_1`` is the first of these that a
    model has; nothing behind ``|`` means that it may have none."""
    norm: str | None = None
    """The layer norm *after* the feed-forward residual, in post-norm families (placement ``norm``)."""
    attention: str | None = None
    """The self-attention module that calls one of Transformers' attention functions. ``None`` where the model computes
    attention in its own code; then blocks cannot add keys and values."""
    undeclared: tuple[str, ...] = ()
    """Keys of its ``config.json`` that Transformers reads without declaring them."""
    auto_class: Literal["AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM"] = (
        "AutoModelForMaskedLM"
    )
    """The Transformers auto class that has the family's language-modelling head."""
    vocabulary: tuple[str, ...] = ("lm_head",)
    """Modules of that head in order, from hidden states to logits; relative to the model."""
    fairseq: bool = False
    """Whether a model from scratch is initialised as Fairseq does, not as Transformers does."""
    tiny: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the ``config.json`` of a model for tests: two layers per stack, a width of 16, 60 tokens."""

    @property
    def placements(self) -> tuple[str, ...]:
        """Return the placements of bottleneck adapters in this family."""
        return ("layer", "output", "norm") if self.norm else ("layer", "output")


# Configurations for tests, which are also the smallest examples of what a family's `config.json` has.
_TINY_ENCODER = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40, "initializer_range": 0.15,
}  # fmt: skip
_TINY_DECODER = _TINY_ENCODER | {"num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TINY_BART = {
    "vocab_size": 60, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40,
    "init_std": 0.15, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_TINY_T5 = {
    "vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
    "initializer_factor": 0.3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
_BERT_DENSE = ("attention.output.dense", "intermediate.dense", "output.dense")
_LAYER = ("q", "k", "v", "o", "up", "down")


def _named(*paths: str) -> dict[str, str]:
    """Name the linear layers of a layer without gate."""
    return dict(zip(_LAYER, paths, strict=True))


def _bert_like(vocabulary: str, **tiny: int) -> Family:
    return Family(
        stacks={"encoder": "encoder.layer"},
        output="output.dropout",
        norm="output.LayerNorm",
        projections=_named("attention.self.query", "attention.self.key", "attention.self.value", *_BERT_DENSE),
        attention="attention.self",
        vocabulary=(vocabulary,),
        tiny=_TINY_ENCODER | tiny,
    )


def _bart_like(*, post_norm: bool) -> Family:
    # Dropout after fc2 is functional there, so the adapter sits before it; without dropout that is the same place.
    return Family(
        stacks={"encoder": "encoder.layers", "decoder": "decoder.layers"},
        output="fc2",
        norm="final_layer_norm" if post_norm else None,
        projections=_named(*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")), "fc1", "fc2"),
        attention="self_attn",
        auto_class="AutoModelForSeq2SeqLM",
        fairseq=True,
        tiny=_TINY_BART,
    )


def _t5_like(**tiny: bool) -> Family:
    # The feed-forward sublayer is a layer's last: a layer of a decoder has the cross-attention before it.
    dense = "layer.-1.DenseReluDense"
    return Family(
        stacks={"encoder": "encoder.block", "decoder": "decoder.block"},
        output="layer.-1.dropout",
        # T5 has wi alone; T5 1.1 and mT5 have wi_0, which is a gate, and wi_1.
        projections={name: f"layer.0.SelfAttention.{name}" for name in ("q", "k", "v", "o")}
        | {"gate": f"{dense}.wi_0|", "up": f"{dense}.wi|{dense}.wi_1", "down": f"{dense}.wo"},
        attention="layer.0.SelfAttention",
        undeclared=("decoder_start_token_id",),
        auto_class="AutoModelForSeq2SeqLM",
        tiny=_TINY_T5 | tiny,
    )


def _llama_like(output: str = "mlp", **tiny: int) -> Family:
    return Family(
        stacks={"decoder": "layers"},
        output=output,
        projections={name: f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")}
        | {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
        attention="self_attn",
        auto_class="AutoModelForCausalLM",
        tiny=_TINY_DECODER | tiny,
    )


_FAMILIES: dict[str, Family] = {
    "bert": _bert_like("cls"),
    "roberta": _bert_like("lm_head", pad_token_id=1),
    "xlm-roberta": _bert_like("lm_head", pad_token_id=1),
    "distilbert": Family(
        stacks={"encoder": "transformer.layer"},
        output="ffn",
        norm="output_layer_norm",
        projections=_named(*(f"attention.{name}_lin" for name in ("q", "k", "v", "out")), "ffn.lin1", "ffn.lin2"),
        attention="attention",
        vocabulary=("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
        tiny={
            "vocab_size": 60, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 40,
            "initializer_range": 0.15,
        },
    ),
    "deberta-v2": Family(
        stacks={"encoder": "encoder.layer"},
        output="output.dropout",
        norm="output.LayerNorm",
        projections=_named(*(f"attention.self.{name}_proj" for name in ("query", "key", "value")), *_BERT_DENSE),
        undeclared=("position_buckets", "share_att_key", "norm_rel_ebd", "conv_kernel_size", "conv_act"),
        vocabulary=("cls",),
        tiny=_TINY_ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    "modernbert": Family(
        stacks={"encoder": "layers"},
        output="mlp",
        projections={"qkv": "attn.Wqkv", "o": "attn.Wo", "up": "mlp.Wi", "down": "mlp.Wo"},
        attention="attn",
        vocabulary=("head", "decoder"),
        tiny=_TINY_ENCODER
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "m2m_100": _bart_like(post_norm=False),
    "mbart": _bart_like(post_norm=False),
    "marian": _bart_like(post_norm=True),
    "t5": _t5_like(),
    "mt5": _t5_like(tie_word_embeddings=False),
    "llama": _llama_like(head_dim=8),
    "qwen2": _llama_like(),
    "qwen3": _llama_like(head_dim=8),
    # Gemma normalises the feed-forward output before adding it: what is added is the norm's output.
    "gemma2": _llama_like("post_feedforward_layernorm", head_dim=8),
    "gemma3_text": _llama_like("post_feedforward_layernorm", head_dim=8),
}  # fmt: skip


FAMILIES: Registry[Family] = Registry("family", _FAMILIES.items())


def register_family(model_type: str, family: Family, *, tiny: Mapping[str, Any] | None = None) -> Family:
    """Register the layout of a further model type.

    Args:
        model_type: The type that the model's ``config.json`` names.
        family: The layout.
        tiny: Keys of the ``config.json`` of a tiny model, on which the contract tests check the layout: two layers per
            stack, a width of 16, 60 tokens. Default: those of `family`.
    """
    return FAMILIES.register(model_type, replace(family, tiny=tiny) if tiny else family)


def family_of(model_type: str) -> Family:
    """Return the family of a model type, or raise an error that explains how to register one."""
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    raise BackboneError(
        f"backbone: no family for model type {model_type!r}. {suggest(model_type, FAMILIES, limit=30)} {HINT} To "
        f"describe it: polyloom.register_family({model_type!r}, polyloom.Family(stacks={{'encoder': 'encoder.layer'}}, "
        "output='output.dense', projections={'q': 'attention.self.query'})): the list of layers of each stack, "
        "the module whose output the feed-forward sublayer adds to its residual, the linear layers that LoRA may adapt."
    )
