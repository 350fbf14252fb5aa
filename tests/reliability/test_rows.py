"""One poisoned row among 32, and hostile inputs, at full size: R6 and R11."""

import io
import json
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.inference.predictor import Predictor
from polyloom.inference.streams import Tally, predict_stream
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.tasks.test_translation import LANGUAGES, model_for, sentence
from tests.tiny_run import sentences, tiny_recipe

TASKS = ("pos", "ner", "dep", "nli", "copa", "qa")
DRAW = random.Random("rows")


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """A model of all tasks on words and pairs, whose weights for ``cc`` are NaN."""
    folder = tmp_path_factory.mktemp("rows")
    recipe = tiny_recipe(folder, tasks=TASKS, train={"steps": 20})
    train_recipe(load_recipe(recipe), folder / "run")
    run = Run.load(folder / "run")
    row = list(run.model.method.languages).index("cc")
    for table in run.model.method.growing("language"):
        for parameter in table.parameters():
            parameter.data[row] = torch.nan
    return run.predictor


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("vocabulary")
    texts = {language: [sentence(i + 1000 * n) for i in range(200)] for n, language in enumerate(LANGUAGES)}
    train_vocabulary(texts, folder, config=VocabularyConfig(size=60), languages=LANGUAGES)
    tokenizer = load_tokenizer(str(folder))
    decoding = Decoding(beams=1, max_ratio=0.1, max_extra=2)
    return Predictor(model_for(tokenizer), tokenizer=tokenizer, decoding=decoding)


def answered(predictor: Predictor, lines: Iterable[bytes], tally: Tally | None = None) -> list[dict[str, Any]]:
    def check(condition: Condition) -> None:
        predictor.model.method.require_supported(condition)

    def predict(asked: list[Any]) -> Iterable[Any]:
        return predictor.predictions(asked, strict=False)

    stream, formats = io.BytesIO(b"".join(line + b"\n" for line in lines)), ("jsonl", "jsonl")
    made = predict_stream(stream, None, formats=formats, predict=predict, check=check, tally=tally)  # type: ignore[arg-type]
    return [json.loads(line) for line in "".join(made).split("\n")[:-1]]


def line(words: list[str]) -> bytes:
    condition = f"{DRAW.choice(TASKS)}/{DRAW.choice(['aa', 'bb'])}"
    task = condition.partition("/")[0]
    given = {"words": words} if task in TASKS[:3] else inputs(task, words[0], words[1])
    return json.dumps({"condition": condition, **given}).encode()


def inputs(task: str, text: str, other: str = "") -> dict[str, str]:
    other = other or text
    if task == "copa":
        return {"premise": text, "question": "cause", "choice1": other, "choice2": text}
    pairs = {"nli": ("premise", "hypothesis"), "qa": ("context", "question")}
    return dict(zip(pairs[task], (text, other), strict=True)) if task in pairs else {"text": text}


POISONS: dict[str, Callable[[str], bytes]] = {
    "NaN": lambda task: json.dumps({"condition": f"{task}/cc", **inputs(task, "ba do")}).encode(),
    "unknown language": lambda task: json.dumps({"condition": f"{task}/xx", **inputs(task, "ba")}).encode(),
    "unknown task": lambda _: b'{"condition": "zz/aa", "text": "ba"}',
    "50,001 letters": lambda task: json.dumps({"condition": f"{task}/aa", **inputs(task, "b" * 50_001)}).encode(),
    "2,001 words": lambda _: json.dumps({"condition": "dep/aa", "words": ["ba"] * 2_001}).encode(),
    "not UTF-8": lambda task: b'{"condition": "%b/aa", "text": "\xff"}' % task.encode(),
    "NUL": lambda task: json.dumps({"condition": f"{task}/aa", **inputs(task, "b\0")}).encode(),
    "surrogate": lambda task: json.dumps({"condition": f"{task}/aa", **inputs(task, "\ud800")}).encode(),
    "not JSON": lambda _: b'{"condition": ',
    "depth": lambda _: b"[" * 100_000,
    "2 MB": lambda _: b'{"text": "' + b"b" * 2_000_000 + b'"}',
}


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.nightly)])
def test_one_poisoned_row_among_32_leaves_the_31_others_as_they_are(predictor, rounds):
    """Every poison, in a random place of random batches of all tasks and two languages."""
    for _ in range(rounds):
        good = [line(DRAW.choices(["ba", "do", "fi", "gu"], k=DRAW.randint(2, 9))) for _ in range(31)]
        alone = answered(predictor, good)
        assert not any("error" in answer for answer in alone)
        for name, poison in POISONS.items():
            place = DRAW.randrange(32)
            task = DRAW.choice([t for t in TASKS if t != "nli" or name != "50,001 letters"])
            made = answered(predictor, [*good[:place], poison(task), *good[place:]])
            assert made.pop(place)["error"].startswith(f"stdin:{place + 1}: "), name
            assert made == alone, name


