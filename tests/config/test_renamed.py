"""Former names of settings are accepted, and answered with the new ones."""

import pytest

from polyloom.config import parse_recipe
from polyloom.config.renamed import upgrade

FORMER = {
    "backbone": {"config": {"model_type": "bert", "vocab_size": 100, "hidden_size": 32, "num_attention_heads": 2}},
    "method": {"name": "madx"},
    "languages": ["en", "tr"],
    "tasks": {"mlm": {}, "pos": {"labels": 3}},
    "data": {"train": {"pos/en": ["artificial:boza/train"]}},
    "mixture": {"kind": "round-robin", "cells_per_batch": 2},
    "optim": {"clip": 0.5},
    "train": {"fill": True, "vocabulary": "corpus", "accumulate": 2, "keep": 5},
    "stages": {"tasks": {"train": {"keep": 7}}},
    "start": "runs/before",
}


def test_former_names_are_accepted_and_named():
    with pytest.warns(FutureWarning) as warned:
        recipe = parse_recipe(FORMER)
    assert (recipe.mixture.strategy, recipe.mixture.datasets_per_batch) == ("round-robin", 2)
    assert recipe.optim.max_grad_norm == 0.5
    train = recipe.train
    assert (train.pack_sequences, train.mlm_candidates, train.grad_accum_steps, train.keep_last) == (
        True,
        "corpus",
        2,
        5,
    )
    assert recipe.stages["tasks"].train.keep_last == 7
    assert recipe.init_from == "runs/before"
    assert recipe.data.train == {"pos/en": ("synthetic:boza/train",)}
    texts = [str(warning.message) for warning in warned]
    assert any("mixture.kind is now called mixture.strategy" in text for text in texts)
    assert any("stages.tasks.train.keep is now called stages.tasks.train.keep_last" in text for text in texts)
    assert len(texts) == 10


def test_a_recipe_with_new_names_stays_as_it_is():
    upgraded, _ = upgrade(FORMER)
    assert upgrade(upgraded) == (upgraded, [])


def test_both_names_at_once_are_a_mistake():
    from polyloom.errors import ConfigError

    settings, _ = upgrade(FORMER)
    with pytest.raises(ConfigError, match=r"optim.clip: unknown key"):
        parse_recipe(settings | {"optim": {"clip": 1.0, "max_grad_norm": 1.0}})
