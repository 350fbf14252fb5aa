"""Rows that come and go between steps get the texts that they get in a batch of their own."""

import random

import pytest
import torch

from polyloom.backbones.decoding import Decoding
from polyloom.errors import PredictionError
from polyloom.inference.cache import WeightCache
from polyloom.inference.in_flight import InFlight
from polyloom.tasks.translation import end_of
from tests.shared import nightly
from tests.tasks.test_translation import asked, batch_of, examples, model_for
from tests.tasks.test_translation import tokenizer as tokenizer  # noqa: PLC0414 - a fixture

GREEDY = Decoding(beams=1, max_ratio=1.5, max_extra=3)


def in_flight(model, tokenizer) -> InFlight:
    return InFlight(model, cache=WeightCache(model), eos_id=end_of(tokenizer), decoding=GREEDY)


def texts_of(model, tokenizer, rows, *, room: int, seed: int = 0) -> dict[int, list[int]]:
    """Generate the texts of rows that arrive at random moments."""
    search, draw, waiting = in_flight(model, tokenizer), random.Random(seed), list(enumerate(rows))
    texts: dict[int, list[int]] = {}
    while waiting or len(search):
        arriving = min(len(waiting), room - len(search), draw.randint(0, 3))
        if arriving > 0:
            new = [waiting.pop(0) for _ in range(arriving)]
            search.join(batch_of(model, tokenizer, [row for _, row in new]), [key for key, _ in new])
        texts |= dict(search.step())
        assert len(search) <= room
    return texts


def generated(model, tokenizer, rows):
    batch = batch_of(model, tokenizer, rows)
    return model.generate_ids(batch, eos_id=end_of(tokenizer), decoding=GREEDY)


@pytest.mark.parametrize("family", ["m2m_100", "mt5", *nightly("mbart", "marian", "t5")])
def test_texts_are_those_of_a_batch(tokenizer, family):
    model = model_for(tokenizer, family=family)
    rows = [asked(example) for example in examples(tokenizer)]
    expected = generated(model, tokenizer, rows)
    assert len({len(text) for text in expected}) > 5, "rows must end at different steps"
    for seed, room in enumerate((3, 32)):
        found = texts_of(model, tokenizer, rows, room=room, seed=seed)
        assert [found[key] for key in range(len(rows))] == expected


def test_rows_keep_prefixes_of_their_own(tokenizer, load_example):
    """The cache of a search holds no added keys and values, so rows can come and go between steps."""
    load_example("own_prefix")
    model = model_for(tokenizer, block="prefix")
    rows = [asked(example) for example in examples(tokenizer)]
    expected = generated(model, tokenizer, rows)
    found = texts_of(model, tokenizer, rows, room=5)
    assert [found[key] for key in range(len(rows))] == expected


def test_a_row_that_is_not_a_number_leaves_alone(tokenizer, monkeypatch):
    model = model_for(tokenizer)
    rows = [asked(example) for example in examples(tokenizer)]
    damaged, made = rows[3].condition, model.method.weights

    def weights(conditions):
        computed = made(conditions)
        if damaged in conditions:
            for tensor in computed.blocks[0].tensors.values():
                tensor[list(conditions).index(damaged)] = torch.nan
        return computed

    expected = generated(model, tokenizer, rows)
    monkeypatch.setattr(model.method, "weights", weights)
    found = texts_of(model, tokenizer, rows, room=8)
    assert isinstance(found.pop(3), PredictionError)
    assert found == {key: text for key, text in enumerate(expected) if key != 3}
