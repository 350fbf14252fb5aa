"""Run a decoder token by token on rows that are at different places of their texts."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

Layer = tuple[Tensor, Tensor]  # keys and values, [B, heads, T, width of a head]


class DecoderCache:
    """Keys and values of a decoder's attention to the text and to the source, as Transformers keeps them.

    Args:
        own: Those of the text, for each layer. Default: none yet.
        cross: Those of the source.

    Attributes:
        hf: The cache for Transformers, which the decoder fills.
    """

    def __init__(self, own: Iterable[Layer] = (), cross: Iterable[Layer] = ()) -> None:
        self.hf = EncoderDecoderCache(_filled(own), _filled(cross))

    @property
    def own(self) -> list[Layer]:
        """Keys and values of the text, for each layer."""
        return [(layer.keys, layer.values) for layer in self.hf.self_attention_cache.layers]

    @property
    def cross(self) -> list[Layer]:
        """Keys and values of the source, for each layer."""
        return [(layer.keys, layer.values) for layer in self.hf.cross_attention_cache.layers]


class DecoderPositions:
    """The embedded positions of a decoder: what it gives to the tokens of one text, for rows at different places."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.module: nn.Module | None = getattr(model.get_decoder(), "embed_positions", None)
        self.table_TD = torch.empty(0)

    @contextmanager
    def at(self, places: Sequence[int]) -> Iterator[None]:
        """Give every row the position of its own token while the context is open."""
        if self.module is None:
            yield
            return
        if max(places) >= len(self.table_TD):
            further = min(2 * max(places) + 64, int(self.model.config.max_position_embeddings))
            self.table_TD = self._look_up(max(further, max(places) + 1))
        # A decoder numbers the tokens of all rows alike. A hook's return value takes the place of its positions.
        chosen_B1D = self.table_TD[places, None]
        handle = self.module.register_forward_hook(lambda *_: chosen_B1D)
        try:
            yield
        finally:
            handle.remove()

    def _look_up(self, length: int) -> Tensor:
        """Return the positions of a text of some length, as the decoder itself computes them.

        Families offset positions in ways of their own (M2M100 by the padding id, mBART by two), so the decoder is run
        once on a text of that length, and its embedded positions are recorded.
        """
        assert self.module is not None
        recorded: list[Tensor] = []
        handle = self.module.register_forward_hook(lambda _m, _i, output: recorded.append(output))
        token = 0 if self.model.config.pad_token_id else 1  # any but padding
        try:
            decoder = self.model.get_decoder()
            decoder(input_ids=torch.full((1, length), token, device=self.model.device), use_cache=False)
        finally:
            handle.remove()
        return recorded[0].reshape(length, -1)


def _filled(layers: Iterable[Layer]) -> DynamicCache:
    cache = DynamicCache()
    for number, (keys, values) in enumerate(layers):
        cache.update(keys, values, number)
    return cache
