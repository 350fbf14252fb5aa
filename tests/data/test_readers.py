"""Every file gives the kinds of records it has, and says so when asked for others."""

import gzip
import lzma
import re
from pathlib import Path

import pytest

from polyloom.data.readers.formats import read_records
from polyloom.data.records import Bitext, LabelledText, Pair, Tagged, Text, Tree
from polyloom.errors import DataError
from tests.shared import DATA, needs_data

CONLLU = "# text = ab.\n1\ta\t_\tX\t_\t_\t0\troot\t_\tSpaceAfter=No\n2\tb.\t_\tY\t_\t_\t1\tdep\t_\t_\n\n"
COLUMNS = [Tagged(("a", "b."), ("O", "B-X"))]
LABELLED = [LabelledText("a b", "good"), LabelledText("c", "bad")]
CASES = [
    ("a.conllu", "tags", CONLLU, [Tagged(("a", "b."), ("X", "Y"))]),
    ("a.conllu", "tree", CONLLU, [Tree(("a", "b."), (0, 1), ("root", "dep"))]),
    ("a.conllu", "text", CONLLU, [Text("ab.")]),
    ("a.iob2", "tags", "1\ta\tO\n2\tb.\tB-X\n", COLUMNS),
    ("a.iob2", "text", "1\ta\tO\n2\tb.\tB-X\n", [Text("a b.")]),
    ("a.tsv", "tags", "a\tO\nb.\tB-X\n", COLUMNS),
    ("a.tsv", "text", "a\tO\nb.\tB-X\n", [Text("a b.")]),
    ("a.conll", "tags", "a x O\nb. x B-X\n", COLUMNS),
    ("a.bio", "tags", "a O\nb. B-X\n", COLUMNS),
    ("a.txt", "tags", "a O\nb. B-X\n", COLUMNS),
    ("a.txt", "text", " a b \n\n\u3000\nc\u2028d\r\n", [Text("a b"), Text("c\u2028d")]),
    ("a.txt", "pair", "a\tb\t1\n", [Pair("a", "b", "1")]),
    ("a.tsv", "pair", "a\tb\t1\n", [Pair("a", "b", "1")]),
    ("a.csv", "pair", "premise\thypothesis\tlabel\na\tb\te\n", [Pair("a", "b", "entailment")]),
    ("a.jsonl", "pair", '{"premise": "a", "hypothesis": "b", "label": 1}\n', [Pair("a", "b", "1")]),
    ("a.jsonl", "tags", '{"words": ["a", "b."], "tags": ["O", "B-X"]}\n{"words": [], "tags": []}\n', COLUMNS),
    ("a.jsonl", "tags", '{"text": "a b.", "tokens": ["a", "b."], "ner_tags": ["O", "B-X"]}\n', COLUMNS),
    (
        "a.jsonl",
        "tree",
        '{"words": ["a", "b."], "heads": [0, 1], "relations": ["root", "dep"]}\n',
        [Tree(("a", "b."), (0, 1), ("root", "dep"))],
    ),
    ("a.jsonl", "labelled", '{"text": "a b", "label": "good"}\n{"label": "bad", "text": " c", "id": 1}\n', LABELLED),
    ("a.jsonl", "labelled", '{"sentence": "a b", "label": 1}\n', [LabelledText("a b", "1")]),
    ("a.jsonl", "bitext", '{"text": "a", "translation": "b"}\n', [Bitext("a", "b")]),
    ("a.tsv", "labelled", "a b\tgood\nc\tbad\n", LABELLED),
    ("a.txt", "labelled", "a b\tgood\n\nc\tbad\n", LABELLED),
    ("a.tsv", "labelled", "Label\tid\tText\ngood\t1\ta b\nbad\t2\tc\n", LABELLED),
    ("a.csv", "labelled", "id,text,label\n1,a b,good\n2,c,bad\n", LABELLED),
    ("a.csv", "labelled", 'text,label\r\n"a, ""b""\nc",good\r\n', [LabelledText('a, "b"\nc', "good")]),
    ("a.tsv", "tags", "word\ttag\na\tO\nb.\tB-X\n", COLUMNS),
    ("a.tsv", "text", "Token\tLABEL\n\na\tO\nb.\tB-X\n", [Text("a b.")]),
    ("a.tsv", "tags", "-DOCSTART-\t-X-\tO\tO\n\na\tDT\tB-NP\tO\nb.\tNN\tI-NP\tB-X\n", COLUMNS),
    ("a.jsonl", "text", '{"text": " a b ", "id": 1}\n{"text": ""}\n', [Text("a b")]),
]


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize(("name", "kind", "text", "records"), CASES)
def test_every_ending_gives_its_records_in_every_packing(tmp_path, name, kind, text, records, packing):
    data = text.encode()
    path = tmp_path / (name + packing)
    path.write_bytes({"": data, ".gz": gzip.compress(data), ".xz": lzma.compress(data)}[packing])
    assert list(read_records(path, kind)) == records


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("a.conllu.xz", "pair", "a .conllu file has no records of kind 'pair'. Known: tags, tree, text."),
        ("a.tsv", "tree", "a .tsv file has no records of kind 'tree'. Known: tags, text, pair, labelled, bitext."),
        ("a.connlu", "tags", "unknown ending '.connlu'. Did you mean '.conllu'? Known: .conllu, "),
        ("a.gz", "text", "unknown ending ''"),
        (
            "a.data",
            "tags",
            "unknown ending '.data'. Known: .conllu, .iob2, .conll, .bio, .tsv, .csv, .jsonl, .txt, .tmx, .json. Name",
        ),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_is_read(name, kind, what):
    with pytest.raises(DataError, match=re.escape(f"{name}: {what}")):
        read_records(Path(name), kind)


def test_json_without_text_says_what_there_is(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"body": "a", "id": 1}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: no 'text' here. Known: 'body', 'id'."):
        list(read_records(tmp_path / "a.jsonl", "text"))


@needs_data
def test_a_treebank_whose_text_is_withheld_is_refused():
    path = DATA / "nc/ud/UD_Mbya_Guarani-Dooley/gun_dooley-ud-test.conllu.xz"
    for kind in ("tags", "tree", "text"):
        with pytest.raises(DataError, match="the text is withheld"):
            list(read_records(path, kind))


@needs_data
def test_treebanks_with_some_withheld_words_are_read():
    assert len(list(read_records(DATA / "ud/UD_Uyghur-UDT/ug_udt-ud-test.conllu.xz", "tags"))) == 900


@needs_data
def test_every_raw_text_has_the_lines_its_readme_states():
    def lines(path):
        texts = [record.text for record in read_records(path, "text") if isinstance(record, Text)]
        assert all(text and text == text.strip() for text in texts)
        return len(texts)

    leipzig = {path.name[:2]: lines(path) for path in (DATA / "mono/leipzig").glob("*.xz")}
    short = {"zh": 729, "ja": 412, "om": 996, "si": 997, "am": 998, "ti": 994}  # fewer than stated, or blank lines
    assert len(leipzig) == 79
    assert leipzig == dict.fromkeys(leipzig, 1000) | short
    tatoeba = {path.name[:3]: lines(path) for path in (DATA / "mono/tatoeba").glob("*.xz")}
    assert (len(tatoeba), sum(tatoeba.values()), tatoeba["bre"]) == (53, 97_037, 5627)
    giellalt = {path.name[:3]: lines(path) for path in (DATA / "mono/giellalt").glob("*.xz")}
    assert giellalt == {"fao": 3815, "kpv": 3820, "olo": 2803, "sme": 8000}
