"""Batches that mix tasks and languages: every example is learnt and answered as it would be alone."""

import numpy as np
import pytest
import torch

from polyloom.backbones import backbone_from_config
from polyloom.conditions import Condition
from polyloom.data.records import Answer, Choices, Pair, Question, Tagged, Text, Tree
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.errors import ConditionError
from polyloom.metrics.score import METRICS
from polyloom.model import Model
from polyloom.tasks import TASKS, build_task
from polyloom.tasks.base import Example
from polyloom.tasks.batch import make_batch
from tests.contracts.tiny import CONFIGS, tiny_config
from tests.tiny_run import write_backbone

WORDS = ["ba", "do", "fi", "gu", "ko", "lem", "mur", "sat", "mababo"]
ENCODERS = ["bert", "roberta", "xlm-roberta", "distilbert", "deberta-v2", "modernbert"]
LABELS: dict[str, tuple[str, ...] | None] = {
    "pos": ("A", "B", "C"),
    "ner": ("O", "B-X", "I-X"),
    "dep": ("root", "sub", "obj"),
    "nli": ("no", "yes"),
    "mlm": None,
    "copa": None,
    "qa": None,
}
MAX_LENGTH = 16


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("backbone")
    write_backbone(folder)
    return load_tokenizer(folder)


def model_for(method: str, tokenizer: Tokenizer, family: str = "bert") -> Model:
    torch.manual_seed(1)
    backbone = backbone_from_config(CONFIGS[family] | {"model_type": family, "vocab_size": tokenizer.vocab_size})
    tasks = {name: labels for name, labels in LABELS.items() if method != "psf" or (labels and name != "dep")}
    model = Model(backbone, tiny_config(method), languages=["en", "tr", "sw"], tasks=tasks)
    for parameter in [*model.method.parameters(), *model.heads.parameters()]:
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def records(task: str, count: int, rng: np.random.Generator):
    """Some sentences are longer than a row may be."""
    for i in range(count):
        length = int(rng.integers(1, 6)) if i % 3 else int(rng.integers(20, 40))
        words = tuple(rng.choice(WORDS, length).tolist())
        if task == "mlm":
            yield Text(" ".join(words))
        elif task == "nli":
            yield Pair(" ".join(words), "ba do", str(rng.choice(["no", "yes"])))
        elif task == "copa":
            choices = tuple(" ".join(rng.choice(WORDS, int(rng.integers(1, 9)))) for _ in range(2 + i % 3))
            yield Choices(" ".join(words), str(rng.choice(["cause", "effect", "ba"])), choices, str(i % len(choices)))
        elif task == "qa":
            text = " ".join(words)
            first, last = sorted(int(place) for place in rng.integers(0, length, 2))
            start = len(" ".join([*words[:first], ""]))
            yield Question(text, "fi gu", (Answer(" ".join(words[first : last + 1]), start),))
        elif task == "dep":
            yield Tree(words, tuple(range(length)), ("root", *["obj"] * (length - 1)))
        else:
            yield Tagged(words, tuple(rng.choice(LABELS[task] or (), length).tolist()))


def examples_of(model: Model, tokenizer: Tokenizer, *, seed: int = 0, with_labels: bool = True) -> list[Example]:
    rng = np.random.default_rng(seed)
    found: list[Example] = []
    for task in model.tasks.values():
        index = {label: i for i, label in enumerate(task.labels)} if with_labels else None
        rows = task.encode(list(records(task.name, 6, rng)), tokenizer, index)
        for row, language in zip(rows, ["en", "tr", "sw"] * 2, strict=True):
            found.append(Example(Condition(task.name, language), row, len(found)))
    rng.shuffle(found)
    return found


def batch_of(model: Model, tokenizer: Tokenizer, examples: list[Example]):
    return make_batch(examples, tasks=model.tasks, tokenizer=tokenizer, max_length=MAX_LENGTH)


@pytest.mark.parametrize("method", ["hyperx", "madx", "multilingual", "full", "psf"])
def test_a_batch_of_all_tasks_and_languages_equals_each_example_alone(method, tokenizer):
    model = model_for(method, tokenizer)
    examples = examples_of(model, tokenizer)
    together = model.losses(batch_of(model, tokenizer, examples))
    alone: dict[str, float] = {}
    for example in examples:
        ((task, loss),) = model.losses(batch_of(model, tokenizer, [example])).items()
        alone[task] = alone.get(task, 0.0) + float(loss.detach())
    assert together.keys() == alone.keys() == model.tasks.keys()
    for task, loss in together.items():
        assert float(loss.detach()) == pytest.approx(alone[task], rel=1e-5), task


