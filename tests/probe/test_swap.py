"""A donor gives weights and nothing else; what the matrix says is what was scored."""

import pytest
import torch

from polyloom.cli.render.probe import show_swap
from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.probe.swap import (
    DonatedCache,
    donor_matrix,
    kept_language,
    language_matters,
    own_language,
    summarize,
    with_donor,
)
from tests.contracts.tiny import tiny_model


def conditions(*names: str) -> list[Condition]:
    return [Condition.parse(name) for name in names]


@pytest.mark.parametrize(
    ("names", "kept", "own"),
    [
        (["pos/en", "pos/tr"], None, ["en", "tr"]),
        (["pos/en"], None, ["en"]),
        (["mt/en/de", "mt/en/tr"], "en", ["de", "tr"]),
        (["mt/de/en", "mt/tr/en", "mt/en/fr"], "en", ["de", "tr", "fr"]),
        (["mt/en/de", "mt/de/en"], None, ["de", "en"]),
        (["mt/en/de"], None, ["de"]),
        (["mt/en/de", "mt/de/tr", "mt/tr/en"], None, ["de", "tr", "en"]),
    ],
)
def test_which_language_gives_up_its_weights(names, kept, own):
    every = conditions(*names)
    assert kept_language(every) == kept
    assert [own_language(condition, kept) for condition in every] == own
    assert [with_donor(c, mine, kept) for c, mine in zip(every, own, strict=True)] == every, "its own changes nothing"


def test_the_donor_takes_the_place_of_one_language():
    into, out_of = conditions("mt/en/de", "mt/de/en")
    assert with_donor(into, "tr", "en") == Condition("mt", "en", "tr")
    assert with_donor(out_of, "tr", "en") == Condition("mt", "tr", "en")
    assert with_donor(into, "en", "en") is None, "English into English is no direction"
    assert with_donor(Condition("pos", "de"), "tr", None) == Condition("pos", "tr")


def test_every_language_meets_every_donor():
    told = []
    values = {("en", "en"): 90.0, ("en", "tr"): 50.0, ("en", "yo"): 70.0, ("tr", "tr"): 80.0, ("tr", "en"): 85.0}
    found = donor_matrix(
        conditions("pos/en", "pos/tr"),
        ["en", "tr", "yo"],
        score=lambda condition, used: values.get((condition.source, used.source)),
        on_score=lambda *one: told.append(one),
    )
    assert found == {
        "languages": ["en", "tr"],
        "own": ["en", "tr"],
        "donors": ["en", "tr", "yo"],
        "scores": [[90.0, 50.0, 70.0], [85.0, 80.0, None]],
    }
    assert told[1] == ("en", "tr", 50.0)
    assert len(told) == 6
    english, turkish = summarize(found, higher_is_better=True)
    assert (english.best, english.best_score, english.mean, english.loss) == ("yo", 70.0, 60.0, 30.0)
    assert (turkish.best, turkish.mean, turkish.loss) == ("en", 85.0, -5.0)
    assert summarize(found, higher_is_better=False)[0].best == "tr", "of perplexities the lowest"
    assert summarize(found, higher_is_better=False)[0].loss == -30.0
    text = show_swap({"task": "pos", "metric": "accuracy", **found}, higher_is_better=True)
    assert "better than those of others by 12.50 on average, for 1 of 2 languages" in text
    assert "– not supported" in text


def test_where_language_does_not_matter_that_is_said():
    found = donor_matrix(conditions("pos/en", "pos/tr"), ["en", "tr"], score=lambda c, _: 70.0 + len(c.source))
    assert not language_matters(found)
    assert "Language does not matter" in show_swap({"task": "pos", "metric": "f1", **found}, higher_is_better=True)
    nothing = {"task": "pos", "metric": "f1", **found, "scores": [[0.0, 0.0], [0.0, None]]}
    assert "cannot be compared" in show_swap(nothing, higher_is_better=True)
    found["scores"][1][0] += 0.01
    assert language_matters(found)


def test_one_task_at_a_time():
    with pytest.raises(PolyloomError, match="exactly one task"):
        donor_matrix(conditions("pos/en", "ner/en"), ["en"], score=lambda *_: 0.0)


@pytest.mark.parametrize("method", ["hyper-adapters", "lang-adapters"])
def test_donated_weights_are_the_donors(method):
    model = tiny_model(method, "m2m_100")
    cache = DonatedCache(model)
    own, other, third = conditions("mt/en/tr", "mt/en/sw", "mt/sw/yo")
    before = cache.rows([own, third, own])
    cache.donated = {own: other}
    swapped = cache.rows([own, third, own])
    expected = model.weights([other, third, other])
    for block, was, meant in zip(swapped.blocks, before.blocks, expected.blocks, strict=True):
        for name, tensor in block.tensors.items():
            assert torch.allclose(tensor, meant.tensors[name], atol=1e-6)
            assert not torch.allclose(tensor, was.tensors[name], atol=1e-3)
    cache.donated = {own: other, third: other}
    shared, expected = cache.rows([own, third, own]), model.weights([other, other, other])
    for block, meant in zip(shared.blocks, expected.blocks, strict=True):
        for name, tensor in block.tensors.items():
            assert len(tensor) == 3  # one donor for all, and yet a set for each row
            assert torch.allclose(tensor, meant.tensors[name].expand_as(tensor), atol=1e-6)
    cache.donated = {}
    again = cache.rows([own, third, own])
    for block, was in zip(again.blocks, before.blocks, strict=True):
        assert all(torch.equal(tensor, was.tensors[name]) for name, tensor in block.tensors.items())
