"""Multiple choice and questions about a context are read in the layouts in which they are published."""

import json
import re
from typing import Any

import datasets
import pytest

from polyloom.data.catalog import resolve
from polyloom.data.check import check_corpora
from polyloom.data.corpus_stats import CorpusRole, text_key
from polyloom.data.readers.formats import read_records
from polyloom.data.records import Answer, Choices, Question
from polyloom.errors import DataError
from polyloom.io import files

# The keys of XCOPA's files, of SuperGLUE's COPA and of Social IQa on the Hub, in their order.
XCOPA = {
    "premise": "Ese oli külm.", "choice1": "Ma tõin mantli.", "choice2": "Ma läksin ujuma.", "question": "effect",
    "label": 0, "idx": 3, "changed": False,
}  # fmt: skip
COPA = {"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "idx": 0, "label": 1}
SOCIAL = {"context": "a", "question": "Why?", "answerA": "b", "answerB": "c", "answerC": "d", "label": "3"}
LISTED = {"premise": "a", "question": "Why?", "choices": ["b", "c", "d", "e"], "label": 2}
CONTEXT = " Die Katze schläft in Köln. 猫は東京にいる。"
XQUAD: dict[str, Any] = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "56be",
                            "question": "Wo schläft sie?",
                            "answers": [{"answer_start": CONTEXT.index("Köln"), "text": "Köln"}],
                        },
                        {
                            "id": "56bf",
                            "question": "猫はどこ？",
                            "answers": [{"answer_start": CONTEXT.index("東京"), "text": "東京"}] * 2,
                        },
                    ],
                }
            ]
        },
        {"paragraphs": []},
    ],
    "version": "1.1",
}
QUESTIONS = [
    Question(CONTEXT, "Wo schläft sie?", (Answer("Köln", CONTEXT.index("Köln")),)),
    Question(CONTEXT, "猫はどこ？", (Answer("東京", CONTEXT.index("東京")),) * 2),
]


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_choices_of_every_layout(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(XCOPA, COPA, SOCIAL, LISTED))
    assert list(read_records(tmp_path / "a.jsonl", "choices")) == [
        Choices("Ese oli külm.", "effect", ("Ma tõin mantli.", "Ma läksin ujuma."), "0"),
        Choices("a", "cause", ("b", "c"), "1"),
        Choices("a", "Why?", ("b", "c", "d"), "2"),  # whose labels are counted from 1
        Choices("a", "Why?", ("b", "c", "d", "e"), "2"),
    ]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**COPA, "label": 2}, "label 2: it is none of the choices. Expected: 0, 1."),
        ({**COPA, "label": -1}, "label -1: it is none of the choices."),
        ({**COPA, "label": True}, "label True: it is none of the choices."),
        ({**SOCIAL, "label": "0"}, "label '0': it is none of the choices. Expected: 1, 2, 3."),
        ({k: v for k, v in COPA.items() if k != "label"}, "label None: it is none of the choices."),
        ({k: v for k, v in COPA.items() if k != "choice2"}, 'expected {"premise": "…"'),
        ({k: v for k, v in COPA.items() if k != "premise"}, 'expected {"premise": "…"'),
        ({**LISTED, "choices": ["b"] * 21}, 'expected {"premise": "…"'),
        ({**LISTED, "choices": "bc"}, 'expected {"premise": "…"'),
        ({**COPA, "choice2": 3}, "'choices' is not a string."),
        ({**COPA, "premise": "a\0"}, "'premise' has a NUL character."),
    ],
)
def test_choices_that_are_none_are_refused_with_their_line(tmp_path, row, says):
    (tmp_path / "a.jsonl").write_text(lines(COPA, row))
    with pytest.raises(DataError, match=re.escape(f"a.jsonl:2: {says}")):
        list(read_records(tmp_path / "a.jsonl", "choices"))


def test_questions_of_every_layout(tmp_path):
    """White space is kept: positions count it."""
    (tmp_path / "a.json").write_text(json.dumps(XQUAD, indent=1))
    assert list(read_records(tmp_path / "a.json", "question")) == QUESTIONS
    whole = list(resolve(str(tmp_path / "a.json[1:]")).records("question"))
    assert whole == QUESTIONS[1:]
    flat = [{**question, "context": CONTEXT} for question in XQUAD["data"][0]["paragraphs"][0]["qas"]]
    (tmp_path / "a.jsonl").write_text(lines(*flat))
    assert list(read_records(tmp_path / "a.jsonl", "question")) == QUESTIONS
    for row in flat:  # as data sets of the Hub have them
        row["answers"] = {key: [answer[key] for answer in row["answers"]] for key in ("text", "answer_start")}
    (tmp_path / "a.jsonl").write_text(lines(*flat))
    assert list(read_records(tmp_path / "a.jsonl", "question")) == QUESTIONS


