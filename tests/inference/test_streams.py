"""Predictions as a filter: order, promptness, formats, and input that means no good. The model here is a stand-in."""

import io
import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyloom.conditions import Condition
from polyloom.data.records import LabelPrediction, Pair, ParsePrediction, Record, Tagged, TagPrediction
from polyloom.errors import DataError, PolyloomError, PredictionError
from polyloom.inference.predictor import WINDOW
from polyloom.inference.streams import Tally, choose_formats, predict_stream
from tests.reliability.forks import peak_memory
from tests.shared import DATA, needs_data


def pos(records: list[Record]) -> Iterator[TagPrediction]:
    """Tags that say which word they are for."""
    for record in records:
        assert isinstance(record, Tagged)
        labels = tuple(f"T{word}" for word in record.words)
        yield TagPrediction(record.words, labels, (), record.offsets)


def dep(records: list[Record]) -> Iterator[ParsePrediction]:
    for record in records:
        assert isinstance(record, Tagged)
        count = len(record.words)
        yield ParsePrediction(record.words, tuple(range(count)), ("r",) * count, ())


def nli(records: list[Record]) -> Iterator[LabelPrediction]:
    for record in records:
        assert isinstance(record, Pair)
        yield LabelPrediction(f"{record.first}>{record.second}", None)


EMPTY = '{"words": [], "labels": []}'
OFFSETS = '"offsets": [[0, 1]]'
PAIR = '"premise": "a", "hypothesis": "b"'
ANSWERS = {"pos": pos, "ner": pos, "dep": dep, "nli": nli}
POS = Condition("pos", "aa")
GOOD = {"text": b"a\n", "columns": b"a\n\n", "jsonl": b'{"text": "a"}\n', "conllu": b"1\ta" + b"\t_" * 8 + b"\n\n"}


def answers(inputs: list[tuple[Condition, Record]]) -> Iterator[Any]:
    for condition, record in inputs:
        yield from ANSWERS[condition.task]([record])


def filtered(
    content: str | bytes, task: str = "pos", source: str | None = None, target: str | None = None, **more: Any
) -> str:
    stream = io.BytesIO(content.encode() if isinstance(content, str) else content)
    formats = choose_formats(task, source, target)
    return "".join(predict_stream(stream, Condition(task, "aa"), formats=formats, predict=answers, **more))


@pytest.mark.parametrize(
    ("task", "source", "target", "given", "expected"),
    [
        ("pos", None, None, "a  b\n\nc\n", "a\tTa\nb\tTb\n\n\nc\tTc\n\n"),
        ("pos", None, None, "\ufeffa\r\nb", "a\tTa\n\nb\tTb\n\n"),
        ("pos", "tokenized", None, "a.b  c!\n", "a.b\tTa.b\nc!\tTc!\n\n"),
        ("pos", None, None, "a b, c!\n", "a\tTa\nb\tTb\n,\tT,\nc\tTc\n!\tT!\n\n"),
        ("pos", "text", "jsonl", "a\n\n", f'{{"words": ["a"], {OFFSETS}, "labels": ["Ta"]}}\n{EMPTY}\n'),
        ("ner", "columns", None, "a\tB-X\nb c\tO\n\n\nd\n", "a\tTa\nb c\tTb c\n\n\nd\tTd\n\n"),
        ("ner", "columns", None, "a B-X\nb O\n\n", "a\tTa\nb\tTb\n\n"),
        ("dep", None, None, "a b\n", "# text = a b\n1\ta\t_\t_\t_\t_\t0\tr\t_\t_\n2\tb\t_\t_\t_\t_\t1\tr\t_\t_\n\n"),
        ("dep", "text", "columns", "a b\n", "a\t0\tr\nb\t1\tr\n\n"),
        ("pos", "jsonl", None, '{"text": "é"}\n', f'{{"text": "é", "words": ["é"], {OFFSETS}, "labels": ["Té"]}}\n'),
        ("pos", "jsonl", None, '{"words": ["é"], "id": 7}\n', '{"words": ["é"], "id": 7, "labels": ["Té"]}\n'),
        ("pos", "jsonl", None, '{"words": [], "labels": ["X"]}\n\n', '{"words": [], "labels": []}\n' * 2),
        ("nli", None, None, "a b\tc\n\nd\t\n", "a b>c\n\nd>\n"),
        ("nli", "jsonl", None, f"{{{PAIR}}}\n", f'{{{PAIR}, "label": "a>b"}}\n'),
    ],
)  # fmt: skip
def test_what_goes_in_decides_what_comes_out(task, source, target, given, expected):
    made = filtered(given, task, source, target)
    if expected.startswith("{"):
        assert [json.loads(line) for line in made.splitlines()] == [json.loads(line) for line in expected.splitlines()]
    else:
        assert made == expected


