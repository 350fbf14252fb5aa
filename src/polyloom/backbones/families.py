"""Model families: the paths of their layers and of the modules at which adapters are placed.

`register_family` adds a family. Module paths are relative to a layer, except those of `stacks`, which are relative to
the base model. No model code is copied and no class is replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from polyloom.errors import BackboneError, suggest
from polyloom.registry import HINT, Registry


@dataclass(frozen=True)
class Family:
    """The layout of one family of models.

    Attributes:
        stacks: Path of the list of layers of each stack (``encoder``, ``decoder``), in the order of computation.
        output: Module whose output the feed-forward sublayer adds to its residual (placement ``output``).
        norm: The layer norm *after* the feed-forward residual, in post-norm families (placement ``norm``).
        projections: The linear layers that LoRA can adapt: ``q``, ``k``, ``v`` and ``o`` of the self-attention,
            ``gate``, ``up`` and ``down`` of the feed-forward sublayer, as far as the family has them. ``wi|wi_1`` is
            the first of these that a model has; nothing behind ``|`` means that it may have none.
        undeclared: Keys of its ``config.json`` that Transformers reads without declaring them.
        auto_class: The Transformers auto class that has the family's language-modelling head.
        vocabulary: Modules of that head in order, from hidden states to logits; relative to the model.
        fairseq: Whether a model from scratch is initialised as Fairseq does, not as Transformers does. Default: false.
    """

    stacks: Mapping[str, str]
    output: str
    projections: Mapping[str, str]
    norm: str | None = None
    undeclared: tuple[str, ...] = ()
    auto_class: Literal["AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM"] = (
        "AutoModelForMaskedLM"
    )
    vocabulary: tuple[str, ...] = ("lm_head",)
    fairseq: bool = False

    @property
    def placements(self) -> tuple[str, ...]:
        """Return the placements of bottleneck adapters in this family."""
        return ("layer", "output", "norm") if self.norm else ("layer", "output")


_BERT_DENSE = ("attention.output.dense", "intermediate.dense", "output.dense")
_LAYER = ("q", "k", "v", "o", "up", "down")


def _named(*paths: str) -> dict[str, str]:
    """Name the linear layers of a layer without gate."""
    return dict(zip(_LAYER, paths, strict=True))


def _bert_like(vocabulary: str) -> Family:
    return Family(
        stacks={"encoder": "encoder.layer"},
        output="output.dropout",
        norm="output.LayerNorm",
        projections=_named("attention.self.query", "attention.self.key", "attention.self.value", *_BERT_DENSE),
        vocabulary=(vocabulary,),
    )


def _bart_like(*, post_norm: bool) -> Family:
    # Dropout after fc2 is functional there, so the adapter sits before it; without dropout that is the same place.
    return Family(
        stacks={"encoder": "encoder.layers", "decoder": "decoder.layers"},
        output="fc2",
        norm="final_layer_norm" if post_norm else None,
        projections=_named(*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")), "fc1", "fc2"),
        auto_class="AutoModelForSeq2SeqLM",
        fairseq=True,
    )


def _t5_like() -> Family:
    attention = {name: f"layer.0.SelfAttention.{name}" for name in ("q", "k", "v", "o")}
    dense = {"gate": ("wi_0", ""), "up": ("wi", "wi_1"), "down": ("wo",)}
    return Family(
        stacks={"encoder": "encoder.block", "decoder": "decoder.block"},
        output="layer.-1.dropout",
        projections=attention
        | {name: "|".join(x and f"layer.-1.DenseReluDense.{x}" for x in paths) for name, paths in dense.items()},
        undeclared=("decoder_start_token_id",),
        auto_class="AutoModelForSeq2SeqLM",
    )


def _llama_like(output: str = "mlp") -> Family:
    return Family(
        stacks={"decoder": "layers"},
        output=output,
        projections={name: f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")}
        | {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
        auto_class="AutoModelForCausalLM",
    )


_FAMILIES: dict[str, Family] = {
    "bert": _bert_like("cls"),
    "roberta": _bert_like("lm_head"),
    "xlm-roberta": _bert_like("lm_head"),
    "distilbert": Family(
        stacks={"encoder": "transformer.layer"},
        output="ffn",
        norm="output_layer_norm",
        projections=_named(*(f"attention.{name}_lin" for name in ("q", "k", "v", "out")), "ffn.lin1", "ffn.lin2"),
        vocabulary=("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
    ),
    "deberta-v2": Family(
        stacks={"encoder": "encoder.layer"},
        output="output.dropout",
        norm="output.LayerNorm",
        projections=_named(*(f"attention.self.{name}_proj" for name in ("query", "key", "value")), *_BERT_DENSE),
        undeclared=("position_buckets", "share_att_key", "norm_rel_ebd", "conv_kernel_size", "conv_act"),
        vocabulary=("cls",),
    ),
    "modernbert": Family(
        stacks={"encoder": "layers"},
        output="mlp",
        projections={"qkv": "attn.Wqkv", "o": "attn.Wo", "up": "mlp.Wi", "down": "mlp.Wo"},
        vocabulary=("head", "decoder"),
    ),
    "m2m_100": _bart_like(post_norm=False),
    "mbart": _bart_like(post_norm=False),
    "marian": _bart_like(post_norm=True),
    "t5": _t5_like(),
    "mt5": _t5_like(),
    "llama": _llama_like(),
    "qwen2": _llama_like(),
    "qwen3": _llama_like(),
    # Gemma normalises the feed-forward output before adding it: what is added is the norm's output.
    "gemma2": _llama_like("post_feedforward_layernorm"),
    "gemma3_text": _llama_like("post_feedforward_layernorm"),
}


FAMILIES: Registry[Family] = Registry("family", _FAMILIES.items())


def register_family(model_type: str, family: Family) -> Family:
    """Register the layout of a further model type, the one that is named in the model's ``config.json``."""
    return FAMILIES.register(model_type, family)


def family_of(model_type: str) -> Family:
    """Return the family of a model type, or raise an error that explains how to register one."""
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    raise BackboneError(
        f"backbone: no family for model type {model_type!r}. {suggest(model_type, FAMILIES, limit=30)} {HINT} To "
        f"describe it: polyloom.register_family({model_type!r}, polyloom.Family(stacks={{'encoder': 'encoder.layer'}}, "
        "output='output.dense', projections={'q': 'attention.self.query'})): the list of layers of each stack, "
        "the module whose output the feed-forward sublayer adds to its residual, the linear layers LoRA may adapt."
    )
