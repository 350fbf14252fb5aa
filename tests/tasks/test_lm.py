"""Causal language modelling: losses are Transformers' own, texts in one row do not see each other, none is cut."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from polyloom.backbones import FAMILIES
from polyloom.conditions import Condition
from polyloom.data.records import Text
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import BackboneError
from polyloom.metrics.score import BITS_PER_BYTE, PERPLEXITY
from polyloom.model import Model
from polyloom.tasks import TASKS, build_task
from polyloom.tasks.base import Example
from polyloom.tasks.batch import make_batch
from tests.contracts.tiny import LANGUAGES, VOCAB, is_decoder, tiny_backbone, tiny_config

BEGIN, END = 1, 2
TOKENIZER: Any = SimpleNamespace(pad_id=0, eos_id=END, text_begin=BEGIN, text_end=END, uses_types=False)
DECODERS = [family for family in FAMILIES if is_decoder(family)]
CONDITIONS = [Condition.parse(f"lm/{language}") for language in LANGUAGES]


def model_of(family: str, method: str = "hyperx") -> Model:
    model = Model(tiny_backbone(family), tiny_config(method), languages=LANGUAGES, tasks=["lm"])
    torch.manual_seed(11)
    for parameter in model.method.parameters():
        parameter.data.normal_(std=0.3)
    return model.eval().requires_grad_(False)


def texts(*lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [[BEGIN, *draw.integers(4, VOCAB, length).tolist(), END] for length in lengths]


def batch_of(rows, conditions=CONDITIONS, *, max_length=30):
    examples = [Example(condition, row) for condition, row in zip(conditions, rows, strict=False)]
    return make_batch(
        examples, tasks={"lm": build_task("lm", None, width=16)}, tokenizer=TOKENIZER, max_length=max_length
    )


def row_of(tokens):
    return {"tokens": tokens, "length": len(tokens) - 1}


def own_losses(model, tokens, condition):
    """The losses of a text alone, by the logits of the Transformers model."""
    ids = torch.tensor([tokens[:-1]])
    logits = model({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, [condition]).logits[0]
    return F.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none")


@pytest.mark.parametrize("family", DECODERS)
def test_a_mixed_batch_has_the_losses_of_each_text_alone(family):
    model, given = model_of(family), texts(3, 11, 1, 0, 7, 20)
    batch = batch_of(map(row_of, given))
    alone = [own_losses(model, tokens, condition) for tokens, condition in zip(given, CONDITIONS, strict=True)]
    assert float(model.losses(batch)["lm"]) == pytest.approx(float(sum(one.sum() for one in alone)), rel=1e-5)
    for (total, count), tokens, one in zip(model.predict(batch), given, alone, strict=True):
        assert count == len(tokens) - 2, "begin and end are not counted"
        assert total == pytest.approx(float(one[:-1].sum()), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_texts_in_one_row_do_not_see_each_other(family):
    model, given = model_of(family), texts(3, 0, 8, 5)
    starts = np.cumsum([0, *map(len, given)])[:-1]
    packed = {"tokens": np.concatenate(given), "starts": starts, "length": sum(map(len, given))}
    others = row_of(texts(9)[0])
    batch = batch_of([packed, others], CONDITIONS[:2])
    assert batch.by_task["lm"].count == sum(len(tokens) - 1 for tokens in given) + 10
    expected = sum(own_losses(model, tokens, CONDITIONS[0]).sum() for tokens in given)
    expected += own_losses(model, others["tokens"], CONDITIONS[1]).sum()
    assert float(model.losses(batch)["lm"]) == pytest.approx(float(expected), rel=1e-5)


def test_a_long_text_is_scored_whole():
    model, (tokens,) = model_of("llama"), texts(25)
    batch = batch_of([row_of(tokens)], max_length=10)
    assert [len(one.ids) for one in batch.by_task["lm"].sequences] == [10, 10, 6]
    ((total, count),) = model.predict(batch)
    windows = [tokens[start : start + 11] for start in (0, 10, 20)]
    expected = torch.cat([own_losses(model, window, CONDITIONS[0]) for window in windows])
    assert (count, len(expected)) == (25, 26)
    assert total == pytest.approx(float(expected[:-1].sum()), rel=1e-5)


def test_training_takes_every_part_of_a_long_text():
    task, (tokens,) = build_task("lm", None, width=16), texts(25)
    parts = [task.excerpt(row_of(tokens), key, max_length=10)["tokens"] for key in range(400)]
    assert {tuple(part) for part in parts} == {tuple(tokens[start : start + 11]) for start in range(len(tokens) - 10)}
    short = row_of(tokens[:11])
    assert task.excerpt(short, 0, max_length=10) == short


def test_bits_per_byte_count_the_bytes_of_the_text():
    task = build_task("lm", None, width=16)
    found = task.measure([Text("añb"), Text("")], [(3.0, 2), (0.0, 0)], "es")
    assert found[BITS_PER_BYTE].tolist() == [[3.0, 2, 4], [0.0, 0, 0]]
    assert float(BITS_PER_BYTE.value(found[BITS_PER_BYTE].sum(0))) == pytest.approx(3 / 4 / math.log(2))
    assert float(PERPLEXITY.value(found[PERPLEXITY].sum(0))) == pytest.approx(math.exp(1.5))


@pytest.mark.parametrize("family", ["xlm-roberta", "m2m_100"])
def test_a_model_that_sees_the_future_is_refused(family):
    with pytest.raises(BackboneError, match="no causal language model"):
        model_of(family).losses(batch_of(map(row_of, texts(3, 4))))


@pytest.mark.parametrize(
    ("special", "bos", "eos", "around"),
    [
        (["<s>", "</s>"], "<s>", "</s>", ("<s>", "</s>")),
        (["<|im_start|>", "<|im_end|>", "<|endoftext|>"], "<|im_start|>", "<|im_end|>", ("<|endoftext|>",) * 2),
        (
            ["<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"], "<|begin_of_text|>", "<|eot_id|>",
            ("<|begin_of_text|>", "<|end_of_text|>"),
        ),
        (["</s>"], None, "</s>", ("</s>", "</s>")),
    ],
)  # fmt: skip
def test_texts_stand_between_the_tokens_of_pretraining_not_those_of_a_conversation(special, bos, eos, around):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({token: i for i, token in enumerate([*special, *letters])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(special)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos)
    begin, end = (special.index(token) for token in around)
    (row,) = TASKS["lm"].encode([Text("a")], Tokenizer(made))
    assert (row["tokens"][0], row["tokens"][-1]) == (begin, end)
