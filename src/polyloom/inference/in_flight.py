"""Greedy search over rows that join and leave: between two steps finished texts leave and waiting ones join.

The tokens of all rows end in the same column of the decoder's cache. A row that joins later has fewer tokens, so its
cache is padded on the left and the padding is masked::

    row 1  a b c d e        joined first
    row 2  . . c d e        joined two steps later: its token in column 2 has position 0

So rows differ in the positions of their tokens, and a model that embeds positions is told them (`DecoderPositions`).
Relative positions, as in T5, need nothing: distances are the same in all rows. Sources are padded on the right, as the
encoder saw them. Nothing else is shared between rows: each has its weights, its limit and its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from polyloom.backbones.decoding import Decoding
from polyloom.backbones.layout import Layout
from polyloom.backbones.stepwise import DecoderCache, DecoderPositions, Layer
from polyloom.conditions import Condition
from polyloom.errors import PredictionError
from polyloom.inference.cache import WeightCache
from polyloom.model import Model, nonfinite_error
from polyloom.tasks.batch import Batch
from polyloom.weights import Weights


@dataclass(eq=False)
class Row:
    """A text that is being generated."""

    key: Any
    """What the caller knows it by."""
    condition: Condition
    limit: int
    """Number of tokens that it may have, with its end."""
    prefix: Sequence[int]
    """Tokens that it must begin with, such as its language."""
    ids: list[int] = field(default_factory=list)
    """Its tokens so far, with the prefix."""
    failed: bool = False
    """Whether its scores were not finite."""

    def append(self, token: int, *, eos_id: int) -> None:
        """Append the next token: that of the search, or of the prefix, or the end if the limit is reached."""
        length = len(self.ids) - len(self.prefix)  # of the text, which is negative within the prefix
        if length < 0:
            token = self.prefix[len(self.ids)]
        elif length >= self.limit - 1:
            token = eos_id
        self.ids.append(token)

    def text(self) -> list[int] | PredictionError:
        """Return the tokens without the prefix and the end."""
        return nonfinite_error(self.condition) if self.failed else self.ids[len(self.prefix) : -1]


@dataclass
class _State:
    """Tensors of the rows, in the order of `rows`."""

    rows: list[Row]
    mask_BT: Tensor
    """Which columns of the cache hold tokens of a row."""
    cache: DecoderCache
    """Keys and values of the decoder's attention to the text and to the source."""
    source_BT: Tensor
    """Mask of the source."""
    encoded_BTD: Tensor
    """Encoded source."""
    weights: Weights
    layout: Layout | None = None
    """The weights as the decoder reads them, until rows join or leave."""

    def select(self, places: Sequence[int]) -> "_State":
        """Keep some rows, and the columns that they need: of texts the last ones, of sources the first ones."""
        index = torch.tensor(places, device=self.mask_BT.device)
        mask_BT, source_BT = self.mask_BT[index], self.source_BT[index]
        # Texts are padded on the left and sources on the right, so that is where columns may be needed no more. The
        # layout is of all rows, and is left out.
        first, last = int(mask_BT.any(0).int().argmax()), int(source_BT.sum(-1).max())
        return _State(
            [self.rows[place] for place in places],
            mask_BT[:, first:],
            DecoderCache(
                [(keys[index, :, first:], values[index, :, first:]) for keys, values in self.cache.own],
                [(keys[index, :, :last], values[index, :, :last]) for keys, values in self.cache.cross],
            ),
            source_BT[:, :last],
            self.encoded_BTD[index, :last],
            self.weights.for_rows(index),
        )

    def merge(self, other: "_State", weights: Weights) -> "_State":
        """Add the rows of another state."""
        return _State(
            self.rows + other.rows,
            _stack(self.mask_BT, other.mask_BT, dim=1, pad_left=True),
            DecoderCache(
                _stack_layers(self.cache.own, other.cache.own, pad_left=True),
                _stack_layers(self.cache.cross, other.cache.cross, pad_left=False),
            ),
            _stack(self.source_BT, other.source_BT, dim=1, pad_left=False),
            _stack(self.encoded_BTD, other.encoded_BTD, dim=1, pad_left=False),
            weights,
        )


