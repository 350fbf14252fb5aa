"""Tagged words are those of the file, in each of its dialects; what belongs to another dialect is refused."""

import ast
import re
from pathlib import Path

import pytest

from polyloom.data.readers.columns import read_columns
from polyloom.data.records import Tagged
from polyloom.errors import DataError
from tests.shared import DATA, needs_data

NIGHTLY = pytest.mark.nightly
SPLITS = [pytest.param("train", marks=NIGHTLY), "dev", pytest.param("test", marks=NIGHTLY)]
HI = [Tagged(("Hi", "Ada", "!"), ("O", "B-PER", "O")), Tagged(("#", "1"), ("O", "O"))]


def read(path: Path, text: str) -> list[Tagged]:
    path.write_bytes(text.encode())
    return list(read_columns(path))


def size(path: Path) -> tuple[int, int, int]:
    """Sentences, words and beginnings of entities."""
    sentences = list(read_columns(path))
    assert all(len(s.words) == len(s.tags) for s in sentences)
    tags = [tag for sentence in sentences for tag in sentence.tags]
    return len(sentences), len(tags), sum(tag.startswith("B-") for tag in tags)


def readme(part: str) -> list[list[str]]:
    """The cells of all tables in a README."""
    text = (DATA / part / "README.md").read_text(encoding="utf-8")
    return [[field.strip() for field in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


@needs_data
@pytest.mark.parametrize("split", SPLITS)
def test_every_wikiann_file_has_the_sentences_its_readme_states(split):
    rows = [row for row in readme("ner") if len(row) == 5 and "sents" in row[1]]
    assert len(rows) == 47
    for language, *fields, _ in rows:
        stated = re.findall(r"(\d+) (?:sents|entities)", fields[["train", "dev", "test"].index(split)])
        sentences, _, entities = size(DATA / "ner" / "wikiann" / language / f"{split}.tsv.xz")
        assert [sentences, entities] == [int(number) for number in stated], language


@needs_data
@NIGHTLY
def test_every_universal_ner_file_has_the_words_and_entities_its_readme_states():
    rows = [row for row in readme("ner") if row[0].startswith("UNER_")]
    files = list((DATA / "ner" / "uner").glob("*/*.iob2.xz"))
    assert len(rows) == len(files)
    for corpus, name, sentences, words, entities in rows:
        found = size(DATA / "ner" / "uner" / corpus.split()[0] / f"{name}.xz")
        assert found == (int(sentences.split()[0]), int(words), int(entities)), name
    assert size(DATA / "nc/ner/uner/UNER_Tagalog-Ugnayan/tl_ugnayan-ud-test.iob2.xz")[0] == 94


@needs_data
@pytest.mark.parametrize("split", SPLITS)
def test_every_masakhaner_file_has_what_its_readme_states(split):
    column = ["train", "dev", "test"].index(split) + 1
    rows = [row for row in readme("nc/ner") if row[column].startswith("[")]
    assert len(rows) == 20
    for row in rows:
        path = DATA / "nc/ner/masakhaner2" / row[0] / f"{split}.txt.xz"
        assert list(size(path)) == ast.literal_eval(row[column]), path


@needs_data
def test_no_class_is_made_of_empty_columns():
    for path in (DATA / "ner/uner/UNER_Norwegian-NDT").glob("*.xz"):
        tags = {tag for sentence in read_columns(path) for tag in sentence.tags}
        assert {tag[2:] for tag in tags - {"O"}} == {"PER", "ORG", "LOC"}


DIALECTS = {
    "wikiann.tsv": "Hi\tO\nAda\tB-PER\n!\tO\n\n#\tO\n1\tO\n",
    "mmner.tsv": "yo:Hi\tO\nyo:Ada\tB-PER\nyo:!\tO\n\nyo:#\tO\nyo:1\tO\n\n",
    "long.tsv": "be-x-old:Hi\tO\nbe-x-old:Ada\tB-PER\nbe-x-old:!\tO\n\nbe-x-old:#\tO\nbe-x-old:1\tO\n\n",
    "masakha.txt": "Hi O\nAda B-PER\n! O\n\n# O\n1 O\n\n",
    "blanks at the end.txt": "Hi O \nAda B-PER\n! O\n  \n# O\n1 O\n\n",
    "conll.conll": "-DOCSTART- -X- O O\n\nHi UH B-NP O\nAda NNP I-NP B-PER\n! . O O\n\n"
    "-DOCSTART- -X- O O\n# . O O\n1 CD O O",
    "windows.bio": "\ufeffHi\tO\r\nAda\tB-PER\r\n!\tO\r\n\r\n\r\n#\tO\r\n1\tO\r\n",
    "uner.iob2": "# text = Hi\n1\tHi\tO\t-\tx\n2\tAda\tB-PER\t-\tx\n3\t!\t-\tB-DRV\tx\n\n"
    "#\t1\n1\t#\tO\t-\t-\n2\t1\tO\t-\t-\n",
}


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_says_the_same(tmp_path, name):
    assert read(tmp_path / name, DIALECTS[name]) == HI


def test_a_prefix_is_taken_off_only_if_the_whole_first_sentence_has_it(tmp_path):
    mixed = "en:Hi\tO\nde:Ada\tB-PER\n"
    assert read(tmp_path / "a.tsv", mixed)[0].words == ("en:Hi", "de:Ada")
    assert read(tmp_path / "a.tsv", "en:Hi\tO\nAda\tO\n")[0].words == ("en:Hi", "Ada")
    assert read(tmp_path / "a.tsv", "a\tO\n\nen:b\tO\n")[1].words == ("en:b",)
    with pytest.raises(DataError, match="a.tsv:4: 'x' does not begin with 'en:'".replace(".", r"\.")):
        read(tmp_path / "a.tsv", "en:Hi\tO\n\nen:a\tO\nx\tO\n")
    with pytest.raises(DataError, match="and a word"):
        read(tmp_path / "a.tsv", "en:Hi\tO\n\nen:\tO\n")


def test_characters_that_look_like_blanks_or_line_ends_stay_in_words(tmp_path):
    assert read(tmp_path / "a.txt", "a\u2028b\u00a0c O\nd\x85e O\n") == [
        Tagged(("a\u2028b\u00a0c", "d\x85e"), ("O", "O"))
    ]


def test_tags_are_kept_as_they_are(tmp_path):
    tags = ("I-PER", "S-LOC", "E-ORG", "NOUN", "B-a-b", "O", "I-X", "0")
    assert read(tmp_path / "a.tsv", "".join(f"w\t{tag}\n" for tag in tags))[0].tags == tags


@pytest.mark.parametrize(
    ("name", "text", "line", "what"),
    [
        ("a.tsv", "a\tO\nb O\n", 2, "1 columns, but 2 in the first line"),
        ("a.txt", "a O\nb\tO\n", 2, "1 columns, but 2"),
        ("a.txt", "a X O\nb O\n", 2, "2 columns, but 3"),
        ("a.tsv", "\na b c\td e f\t1\n", 2, "3 columns separated by tabs"),
        ("a.tsv", "1\ta\tO\t-\t-\n", 1, "Universal NER files are named .iob2"),
        ("a.txt", "A sentence of words\nand another\n", 2, "2 columns, but 4"),
        ("a.txt", "word\n", 1, "one column only"),
        ("a.tsv", "a\tO\n\tO\n", 2, "no token"),
        ("a.tsv", "a\tO\n\u00a0\tO\n", 2, "no token"),
        ("a.tsv", "a\tO\nb\t\n", 2, "is no tag"),
        ("a.tsv", "a\tO\nb\tU-PER\n", 2, "begins with U-. Entities are tagged B-, I-, E-, S- or O"),
        ("a.tsv", "a\tb-PER\n", 1, "begins with b-"),
        ("a.iob2", "# x\n1\ta\tO\n3\tb\tO\n", 3, "id '3' instead of 2"),
        ("a.iob2", "a\tO\n", 1, "id, token and tag"),
        ("a.iob2", "1 a O\n", 1, "id, token and tag"),
    ],
)
def test_what_disagrees_is_refused_with_its_line(tmp_path, name, text, line, what):
    with pytest.raises(DataError) as error:
        read(tmp_path / name, text)
    assert error.value.line == line
    assert what in error.value.what
