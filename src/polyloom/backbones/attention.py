"""Add keys and values to the self-attention of a layer, with other ones for each row of a batch.

Prefix tuning (Li & Liang 2021; P-tuning v2, Liu et al. 2022) lets every token also attend to P trained pairs of
keys and values: ``softmax(Q [P_k; K]ᵀ / √d) [P_v; V]``. Transformers would take them as `past_key_values`, but only in
decoders, and then they shift positions and mix with the cache of a search. Here they join where attention is computed,
after rotary positions and after the cache, so a search concatenates them anew at each token and the cache holds none.

An attention module of Transformers calls the function whose name its ``config`` has. While it runs with added keys, its
``config`` is a stand-in with the name of our function, which puts the config back and calls the function of the model.
A layer without added keys is not touched at all.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from polyloom.backbones.hooks import ForwardState, Hook
from polyloom.errors import BackboneError
from polyloom.nn.blocks import ATTENTION, AttentionBlock
from polyloom.weights import Site

FUNCTION = "polyloom"  # the name under which Transformers finds `attend`
SUPPORTED = ("sdpa", "eager")  # others take masks in forms of their own


class BeforeAttention(Hook):
    """Place ``attention``: before a self-attention module runs, direct it to `attend` if it is to have more keys."""

    def __init__(self, state: ForwardState, site: Site) -> None:
        super().__init__(state, site, ATTENTION)

    def __call__(self, module: nn.Module, _args: Any) -> None:
        """Let the module's `config` name our attention function."""
        if isinstance(module.config, StandIn):  # an error ended the last pass between here and `attend`
            module.config = module.config.config
        if not self.blocks():
            return
        if (name := implementation(module.config)) not in SUPPORTED:
            raise BackboneError(
                f"backbone: keys and values cannot be added with the attention {name!r}. Load the backbone with one of "
                f"{', '.join(SUPPORTED)}."
            )
        module.config = StandIn(module.config, self)  # type: ignore[assignment]

    def added(self, key_BHTE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values to add, ``[B, H, P, E]``, for the keys of all rows and beams."""
        num_rows, expand = self.expect_rows(key_BHTE)
        heads, size = key_BHTE.shape[1], key_BHTE.shape[3]
        joined: list[list[Tensor]] = [[], []]
        for block in self.blocks():
            assert isinstance(block.kind, AttentionBlock)
            for tensors, added in zip(joined, block.kind.keys_values(block.tensors), strict=True):
                added_RHPE = added.to(key_BHTE.dtype).reshape(-1, added.shape[-2], heads, size).transpose(1, 2)
                # The beams of a row are adjacent, and all have the row's own keys.
                if len(added_RHPE) == 1:
                    tensors.append(added_RHPE.expand(num_rows * expand, -1, -1, -1))
                else:
                    tensors.append(added_RHPE.repeat_interleave(expand, dim=0))
        keys, values = (torch.cat(tensors, dim=2) if len(tensors) > 1 else tensors[0] for tensors in joined)
        return keys, values


class StandIn:
    """A model's config as an attention module sees it, with the name of our attention function."""

    _attn_implementation = FUNCTION

    def __init__(self, config: Any, hook: BeforeAttention) -> None:
        self.config, self.hook = config, hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)


def implementation(config: Any) -> str:
    """Return the name of the attention function that a config names."""
    return str(config._attn_implementation)  # noqa: SLF001 - Transformers has no public name for it


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Any:
    """Compute attention over added keys and values and those of the text; all tensors ``[B, H, T, E]``."""
    stand_in: Any = module.config
    config = module.config = stand_in.config  # first of all, so that no error in here leaves the stand-in behind
    keys, values = stand_in.hook.added(key)
    num_added, length = keys.shape[2], query.shape[2]

    # Where SDPA gets no mask, it makes a causal one itself, aligned at the first key. With keys in front that would be
    # wrong, so it is written out.
    is_causal = options.pop("is_causal", None)
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and is_causal and length > 1:
        attention_mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=key.device).tril()[None, None]
    # True lets a token see a key in a mask of SDPA; zero is added to the score in one of eager attention.
    if attention_mask is not None:
        visible = 1.0 if attention_mask.dtype == torch.bool else 0.0
        attention_mask = F.pad(attention_mask, (num_added, 0), value=visible)
    if options.get("position_bias") is not None:  # T5's: added keys have no position
        options["position_bias"] = F.pad(options["position_bias"], (num_added, 0))

    # Every modeling file of Transformers has its own eager attention.
    eager = sys.modules[type(module).__module__].eager_attention_forward
    function: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(implementation(config), eager)
    key, value = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
    return function(module, query, key, value, attention_mask, is_causal=False, **options)


ALL_ATTENTION_FUNCTIONS.register(FUNCTION, attend)