class InFlight:
    """The rows of a translator that are being generated.

    Args:
        model: An encoder-decoder in evaluation mode.
        cache: Cache of its weights.
        eos_id: The token that ends a text.
        decoding: Limits of the texts; the search is greedy.
    """

    def __init__(self, model: Model, *, cache: WeightCache, eos_id: int, decoding: Decoding) -> None:
        self.model, self.weight_cache, self.eos_id, self.decoding = model, cache, eos_id, decoding
        self._state: _State | None = None
        self._positions = DecoderPositions(model.backbone.model)

    def __len__(self) -> int:
        return 0 if self._state is None else len(self._state.rows)

    @torch.inference_mode()
    def join(self, batch: Batch, keys: Sequence[Any]) -> None:
        """Add rows: encode their sources and compute their first token.

        Args:
            batch: Sources, with the prefixes of the texts as decoder inputs.
            keys: What `step` returns the texts by.
        """
        prefix_BP = batch.inputs["decoder_input_ids"]
        limits = self.decoding.limits(batch.inputs["attention_mask"]).tolist()
        rows = [
            Row(key, condition, limit, prefix, [prefix[0]])
            for key, condition, limit, prefix in zip(keys, batch.conditions, limits, prefix_BP.tolist(), strict=True)
        ]
        # The encoder runs once for each row, alone with those that join with it.
        weights = self.weight_cache.rows(batch.conditions)
        backbone, mask_BT = self.model.backbone, batch.inputs["attention_mask"]
        with backbone.using(weights, num_rows=len(rows)):
            encoder = backbone.model.get_encoder()
            encoded_BTD = encoder(input_ids=batch.inputs["input_ids"], attention_mask=mask_BT).last_hidden_state
        # Their first step is one of their own, which fills their cache; from then on they step with all others.
        no_tokens_B0 = torch.zeros(len(rows), 0, dtype=mask_BT.dtype, device=mask_BT.device)
        joining = self._advance(_State(rows, no_tokens_B0, DecoderCache(), mask_BT, encoded_BTD, weights))
        if self._state is None:
            self._state = joining
        else:
            conditions = [row.condition for row in (*self._state.rows, *rows)]
            self._state = self._state.merge(joining, self.weight_cache.rows(conditions))

    @torch.inference_mode()
    def step(self) -> list[tuple[Any, list[int] | PredictionError]]:
        """Return the texts that have ended, by their keys, and generate one token of every other row."""
        if self._state is None:
            return []
        unfinished = [place for place, row in enumerate(self._state.rows) if not self._ended(row)]
        ended = [(row.key, row.text()) for row in self._state.rows if self._ended(row)]
        if not unfinished:
            self._state = None
        else:
            state = self._state.select(unfinished) if ended else self._state
            self._state = self._advance(state)
        return ended

    @torch.inference_mode()
    def leave(self, leaves: Callable[[Any], bool]) -> list[Any]:
        """Remove rows by their keys, without a text; return their keys."""
        rows = self._state.rows if self._state else []
        leaving = [leaves(row.key) for row in rows]
        staying = [place for place, is_leaving in enumerate(leaving) if not is_leaving]
        if self._state and len(staying) < len(rows):
            self._state = self._state.select(staying) if staying else None
        return [row.key for row, is_leaving in zip(rows, leaving, strict=True) if is_leaving]

    def _ended(self, row: Row) -> bool:
        return row.failed or (len(row.ids) > len(row.prefix) and row.ids[-1] == self.eos_id)

    def _advance(self, state: _State) -> _State:
        """Run the decoder on the last token of every row."""
        backbone, rows = self.model.backbone, state.rows
        tokens_B1 = torch.tensor([[row.ids[-1]] for row in rows], device=state.source_BT.device)
        mask_BT = torch.cat([state.mask_BT, torch.ones_like(tokens_B1, dtype=state.mask_BT.dtype)], 1)
        places = [len(row.ids) - 1 for row in rows]
        # Laying weights out for a search copies them for each group of rows that share them, again whenever rows join
        # or leave. With four rows or more per group that pays within a step or two.
        shared = 4 * len(set(state.weights.decoder_keys)) <= len(rows)
        layout = state.layout or backbone.lay_out(state.weights, num_rows=len(rows), search=shared)
        with self._positions.at(places), backbone.using_layout(layout):
            hidden_B1D = backbone.model.get_decoder()(
                input_ids=tokens_B1,
                attention_mask=mask_BT,
                encoder_hidden_states=state.encoded_BTD,
                encoder_attention_mask=state.source_BT,
                past_key_values=state.cache.hf,
                use_cache=True,
            ).last_hidden_state
            scores_BV = backbone.vocabulary(hidden_B1D)[:, 0].float()
        # One number shows whether a row is finite: NaN in the decoder reaches every score of its row.
        finite, chosen = (~scores_BV[:, 0].isnan()).tolist(), scores_BV.argmax(-1).tolist()
        for row, token, is_finite in zip(rows, chosen, finite, strict=True):
            row.failed = not is_finite
            row.append(token, eos_id=self.eos_id)
        return replace(state, mask_BT=mask_BT, layout=layout)


def _stack(first: Tensor, second: Tensor, *, dim: int, pad_left: bool) -> Tensor:
    """Concatenate rows whose lengths differ in a dimension; the shorter ones are padded with zeros."""
    length = max(first.shape[dim], second.shape[dim])
    padded = []
    for tensor in (first, second):
        missing = list(tensor.shape)
        missing[dim] = length - tensor.shape[dim]
        zeros = tensor.new_zeros(missing)
        parts = [zeros, tensor] if pad_left else [tensor, zeros]
        padded.append(torch.cat(parts, dim) if missing[dim] else tensor)
    return torch.cat(padded)


def _stack_layers(first: Sequence[Layer], second: Sequence[Layer], *, pad_left: bool) -> list[Layer]:
    """Concatenate keys and values of the rows, ``[B, heads, T, D]``, layer by layer."""
    return [
        (_stack(k1, k2, dim=2, pad_left=pad_left), _stack(v1, v2, dim=2, pad_left=pad_left))
        for (k1, v1), (k2, v2) in zip(first, second, strict=True)
    ]
