"""Treebanks come back byte for byte, and what is no tree is refused where it is asked for."""

import csv
import gzip
import lzma
from pathlib import Path

import pytest

from polyloom.data.readers.conllu import Row, Sentence, read_conllu, write_sentence
from polyloom.data.records import Tree
from polyloom.errors import DataError
from tests.shared import SHARED

TREEBANKS = sorted(path for part in ("ud", "nc/ud") for path in (SHARED / "data" / part).glob("UD_*"))
needs_data = pytest.mark.skipif(not TREEBANKS, reason=f"needs the treebanks at {SHARED} (POLYLOOM_SHARED)")

DU = """# sent_id = 1
# text = Du pain va aux amis.
1-2\tDu\t_\t_\t_\t_\t_\t_\t_\t_
1\tDe\tde\tADP\t_\t_\t3\tcase\t_\t_
2\tle\tle\tDET\t_\t_\t3\tdet\t_\t_
3\tpain\tpain\tNOUN\t_\t_\t4\tnsubj\t_\t_
3.1\tqui\tqui\tPRON\t_\t_\t_\t_\t4:x\t_
3.2\tva\taller\tVERB\t_\t_\t_\t_\t4:y\t_
4\tva\taller\tVERB\t_\t_\t0\troot\t_\t_
5-6\taux\t_\t_\t_\t_\t_\t_\t_\t_
5\tà\tà\tADP\t_\t_\t7\tcase\t_\t_
6\tles\tle\tDET\t_\t_\t7\tdet\t_\t_
7\tamis\tami\tNOUN\t_\t_\t4\tobl\t_\tA=B|SpaceAfter=No
8\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_

"""


def read(tmp_path: Path, text: str) -> list[Sentence]:
    (tmp_path / "a.conllu").write_bytes(text.encode())
    return list(read_conllu(tmp_path / "a.conllu"))


def words(*rows: str) -> str:
    """Rows written as ``id head``."""
    return "".join(f"{row.split()[0]}\tw\t_\tX\t_\t_\t{row.split()[1]}\tdep\t_\t_\n" for row in rows) + "\n"