SLACK = 4  # a machine that others use at the same time
TOKENIZATIONS = 6  # of a text that is translated in parts; one of them alone took a second per MB
LETTERS = 50_000  # the longest input that is not refused
TEXTS = {
    "letters": "a" * LETTERS, "combining marks": "a" + "\u0301" * (LETTERS - 1), "marks alone": "\u0301" * LETTERS,
    "full stops": "." * LETTERS, "initials": "A. " * (LETTERS // 3), "addresses": "a@" * (LETTERS // 2),
    "links": "http://" * (LETTERS // 7), "hyphens": "a-" * (LETTERS // 2), "dotted": "a." * (LETTERS // 2),
    "digits": "1," * (LETTERS // 2), "flags": "\U0001f1e6" * LETTERS, "joiners": "\U0001f468\u200d" * (LETTERS // 2),
    "white space": " \u2028\u3000" * (LETTERS // 3), "apostrophes": "a'" * (LETTERS // 2), "brackets": "(" * LETTERS,
    "right to left": "\u202e\u05d0" * (LETTERS // 2), "unassigned": "\U000e0fff" * LETTERS,
    "hashes": "#a" * (LETTERS // 2),
}  # fmt: skip
BODIES = {
    "1e6 letters": json.dumps({"text": "a" * 10**6}).encode(),
    "10 MB": json.dumps({"text": "a" * 10**7}).encode(),
    "10 MB of words": json.dumps({"words": ["a"] * 2_000_000}).encode(),
    "depth 1e5": b"[" * 10**5, "depth 1e5 of objects": b'{"a":' * 10**5,
    "depth of a field": b'{"text": "ba", "a": ' + b"[" * 950 + b"]" * 950 + b"}",
    "number of 1e5 digits": b'{"text": "ba", "a": ' + b"9" * 10**5 + b"}",
    "number of 4,000 digits": b'{"text": "ba", "a": ' + b"9" * 4_000 + b"}",
    "1e999": b'{"text": "ba", "a": 1e999}', "NaN": b'{"text": "ba", "a": NaN}',
    "surrogates": b'{"text": "' + b"\\ud800" * 10_000 + b'"}', "NUL": b'{"text": "' + b"\\u0000" * 10_000 + b'"}',
    "keys": b"{" + b",".join(b'"%d": 1' % i for i in range(60_000)) + b', "text": "ba"}',
    "one key": b"{" + b",".join([b'"text": "ba"'] * 60_000) + b"}",
    "escapes": b'{"text": "' + b"\\u0061" * 40_000 + b'"}',
}  # fmt: skip


def with_condition(body: bytes, task: str, language: str) -> bytes:
    return body.replace(b"{", b'{"condition": "%b/%b", ' % (task.encode(), language.encode()), 1)


NIGHTLY = [pytest.param(task, marks=pytest.mark.nightly) for task in ("ner", "dep", "nli", "copa", "qa", "mt")]


def answer_hostile(
    predictor: Predictor, translator: Predictor, task: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, float]:
    """Ask for predictions of hostile inputs, each followed by a good one, which must be answered.

    Returns:
        The share of the allowed processor time that each took, beside the work of the model: 50 ms, or a second per MB.
    """
    model, languages = (translator, "sw/fi") if task == "mt" else (predictor, "aa")
    good = json.dumps({"condition": f"{task}/{languages}", **inputs(task, "ka")}).encode()
    bodies = {name: json.dumps(inputs(task, text)).encode() for name, text in TEXTS.items()} | BODIES
    worked, work = 0.0, Predictor._run_in_batches

    def clocked(self: Predictor, *arguments: Any, **options: Any) -> list[Any]:
        nonlocal worked
        began = time.process_time()
        made = work(self, *arguments, **options)
        worked += time.process_time() - began
        return made

    monkeypatch.setattr(Predictor, "_run_in_batches", clocked)
    answered(model, [good])
    took = {}
    refused = 0
    for name, body in bodies.items():
        hostile = with_condition(body, task, languages)
        began, worked = time.process_time(), 0.0
        (first, second) = answered(model, [hostile, good])
        seconds = time.process_time() - began - worked
        assert "error" not in second, name
        refused += "error" in first
        took[name] = seconds / max(0.05, len(hostile) / 1e6)
    print(f"\n{task}: {len(took)} inputs, {refused} refused")
    return took


@pytest.mark.parametrize("task", ["pos", *NIGHTLY])
def test_after_a_hostile_input_the_next_is_answered(predictor, translator, task, monkeypatch):
    assert answer_hostile(predictor, translator, task, monkeypatch).keys() == TEXTS.keys() | BODIES.keys()


@pytest.mark.timing
@pytest.mark.parametrize("task", ["pos", *NIGHTLY])
def test_hostile_inputs_are_refused_or_answered_in_linear_time(predictor, translator, task, monkeypatch):
    shares = answer_hostile(predictor, translator, task, monkeypatch)
    slowest = max(shares, key=shares.__getitem__)
    print(f"{task}: slowest: {slowest}, {shares[slowest]:.2f} of the allowed time")
    assert shares[slowest] <= SLACK * (TOKENIZATIONS if task == "mt" else 1), slowest


def test_sentences_of_a_stream_are_real(predictor):
    """The lines that the others stand beside are answered at all."""
    tally = Tally()
    answered(predictor, [line(words) for words in sentences("test")], tally)
    assert (tally.predicted, tally.failed) == (40, 0)