@needs_data
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["UD_Turkish-BOUN/tr_boun", "UD_English-EWT/en_ewt"])
def test_of_a_treebank_only_what_is_predicted_changes(name, ends):
    (path,) = (DATA / "ud").glob(f"{name}-ud-test.conllu.xz")
    text = lzma.decompress(path.read_bytes()).decode()
    text = text[: text.index("\n\n", 200_000)].replace(
        "\n", ends
    )  # with ranges and empty nodes; no blank line at the end
    made = filtered(text, source="conllu").split("\n")
    given = text.split("\n")
    assert len(made) == len(given)
    changed = 0
    for one, other in zip(given, made, strict=True):
        datasets = one.split("\t")
        if len(datasets) == 10 and datasets[0].isdecimal():
            datasets[3] = f"T{datasets[1]}"
            changed += 1
        assert "\t".join(datasets) == other
    assert changed > 1000


@pytest.mark.parametrize("begin", ["\ufeff", "\n\n", "\r\n"])
def test_what_stands_around_sentences_stays(begin):
    text = begin + "# c\n1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n\n\n\n1\tb\t_\tX\t_\t_\t_\t_\t_\t_"
    assert filtered(text, source="conllu") == text.replace("a\t_\tX", "a\t_\tTa").replace("b\t_\tX", "b\t_\tTb")