def test_data_sets_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name in ("choices", "questions"):
        (tmp_path / name).mkdir()
    (tmp_path / "choices" / "train.jsonl").write_text(lines(XCOPA))
    (record,) = resolve(f"hf:{tmp_path / 'choices'}/train").records("choices")
    assert record == Choices("Ese oli külm.", "effect", ("Ma tõin mantli.", "Ma läksin ujuma."), "0")
    answers = {"text": ["Köln"], "answer_start": [CONTEXT.index("Köln")]}
    row = {"id": "1", "context": CONTEXT, "question": "Wo schläft sie?", "answers": answers}
    (tmp_path / "questions" / "train.jsonl").write_text(lines(row))
    assert list(resolve(f"hf:{tmp_path / 'questions'}/train").records("question")) == QUESTIONS[:1]
    with pytest.raises(DataError, match="read as question it has no columns to name"):
        list(resolve(f"hf:{tmp_path / 'questions'}/train#context").records("question"))


@pytest.mark.parametrize("shift", [-1, 1, 40, -2000])
def test_an_answer_that_is_not_where_it_is_said_to_be_is_refused(tmp_path, shift):
    start = CONTEXT.index("Köln")
    row = {
        "id": "7",
        "context": CONTEXT,
        "question": "Wo?",
        "answers": [{"text": "Köln", "answer_start": start + shift}],
    }
    (tmp_path / "a.jsonl").write_text(lines(row))
    says = f"a.jsonl:1: question 7: the context has no answer 'Köln' at character {start + shift}, counted from 0."
    with pytest.raises(DataError, match=re.escape(f"{says} It begins at {start}.")):
        list(read_records(tmp_path / "a.jsonl", "question"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"answers": []}, "question 56be: no answer. Questions that cannot be answered, as in SQuAD 2.0,"),
        ({"answers": [{"text": "Köln"}]}, "question 56be: an answer without text or answer_start."),
        ({"answers": [{"text": "", "answer_start": 0}]}, "question 56be: the context has no answer ''"),
        ({"answers": {"text": ["Köln"], "answer_start": []}}, "question 56be: no answer."),
        ({"question": " "}, "question 56be: it is empty."),
        ({"question": None}, "'question' is not a string."),
    ],
)
def test_questions_that_cannot_be_used_are_refused(tmp_path, change, says):
    document = json.loads(json.dumps(XQUAD))
    document["data"][0]["paragraphs"][0]["qas"][0] |= change
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=re.escape(f"a.json: {says}")):
        list(read_records(tmp_path / "a.json", "question"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no list 'data'"), ('{"data": [3]}', "no list 'paragraphs'"), ('{"data": ', "not JSON"),
        ('{"context": "a", "question": "b"}', r"no list 'data'.*write .*a\.json#jsonl"),
        ("[" * 100_000, "nested too deep"),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [3]}]}]}', "a question that is not an object"),
        ("\udcff", "not UTF-8"),
    ],
)  # fmt: skip
def test_another_document_is_refused(tmp_path, text, says):
    (tmp_path / "a.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=says):
        list(read_records(tmp_path / "a.json", "question"))


def test_a_document_has_a_limit(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(XQUAD))
    with pytest.raises(DataError, match="more than 100 bytes in one JSON document"):
        files.read_json_document(tmp_path / "a.json", limits=files.Limits(document_bytes=100))


def test_one_line_of_many_megabytes_is_a_document(tmp_path):
    """SQuAD is one line; JSON lines of that length are refused."""
    document = {"data": XQUAD["data"] * 3000}
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert (tmp_path / "a.json").stat().st_size > files.LIMITS.line_bytes
    assert list(read_records(tmp_path / "a.json", "question")) == QUESTIONS * 3000


def test_they_are_checked_like_other_corpora(tmp_path):
    (tmp_path / "train.jsonl").write_text(lines(XCOPA, COPA))
    (tmp_path / "test.jsonl").write_text(lines(COPA, {**COPA, "question": "effect"}, {**COPA, "choice1": ""}))
    (tmp_path / "train.json").write_text(json.dumps(XQUAD))
    roles = [
        CorpusRole("copa", "et", "train", resolve(str(tmp_path / "train.jsonl"))),
        CorpusRole("copa", "et", "test", resolve(str(tmp_path / "test.jsonl"))),
        CorpusRole("qa", "de", "train", resolve(str(tmp_path / "train.json"))),
    ]
    report = check_corpora(roles)
    train, test, questions = report.corpora
    assert (train.labels, test.labels, questions.labels) == ({"0": 1, "1": 1}, {"1": 3}, {})
    assert (train.sentences, test.empty, questions.sentences) == (2, 1, 2)
    assert [(overlap.name, overlap.count) for overlap in report.overlaps] == [(str(tmp_path / "test.jsonl"), 1)]
    one, other = Choices("a", "cause", ("b", "c"), "0"), Choices("a", "cause", ("c", "b"), "0")
    assert text_key(one) != text_key(other)
    assert text_key(QUESTIONS[0]) != text_key(QUESTIONS[1])
