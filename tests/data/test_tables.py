"""Headers are found where they are, and nowhere else; options after # choose format and columns."""

import io
from pathlib import Path
from typing import Any

import pytest

from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.readers.formats import header_of, read_records
from polyloom.data.records import Bitext, Kind, LabelledText, Pair, Record, Tagged, Text, Tree
from polyloom.errors import DataError
from polyloom.inference.streams import predict_stream
from polyloom.tasks import TASKS

CONLL = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"
NER = [Tagged(("EU", "rejects"), ("B-ORG", "O")), Tagged(("Peter",), ("B-PER",))]
POS = [Tagged(("EU", "rejects"), ("NNP", "VBZ")), Tagged(("Peter",), ("NNP",))]
TABS = CONLL.replace(" ", "\t")
NAMED = "Word\tpos\tchunk\tner\n" + TABS
REVIEWS = "review\tstars\nfine film\t5\ndull\t1\n"
STARS = [LabelledText("fine film", "5"), LabelledText("dull", "1")]


def read(folder: Path, name: str, text: str, kind: Kind) -> list[Record]:
    (folder / name.partition("#")[0]).write_text(text)
    return list(resolve(f"{folder}/{name}").records(kind))


@pytest.mark.parametrize(
    ("name", "text", "kind", "records"),
    [
        ("a.conll", CONLL, "tags", NER),
        ("a.txt", CONLL, "tags", NER),
        ("a.tsv", TABS, "tags", NER),
        ("a.data#conll", CONLL, "tags", NER),
        ("a#txt", CONLL, "tags", NER),
        ("a.tsv#word,_,_,tag", TABS, "tags", NER),
        ("a.conll#word,tag,_,_", CONLL, "tags", POS),
        ("a.data#conll:token,pos,_,_", CONLL, "tags", POS),
        ("a.conll#word,tag,_,_", CONLL, "text", [Text("EU rejects"), Text("Peter")]),
        ("a.tsv#ner", NAMED, "tags", NER),
        ("a.tsv#POS", NAMED, "tags", POS),
        ("a.tsv#word,pos", NAMED, "tags", POS),
        ("a.tsv#word,tag,_,_", NAMED, "tags", POS),
        ("a.data#tsv:ner", NAMED, "tags", NER),
        ("a.iob2#_,word,_,tag", "# text = EU\n1\tEU\tO\tB-ORG\n2\trejects\tO\tO\n\n1\tPeter\t-\tB-PER\n", "tags", NER),
        ("a.tsv#review,stars", REVIEWS, "labelled", STARS),
        ("a.tsv#_,text,label", "1\tfine film\t5\n2\tdull\t1\n", "labelled", STARS),
        ("a.tsv#label,text", "5\tfine film\n1\tdull\n", "labelled", STARS),
        ("a.csv#review,stars", REVIEWS.replace("\t", ","), "labelled", STARS),
        ("a.data#csv:review,stars", REVIEWS.replace("\t", ","), "labelled", STARS),
        ("a.json#jsonl:review,stars", '{"stars": 5, "review": "fine film", "text": "x"}', "labelled", STARS[:1]),
        ("a.jsonl#stars", '{"stars": 5, "text": "fine film", "label": "x"}', "labelled", STARS[:1]),
        ("a.jsonl#ner_tags", '{"tokens": ["a"], "ner_tags": ["O"], "upos": ["X"]}', "tags", [Tagged(("a",), ("O",))]),
        ("a.jsonl#body", '{"body": "a", "text": "b"}', "text", [Text("a")]),
        ("a.tsv#hypothesis,premise,label", "b\ta\tn\n", "pair", [Pair("a", "b", "n")]),
        ("a.tsv#q,a,same", "q\tsame\ta\nx\t1\ty\n", "pair", [Pair("x", "y", "1")]),
        ("a.jsonl#q,a,same", '{"q": "x", "same": 1, "a": "y"}', "pair", [Pair("x", "y", "1")]),
    ],
)
def test_options_choose_format_and_columns(tmp_path, name, text, kind, records):
    assert read(tmp_path, name, text, kind) == records


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("word\ttag\n", None),
        ("Token\tLabel\n", None),
        ("FORM\tUPOS\n", None),
        ("\n\nword\ttag\n", None),
        ("word\tNOUN\n", "word"),
        ("label\tO\n", "label"),
        ("the\ttag\n", "the"),
        ("pos\tlabel\n", "pos"),  # no name of words
        ("other\tO\n\nword\ttag\n", "other"),
    ],
)
def test_a_line_is_a_header_only_if_it_is_the_first_and_all_its_columns_have_known_names(tmp_path, text, first):
    records = read(tmp_path, "a.tsv", f"{text}\nlast\tNOUN\n", "tags")
    words = [word for record in records if isinstance(record, Tagged) for word in record.words]
    assert words[0] == (first or "last")
    assert (header_of(tmp_path / "a.tsv", "tags") is None) == (first is not None)
    if "other" in text:
        assert "word" in words


@pytest.mark.parametrize(
    ("name", "text", "kind", "header"),
    [
        ("a.tsv", NAMED.replace("pos", "lemma"), "tags", "Word\tlemma\tchunk\tner"),
        ("a.conll", "token tag\na O\n", "text", "token tag"),
        ("a.tsv", "premise\thypothesis\tlabel\na\tb\te\n", "pair", "premise\thypothesis\tlabel"),
        ("a.csv", "text,label\na,b\n", "labelled", "text\tlabel"),
        ("a.tsv", "a\tb\n", "labelled", None),
        ("a.txt", "word tag\na\n", "text", None),
        ("a.conllu", "", "tags", None),
        ("a.tsv", "", "tags", None),
    ],
)
def test_headers_can_be_asked_for(tmp_path, name, text, kind, header):
    (tmp_path / name).write_text(text)
    assert header_of(tmp_path / name, kind) == header