class Chunks(io.BytesIO):
    """Gives one chunk after another."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self.chunks = iter(chunks)

    def read1(self, size: int | None = -1, /) -> bytes:
        return next(self.chunks, b"")


class Slow(io.BytesIO):
    """Gives one chunk, and then nothing before that was answered."""

    def __init__(self, chunks: Iterable[bytes], heard: list[str]) -> None:
        super().__init__()
        self.chunks, self.heard, self.given = iter(chunks), heard, 0

    def read1(self, size: int | None = -1, /) -> bytes:
        assert len(self.heard) >= self.given, "waits for more before it answers"
        chunk = next(self.chunks, b"")
        self.given += chunk.endswith(b"\n")
        return chunk


@pytest.mark.parametrize(
    ("source", "chunks"),
    [
        ("text", [b"a b\n", b"c", b" d\n", b"e\n"]),
        ("columns", [b"a\n\n", b"b\n\n"]),
        ("jsonl", [b'{"text": "a"}\n'] * 3),
    ],
)
def test_what_is_complete_is_answered_before_more_is_waited_for(source, chunks):
    heard: list[str] = []
    formats = choose_formats("pos", source, "columns")
    for text in predict_stream(Slow(chunks, heard), POS, formats=formats, predict=answers):
        heard.append(text)  # noqa: PERF402 - the stream looks at it
    assert len(heard) == sum(chunk.endswith(b"\n") for chunk in chunks)


def test_a_sentence_cut_by_the_border_of_a_chunk_is_one():
    text = "".join(f"wörd{i} ünd{i}\n" for i in range(20_000))
    made = filtered(text)
    assert made.split("\n\n")[:-1] == [f"wörd{i}\tTwörd{i}\nünd{i}\tTünd{i}" for i in range(20_000)]


def test_no_more_than_a_window_is_held():
    sizes = []

    def answer(inputs: list[tuple[Condition, Record]]) -> Iterator[Any]:
        sizes.append(len(inputs))
        yield from answers(inputs)

    list(predict_stream(io.BytesIO(b"a\n" * 5000), POS, formats=("text", "columns"), predict=answer))
    assert max(sizes) == WINDOW
    assert sum(sizes) == 5000


@pytest.mark.parametrize(
    ("source", "wrong", "line", "says"),
    [
        ("text", b"\xff\n", 3, "not UTF-8"),
        ("text", b"a\0b\n", 3, "NUL"),
        ("text", b"a" * 2_000_000 + b"\n", 3, "bytes"),
        ("text", b"a" * 1_000_000 + b"\n", 3, "1,000,000 letters"),
        ("text", b"a " * 400_000 + b"\n", 3, "400,000 words"),
        ("text", b"1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n", 3, "--input conllu"),
        ("jsonl", b"nonsense\n", 3, "not JSON"),
        ("jsonl", b"[" * 100_000 + b"\n", 3, "nested"),
        ("jsonl", b'{"words": [1]}\n', 3, "not a string"),
        ("jsonl", b'{"words": ["a\\tb"]}\n', 3, "a tab"),
        ("jsonl", b'{"words": ["\\ud800"]}\n', 3, "surrogate"),
        ("jsonl", b'{"txt": "a"}\n', 3, "expected"),
        ("columns", b"\tX\n\n", 5, "no word"),
        ("conllu", b"1\ta\n\n", 5, "columns"),
        ("conllu", b"# only\n\n", 5, "without words"),
    ],
)  # fmt: skip
def test_a_mistake_fails_alone_and_ends_a_strict_stream(source, wrong, line, says):
    stream = GOOD[source] * 2 + wrong + GOOD[source]
    heard = []
    with pytest.raises(DataError, match=rf"^stdin:{line}: .*{says}"):  # noqa: PT012
        for text in predict_stream(io.BytesIO(stream), POS, formats=(source, "columns"), predict=answers, strict=True):
            heard.append(text)  # noqa: PERF402
    assert "".join(heard) == "a\tTa\n\n" * 2
    tally = Tally()
    assert filtered(stream, source=source, target="columns", tally=tally) == "a\tTa\n\na\tTa\n\n\na\tTa\n\n"
    assert (tally.predicted, tally.failed) == (3, 1)
    assert tally.first.startswith(f"stdin:{line}: ")
    made = [json.loads(text) for text in filtered(stream, source=source, target="jsonl").split("\n")[:-1]]
    assert [made[i]["labels"] for i in (0, 1, 3)] == [["Ta"]] * 3
    assert made[2]["error"] == tally.first
    assert says in made[2]["error"]


def test_an_error_keeps_the_fields_of_its_line():
    lines = [
        b'{"id": 1, "words": ["a"]}',
        b'{"id": 2, "words": 3}',
        b'{"id": NaN, "words": ["a"]}',
        b'{"id": "\\ud800", "words": ["a"]}',
        b'{"id": 5, "words": ["\\ud800"]}',
        b'{"id": [6, ' + b"[" * 960 + b"]" * 960 + b'], "words": ["a"]}',
        b'{"id": [7, ' + b"[" * 460 + b"NaN" + b"]" * 460 + b'], "words": ["a"]}',
        b'{"id": 8, "words": ["a"]}',
    ]
    text = filtered(b"\n".join(lines), source="jsonl")
    text.encode()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    made = [json.loads(line, parse_constant=refuse) for line in text.split("\n")[:-1]]
    assert len(made) == len(lines)
    assert [line.get("id") for line in made[:5]] == [1, 2, None, "\ud800", 5]
    assert [sorted({"labels", "error", "note"} & set(line)) for line in made[:5]] == [
        ["labels"], ["error"], ["labels", "note"], ["labels"], ["error"],
    ]  # fmt: skip
    assert all(("labels" in line) != ("error" in line) for line in made)
    assert (made[-1]["id"], made[-1]["labels"]) == (8, ["Ta"])


def test_what_a_line_without_end_costs_is_bounded(tmp_path):
    """A line of 64 MB is refused, and the next one is answered; no more than a few MB are held."""
    chunks = [b"a\n", *[b"x" * (1 << 20)] * 64, b"\nb\n"]

    def work():
        made = "".join(predict_stream(Chunks(chunks), POS, formats=("text", "columns"), predict=answers))
        assert made == "a\tTa\n\n\nb\tTb\n\n"

    assert peak_memory(work, tmp_path) < 16 << 20


def test_a_sentence_without_end_fails_alone():
    word = b"1\ta" + b"\t_" * 8 + b"\n"
    tally = Tally()
    made = filtered(GOOD["conllu"] + word * 100_000 + b"\n" + GOOD["conllu"], source="conllu", tally=tally)
    assert made.count("Ta") == 2
    assert made.split("\n\n")[1].startswith("\n")
    assert "more than 1048576 letters" in tally.first


def test_a_prediction_that_failed_is_an_error_in_its_place():
    def predict(inputs: list[tuple[Condition, Record]]) -> Iterator[Any]:
        for (_, record), answer in zip(inputs, answers(inputs), strict=True):
            yield PredictionError("not finite") if record.words == ("b",) else answer  # type: ignore[attr-defined]

    stream = b'{"words": ["a"]}\n{"words": ["b"], "id": 3}\n{"words": ["a"]}\n'
    made = "".join(predict_stream(io.BytesIO(stream), POS, formats=("jsonl", "jsonl"), predict=predict))
    lines = [json.loads(line) for line in made.splitlines()]
    assert [line.get("labels") for line in lines] == [["Ta"], None, ["Ta"]]
    assert lines[1] == {"words": ["b"], "id": 3, "error": "stdin:2: not finite"}
    heard = []
    with pytest.raises(DataError, match="stdin:2: not finite"):  # noqa: PT012
        for text in predict_stream(io.BytesIO(stream), POS, formats=("jsonl", "jsonl"), predict=predict, strict=True):
            heard.append(text)  # noqa: PERF402
    assert json.loads("".join(heard))["labels"] == ["Ta"]


def test_columns_of_pairs_are_two():
    for line, count in (("a\n", "1 column,"), ("a\tb\tc\n", "3 columns,")):
        with pytest.raises(DataError, match=f"stdin:1: {count} not 2"):
            filtered(line, "nli", strict=True)


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0\t\ufeff{", exclude_categories=["Cs"]))))
def test_every_line_of_text_has_an_answer_in_its_place(lines):
    made = filtered("".join(f"{line}\n" for line in lines), source="tokenized", target="jsonl")
    assert [json.loads(line)["words"] for line in made.split("\n")[:-1]] == [line.split() for line in lines]


@given(st.binary(max_size=200), st.sampled_from(["text", "tokenized", "columns", "conllu", "jsonl"]))
def test_no_bytes_break_it(content, source):
    made = filtered(content, source=source, target="jsonl")
    assert all(("labels" in line) != ("error" in line) for line in map(json.loads, made.split("\n")[:-1]))
    try:
        filtered(content, source=source, target="jsonl", strict=True)
    except DataError as error:
        assert str(error).startswith("stdin:")  # noqa: PT017


def test_formats_that_cannot_be_are_refused():
    for task, source, target, says in (
        ("mlm", None, None, "nothing to predict"),
        ("ps", None, None, "Did you mean 'pos'"),
        ("nli", "text", None, "Known: columns, jsonl"),
        ("ner", "conllu", "conllu", "cannot hold predictions of ner"),
        ("nli", None, "conllu", "cannot hold"),
    ):
        with pytest.raises(PolyloomError, match=says):
            choose_formats(task, source, target)


MIXED = [
    {"condition": "pos/tr", "text": "a"},
    {"condition": "nli/de", "premise": "a", "hypothesis": "b"},
    {"condition": "pos/en", "words": ["b"], "id": 1},
    {"condition": "pos/tr", "words": ["c"]},
]


def mixed(lines: Iterable[Any], condition: Condition | None = None, **more: Any) -> list[Any]:
    stream = io.BytesIO("".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def predict(inputs: list[tuple[Condition, Record]]) -> Iterator[Any]:
        for (own, _), answer in zip(inputs, answers(inputs), strict=True):
            if isinstance(answer, TagPrediction):
                yield replace(answer, labels=tuple(f"{label}/{own.source}" for label in answer.labels))
            else:
                yield answer

    made = predict_stream(stream, condition, formats=choose_formats(None, None, None), predict=predict, **more)
    return [json.loads(line) for line in "".join(made).splitlines()]


def test_every_line_is_predicted_under_its_own_condition():
    made = mixed(MIXED)
    assert [line.get("labels", line.get("label")) for line in made] == [["Ta/tr"], "a>b", ["Tb/en"], ["Tc/tr"]]
    assert made[2] == {"condition": "pos/en", "words": ["b"], "id": 1, "labels": ["Tb/en"]}
    made = mixed([{"words": ["x"]}, *MIXED], POS)
    assert [line.get("labels", line.get("label")) for line in made] == [
        ["Tx/aa"],
        ["Ta/tr"],
        "a>b",
        ["Tb/en"],
        ["Tc/tr"],
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"words": ["x"]}, 'no "condition"'),
        ({"condition": "pos", "words": ["x"]}, "expected task/language"),
        ({"condition": 3, "words": ["x"]}, "condition"),
        ({"condition": "ps/tr", "words": ["x"]}, "Did you mean 'pos'"),
        ({"condition": "mlm/tr", "words": ["x"]}, "nothing to predict"),
        ({"condition": "pos/xx", "words": ["x"]}, "unknown language"),
    ],
)
def test_a_condition_that_cannot_be_is_an_error_with_the_number_of_its_line(line, says):
    def check(condition: Condition) -> None:
        if condition.source == "xx":
            raise PolyloomError("unknown language")

    with pytest.raises(DataError, match=rf"^stdin:2: .*{says}"):
        mixed([MIXED[0], line], check=check, strict=True)
    before, wrong, behind = mixed([MIXED[0], line, MIXED[2]], check=check)
    assert (before["labels"], behind["labels"]) == (["Ta/tr"], ["Tb/en"])
    assert says in wrong.pop("error")
    assert wrong == line


def test_without_a_condition_the_input_is_json():
    with pytest.raises(PolyloomError, match="every line must name its own"):
        choose_formats(None, "text", None)


def test_raw_text_is_segmented_and_its_offsets_are_kept():
    text = "  Die Katze,  sagt er."
    (line,) = (json.loads(line) for line in filtered(json.dumps({"text": text}), source="jsonl").splitlines())
    assert line["words"] == ["Die", "Katze", ",", "sagt", "er", "."]
    assert [text[start:end] for start, end in line["offsets"]] == line["words"]
    made = filtered("Ja, er.\n", "dep")
    assert made.startswith("# text = Ja, er.\n1\tJa\t")
    assert [row.split("\t")[9] for row in made.splitlines()[1:-1]] == ["SpaceAfter=No", "_", "SpaceAfter=No", "_"]