@pytest.mark.parametrize("method", ["hyperx", "psf"])
def test_answers_come_in_the_order_of_the_examples_and_as_they_would_alone(method, tokenizer):
    model = model_for(method, tokenizer)
    examples = examples_of(model, tokenizer, with_labels=False)
    together = model.predict(batch_of(model, tokenizer, examples))
    for example, answer in zip(examples, together, strict=True):
        (alone,) = model.predict(batch_of(model, tokenizer, [example]))
        assert answer == pytest.approx(alone, rel=1e-5) if example.condition.task == "mlm" else answer == alone


@pytest.mark.parametrize("task", ["pos", "ner", "dep"])
def test_one_label_per_word_also_in_long_sentences(task, tokenizer):
    model = model_for("hyperx", tokenizer)
    given = list(records(task, 9, np.random.default_rng(3)))
    rows = list(TASKS[task].encode(given, tokenizer))
    answers = model.predict(batch_of(model, tokenizer, [Example(Condition(task, "tr"), row) for row in rows]))
    assert any(len(record.words) > MAX_LENGTH for record in given)
    for record, answer in zip(given, answers, strict=True):
        labels = answer.relations if task == "dep" else answer
        assert len(labels) == len(record.words)
        if task == "dep":
            assert answer.heads.count(0) == 1


def test_the_condition_of_an_example_decides(tokenizer):
    """If languages were ignored, the same sentence would have the same loss in all of them."""
    model = model_for("hyperx", tokenizer)
    row = next(TASKS["pos"].encode([Tagged(("ba", "ko"), ("A", "B"))], tokenizer, {"A": 0, "B": 1}))
    losses = [
        float(model.losses(batch_of(model, tokenizer, [Example(Condition("pos", language), row)]))["pos"].detach())
        for language in ("en", "tr", "sw")
    ]
    assert len({round(loss, 4) for loss in losses}) == 3


@pytest.mark.parametrize("family", ENCODERS)
def test_the_vocabulary_at_masked_places_is_the_model_s_own(family, tokenizer):
    """Only masked places go through the head; the logits there must be those of the whole model, inverse included."""
    model = model_for("madx", tokenizer, family)
    ids = torch.randint(5, tokenizer.vocab_size, (3, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    rows = ["mlm/en", "mlm/tr", "mlm/sw"]
    whole = model(inputs, rows).logits
    weights = model.weights(rows)
    with model.backbone.using(weights, num_rows=3):
        hidden = model.backbone.hidden(**inputs)
    row, place = torch.tensor([2, 0, 0, 1, 2]), torch.tensor([5, 1, 6, 2, 3])  # as many of a row as it has masks
    logits = model._vocabulary(hidden[row, place], row, weights=weights)
    torch.testing.assert_close(logits, whole[row, place], rtol=0, atol=1e-5)
    some = torch.tensor([3, 4, 9])
    narrow = model._vocabulary(hidden[row, place], row, some, weights=weights)
    torch.testing.assert_close(narrow, whole[row, place][:, some], rtol=0, atol=1e-5)
    again = model._vocabulary(hidden[row, place], row, weights=weights)
    assert torch.equal(again, logits), "as wide as before"


def test_masks_depend_on_the_key_alone_and_are_learnt_at_the_right_places(tokenizer):
    rows = list(TASKS["mlm"].encode([Text(" ".join(WORDS * 2))], tokenizer))
    task = build_task("mlm", (), width=8)
    examples = ([Example(Condition("mlm", "en"), rows[0], key)] for key in (5, 5, 6))
    one, same, other = (task.collate(some, tokenizer=tokenizer, max_length=30) for some in examples)
    assert one.sequences == same.sequences
    assert one.sequences != other.sequences
    clean = tokenizer.single(list(rows[0]["tokens"]))
    ids, places = one.sequences[0].ids, one.targets["place_N"].tolist()
    assert [clean[place] for place in places] == one.targets["labels_BM"][0].tolist()
    changed = [place for place in range(len(clean)) if ids[place] != clean[place]]
    assert set(changed) <= set(places)


def test_a_generated_classifier_is_not_taken_for_a_parser(tokenizer):
    torch.manual_seed(0)
    backbone = backbone_from_config(CONFIGS["bert"] | {"model_type": "bert", "vocab_size": tokenizer.vocab_size})
    model = Model(backbone, tiny_config("psf"), languages=["en"], tasks={"dep": LABELS["dep"]})
    row = next(TASKS["dep"].encode([Tree(("ba",), (0,), ("root",))], tokenizer, {"root": 0}))
    with pytest.raises(ConditionError, match="a parser is none"):
        model.losses(batch_of(model, tokenizer, [Example(Condition("dep", "en"), row)]))


def test_every_task_says_how_it_is_scored():
    for task in TASKS.values():
        assert all(metric in METRICS.values() for metric in task.metrics)
        assert task.metrics