@pytest.mark.parametrize(
    ("name", "text", "kind", "what"),
    [
        ("a.tsv", NAMED, "tags", r"a.tsv:1: which column\? ner, pos. Write .*a.tsv#ner"),
        ("a.tsv", "a\tb\tc\n", "tags", "3 columns separated by tabs.* such as .*a.tsv#word,_,tag"),
        ("a.tsv#word,tag", TABS, "tags", "2 columns are named after #, but there are 4. Write _ for one to leave out"),
        ("a.tsv#upos", NAMED, "tags", "no column 'upos'. Did you mean 'pos'"),
        ("a.tsv#word,_,_,chunk", TABS, "tags", "none of the columns tag, "),
        (
            "a.tsv#stars",
            REVIEWS,
            "labelled",
            "none of the columns text, .* Known: review, stars. Name the columns after #",
        ),
        ("a.tsv", "id\ta\tgood\n", "labelled", "3 columns and no names. .* such as #text,label"),
        ("a.tsv", "a\t\n", "labelled", "no label"),
        ("a.jsonl", '{"text": "a", "label": null}', "labelled", "no label: None"),
        ("a.jsonl", '{"text": "a", "label": 0.5}', "labelled", "no label: 0.5"),
        ("a.jsonl", '{"text": 1, "label": "b"}', "labelled", "not a labelled record"),
        ("a.jsonl", '{"words": ["a", "b"], "tags": ["X"]}', "tags", "differ in length"),
        ("a.jsonl", '{"words": ["a"], "tags": [1]}', "tags", "must be text"),
        ("a.jsonl", '{"words": ["a\\u0000"], "tags": ["X"]}', "tags", "NUL"),
        ("a.jsonl", '{"words": ["a"], "heads": [2], "relations": ["x"]}', "tree", "numbers from 0 to 1"),
        ("a.jsonl", '{"text": "a"}', "tags", "none of the columns tokens, words. Known: text"),
        ("a.csv", 'text,label\n"a,b\n', "labelled", "a.csv:2: not CSV"),
        ("a.data", "a\tb\n", "tags", "unknown ending '.data'.* such as .*a.data#tsv"),
        ("a.conllu#word,tag", "", "tags", "has no columns to name"),
        ("a.txt#word,tag", "a O", "text", "has no columns to name"),
    ],
)
def test_what_cannot_be_read_says_how_it_could_be(tmp_path, name, text, kind, what):
    with pytest.raises(DataError, match=what):
        read(tmp_path, name, text, kind)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a.tsv#", "expected languages after #"),
        ("a.tsv#word,,tag", "expected languages after #.* names of columns"),
        ("a.tsv#xml:word,tag", "unknown format 'xml'. Known: conllu"),
        ("b.tsv#word,tag", "no such file"),
    ],
)
def test_options_that_say_nothing_are_refused(tmp_path, name, what):
    (tmp_path / "a.tsv").write_text("")
    with pytest.raises(DataError, match=what):
        resolve(f"{tmp_path}/{name}")


def test_files_whose_names_have_a_number_sign_are_files(tmp_path):
    assert read(tmp_path, "a.txt", "x\n", "text") == [Text("x")]
    (tmp_path / "a.txt#1.txt").write_text("y\n")
    assert list(resolve(f"{tmp_path}/a.txt#1.txt").records("text")) == [Text("y")]


def test_options_do_not_change_the_hash_of_a_file_but_its_name(tmp_path):
    (tmp_path / "a.conll").write_text(CONLL)
    plain, other = (resolve(f"{tmp_path}/a.conll{options}") for options in ("", "#word,tag,_,_"))
    assert plain.sha256 == other.sha256
    assert plain.name != other.name


@pytest.mark.parametrize(
    ("task", "given", "answer", "formats", "record"),
    [
        ("pos", '{"text": "a b"}', ["X", "Y"], ("jsonl", "jsonl"), Tagged(("a", "b"), ("X", "Y"))),
        ("ner", "a b", ["O", "B-X"], ("text", "jsonl"), Tagged(("a", "b"), ("O", "B-X"))),
        ("ner", "a b", ["O", "B-X"], ("text", "columns"), Tagged(("a", "b"), ("O", "B-X"))),
        ("dep", "a b", ([0, 1], ["root", "x"]), ("text", "jsonl"), Tree(("a", "b"), (0, 1), ("root", "x"))),
        ("dep", "a b", ([0, 1], ["root", "x"]), ("text", "conllu"), Tree(("a", "b"), (0, 1), ("root", "x"))),
        ("nli", '{"premise": "a", "hypothesis": "b"}', "x", ("jsonl", "jsonl"), Pair("a", "b", "x")),
        ("mt", '{"text": "a"}', "b", ("jsonl", "jsonl"), Bitext("a", "b")),
    ],
)
def test_what_predict_writes_can_be_read(tmp_path, task, given, answer, formats, record):
    kinds: dict[str, Kind] = {"dep": "tree", "nli": "pair", "mt": "bitext"}
    stream: Any = io.BytesIO(f"{given}\n".encode())
    condition = Condition(task, "en", "de") if task == "mt" else Condition(task, "en")

    def predict(inputs):
        return [TASKS[task].prediction(record, answer, None) for _, record in inputs]

    written = "".join(predict_stream(stream, condition, formats=formats, predict=predict))
    path = tmp_path / f"a.{formats[1].replace('columns', 'tsv')}"
    path.write_text(written)
    assert list(read_records(path, kinds.get(task, "tags"))) == [record]