def index() -> dict[tuple[str, str], tuple[int, int]]:
    """Sentences and words by treebank and split, as the data set's own table says."""
    found = {}
    for part in ("ud", "nc/ud"):
        with (SHARED / "data" / part / "index.tsv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                for split in ("train", "dev", "test"):
                    if row[f"{split}_sents"]:
                        counts = int(row[f"{split}_sents"]), int(row[f"{split}_tokens"])
                        found[row["treebank"], split] = counts
    return found


@needs_data
@pytest.mark.parametrize(
    "treebank",
    [  # one of five in CI
        pytest.param(path, id=path.name, marks=pytest.mark.nightly if number % 5 else ())
        for number, path in enumerate(TREEBANKS)
    ],
)
def test_every_treebank_is_written_back_byte_for_byte_and_is_made_of_trees(treebank):
    files = sorted(treebank.glob("*.conllu.xz"))
    assert files
    counts = index()
    for path in files:
        written = num_sentences = num_words = 0
        expected = lzma.decompress(path.read_bytes())
        for sentence in read_conllu(path):
            data = write_sentence(sentence).encode()
            assert expected.startswith(data, written), f"{path}:{sentence.line}"
            written += len(data)
            tree = sentence.tree()
            assert len(tree.words) == len(sentence.upos) == len(tree.heads) == len(tree.relations)
            assert sentence.text
            num_sentences += 1
            num_words += len(tree.words)
        assert written == len(expected)
        split = path.name.removesuffix(".conllu.xz").rsplit("-", 1)[1]
        assert (num_sentences, num_words) == counts.pop((treebank.name, split))
    assert not [key for key in counts if key[0] == treebank.name], "a split is in the table, but its file is missing"


@needs_data
def test_a_sentence_without_its_text_comment_reads_as_the_comment_says():
    path = next(path for path in TREEBANKS if path.name == "UD_German-PUD") / "de_pud-ud-test.conllu.xz"
    sentences = list(read_conllu(path))
    bare = [Sentence((), sentence.rows).text for sentence in sentences]
    assert bare == [sentence.text for sentence in sentences]
    assert any("-" in row.id for sentence in sentences for row in sentence.rows)


def test_words_are_the_syntactic_words(tmp_path):
    (sentence,) = read(tmp_path, DU)
    assert sentence.words == ("De", "le", "pain", "va", "à", "les", "amis", ".")
    assert sentence.upos == ("ADP", "DET", "NOUN", "VERB", "ADP", "DET", "NOUN", "PUNCT")
    assert sentence.tree() == Tree(sentence.words, (3, 3, 4, 0, 7, 7, 4, 4), sentence.relations)
    positions = [(1, 2), 1, 2, 3, (3, 1), (3, 2), 4, (5, 6), 5, 6, 7, 8]
    assert [row.position for row in sentence.rows] == positions
    assert sentence.text == "Du pain va aux amis."


def test_text_without_comment_follows_ranges_and_space_after(tmp_path):
    (sentence,) = read(tmp_path, DU.replace("# text", "# texte"))
    assert sentence.text == "Du pain va aux amis."


@pytest.mark.parametrize(
    "comment", ["# text =Du  pain", "#text = Du  pain ", "# text  =\tDu  pain", "# text = Du  pain\r"]
)
def test_text_comments_are_read_however_they_are_spaced(comment):
    row = Row("1", *"a_________"[:9])
    assert Sentence(("# text_en = Bread", comment), (row,)).text == "Du  pain"


VARIANTS = {
    "as it should be": DU + DU,
    "windows": (DU + DU).replace("\n", "\r\n"),
    "mixed line ends": DU + DU.replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + DU,
    "no blank line at the end": DU + DU[:-1],
    "no line end at the end": DU + DU[:-2],
    "blank lines": "\n\n" + DU + "\n\r\n\n" + DU + "\n",
    "mark and blank line": "\ufeff\n" + DU,
    "odd characters": DU.replace("pain", "pa\u2028i\x85n\x0b"),
}


@pytest.mark.parametrize("packing", [bytes, gzip.compress])
@pytest.mark.parametrize("variant", VARIANTS)
def test_files_unlike_the_standard_come_back_byte_for_byte_too(tmp_path, variant, packing):
    path = tmp_path / "a.conllu"
    path.write_bytes(packing(VARIANTS[variant].encode()))
    sentences = list(read_conllu(path))
    assert "".join(map(write_sentence, sentences)) == VARIANTS[variant]
    assert {len(sentence.words) for sentence in sentences} == {8}
    assert {sentence.text[:2] for sentence in sentences} == {"Du"}
    lines = VARIANTS[variant].removeprefix("\ufeff").split("\n")
    assert [lines[sentence.line - 1].strip() for sentence in sentences] == ["# sent_id = 1"] * len(sentences)


def test_predictions_replace_their_columns_and_nothing_else(tmp_path):
    (sentence,) = read(tmp_path, DU)
    same = sentence.with_predictions(upos=sentence.upos, heads=sentence.heads, relations=sentence.relations)
    assert write_sentence(same) == DU
    other = sentence.with_predictions(upos=["X"] * 8, heads=[0, *range(1, 8)], relations=["dep"] * 8)
    assert other.tree() == Tree(sentence.words, (0, 1, 2, 3, 4, 5, 6, 7), ("dep",) * 8)
    assert other.upos == ("X",) * 8
    kept = [(old, new) for old, new in zip(sentence.rows, other.rows, strict=True) if not old.is_word]
    assert [old for old, _ in kept] == [new for _, new in kept]
    for old, new in zip(sentence.rows, other.rows, strict=True):
        assert old._replace(upos="", head="", deprel="") == new._replace(upos="", head="", deprel="")
    with pytest.raises(DataError, match="7 values of head for 8 words"):
        sentence.with_predictions(heads=range(7))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (words("1 0") + "1\ta\n\n", 3, "2 columns, not 10. Columns are separated by tabs"),
        ("1\ta\t\t_\t_\t_\t_\t_\t_\t_\n", 1, "column 3 is empty"),
        (words("1 0") + " \n" + words("1 0"), 3, "1 column, not 10. The line between sentences has no blanks"),
        (words("1 0").replace("\n\n", "\n# x\n"), 2, "Comments stand before the words"),
        ("# a\n# b\n\n" + words("1 0"), 1, "comments without words"),
        (words("2 0"), 1, "id '2' is out of order behind word 0"),
        (words("1 0", "1 0"), 2, "id '1' is out of order"),
        (words("1 0", "3 1"), 2, "id '3' is out of order"),
        (words("01 0"), 1, "id '01'"),
        (words("١ 0"), 1, "id '١'"),
        (words("1 0", "99999999999999999999999 0"), 2, "id '9999999999999999999…'"),
        (words("1-2147483647 _", "1 0"), 1, "a range up to word 2147483647 in a sentence of 1 words"),
        (words("1-99999999999 _", "1 0"), 1, "id '1-99999999999'"),
        (words("1 0", "1-2 _", "2 1"), 2, "range 1-2 is out of order"),
        (words("2-1 _", "1 0", "2 1"), 1, "range 2-1 is out of order"),
        (words("1-2 _", "1 0", "2-3 _", "2 1", "3 1"), 3, "range 2-3 is out of order"),
        (words("1-2 _", "1-2 _", "1 0", "2 1"), 2, "range 1-2 is out of order"),
        (words("1 0", "1.2 _"), 2, "id '1.2' is out of order"),
        (words("1.1 _", "1 0"), 1, "id '1.1' is out of order"),
        (words("0.1 _", "0.2 _"), 1, "a sentence without words"),
    ],
)
def test_what_is_no_sentence_is_refused_with_its_line(tmp_path, text, line, what):
    with pytest.raises(DataError) as error:
        read(tmp_path, text)
    assert error.value.line == line
    assert what in error.value.what


