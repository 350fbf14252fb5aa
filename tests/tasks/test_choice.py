"""Multiple choice by likelihood: the score of a choice is its own log-probability behind the premise."""

import pytest
import torch

from polyloom.backbones import backbone_from_config
from polyloom.conditions import Condition
from polyloom.data.records import Choices
from polyloom.model import Model
from polyloom.tasks.base import Example
from polyloom.tasks.batch import make_batch
from polyloom.tasks.choice import Choice, ChoiceConfig
from tests.contracts.tiny import CONFIGS, LANGUAGES, tiny_config
from tests.tasks.test_chat import tokenizer_with

RECORDS = [
    Choices("it was cold.", "effect", ("I took a coat", "I swam", "no"), "0"),
    Choices("good film", "", ("yes", "definitely not"), "1"),
    Choices("x" * 90, "", ("a", "b" * 60), "0"),
]
CONDITIONS = [Condition("choice", language) for language in LANGUAGES[:3]]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_with(None)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(7)
    sizes = {"model_type": "llama", "vocab_size": tokenizer.vocab_size, "max_position_embeddings": 200}
    backbone = backbone_from_config(CONFIGS["llama"] | sizes)
    made = Model(backbone, tiny_config("hyperx"), languages=LANGUAGES, tasks=["choice"])
    for parameter in made.method.parameters():
        parameter.data.normal_(std=0.3)
    return made.eval().requires_grad_(False)


def log_likelihood(model, tokenizer, condition, premise: str, choice: str) -> tuple[float, int]:
    """By the logits of the Transformers model, of the whole text."""
    before, after = tokenizer.text([premise, f" {choice}"])
    ids = torch.tensor([[tokenizer.text_begin, *before, *after]])
    logits = model({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, [condition]).logits[0].log_softmax(-1)
    places = range(len(before), len(before) + len(after))
    return sum(float(logits[place, ids[0, place + 1]]) for place in places), len(after)


@pytest.mark.parametrize("normalize", ["none", "tokens"])
def test_scores_are_log_likelihoods(model, tokenizer, normalize):
    task = Choice(ChoiceConfig(normalize=normalize), width=16)
    rows = Choice.encode(RECORDS, tokenizer, {})
    examples = [Example(condition, row) for condition, row in zip(CONDITIONS, rows, strict=True)]
    batch = make_batch(examples, tasks={"choice": task}, tokenizer=tokenizer, max_length=200)
    data = batch.by_task["choice"]
    weights, hidden = model._hidden(batch)
    states = model.head_inputs(hidden, weights)
    scores = task._scores(states, data)
    premises = ["it was cold. What happened as a result?", "good film", "x" * 90]
    for record, premise, condition, found in zip(RECORDS, premises, CONDITIONS, scores, strict=True):
        sums = [log_likelihood(model, tokenizer, condition, premise, choice) for choice in record.choices]
        expected = [total / count if normalize == "tokens" else total for total, count in sums]
        assert found[: len(expected)].tolist() == pytest.approx(expected, rel=1e-4)
        assert found[len(expected) :].tolist() == [-torch.inf] * (3 - len(expected))
    best = [str(int(row.argmax())) for row in scores]
    assert task.decode(states, data) == best
    right = torch.tensor([int(record.label) for record in RECORDS])
    loss = -scores.log_softmax(-1).gather(1, right[:, None]).sum()
    assert float(task.loss(states, data)) == pytest.approx(float(loss), rel=1e-5)


def test_a_long_premise_loses_its_beginning(tokenizer):
    task = Choice(ChoiceConfig(), width=16)
    (row,) = Choice.encode(RECORDS[2:], tokenizer)
    assert task.is_cut(row, tokenizer=tokenizer, max_length=80)
    short, long = task.layout(row, tokenizer=tokenizer, max_length=80)
    letter = tokenizer.text(["x"])[0][0]
    assert len(short.ids) == len(long.ids) == 80
    assert short.ids[:78] == [letter] * 78, "the last token of the choice is predicted, not read"
    assert long.ids[:20] == [letter] * 20