@pytest.mark.parametrize(
    ("rows", "line", "what"),
    [
        (["1 0", "2 3"], 3, "head '3' is not a number from 0 to 2"),
        (["1 0", "2 _"], 3, "head '_'"),
        (["1 0", "2 -1"], 3, "head '-1'"),
        (["1 0", "2 1.1"], 3, "head '1.1'"),
        (["1 0", "2 ²"], 3, "head '²'"),
        (["1 0", "2 0"], 3, "2 words have head 0"),
        (["1 2", "2 1"], 1, "0 words have head 0"),
        (["1 0", "2 2"], 3, "word 2 is its own ancestor"),
        (["1 0", "2 3", "3 4", "4 2"], 3, "word 2 is its own ancestor"),
    ],
)
def test_what_is_no_tree_is_refused_when_the_tree_is_asked_for(tmp_path, rows, line, what):
    (sentence,) = read(tmp_path, "# text = a\n" + words(*rows))
    assert len(sentence.upos) == len(rows)
    with pytest.raises(DataError) as error:
        sentence.tree()
    assert error.value.line == line
    assert what in error.value.what


def test_missing_tags_are_refused_when_asked_for(tmp_path):
    (sentence,) = read(tmp_path, words("1-2 _", "1 0", "2 1").replace("2\tw\t_\tX", "2\tw\t_\t_"))
    assert sentence.words == ("w", "w")
    with pytest.raises(DataError, match="no UPOS for this word") as error:
        _ = sentence.upos
    assert error.value.line == 3


def test_a_long_chain_is_a_tree(tmp_path):
    (sentence,) = read(tmp_path, words("1 0", *(f"{i} {i - 1}" for i in range(2, 5001))))
    assert sentence.tree().heads[-1] == 4999
