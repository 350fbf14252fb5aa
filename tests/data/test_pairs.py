"""Pairs and their labels are those of the file, in tables with and without names and in JSON lines."""

import collections
import csv
import io
import lzma
import re
from pathlib import Path

import pytest

from polyloom.data.readers.tables import read_pairs
from polyloom.data.records import Pair
from polyloom.errors import DataError
from tests.shared import DATA, needs_data

NLI = {"entailment", "contradiction", "neutral"}


def read(path: Path, text: str) -> list[Pair]:
    path.write_bytes(text.encode())
    return list(read_pairs(path))


def labels(path: Path) -> collections.Counter[str]:
    return collections.Counter(pair.label for pair in read_pairs(path))


@needs_data
def test_every_americasnli_file_has_what_its_readme_states():
    stated = re.findall(r"(\w+) (\d+)/(\d+)", (DATA / "nli/README.md").read_text(encoding="utf-8").split("XCOPA")[0])
    assert len(stated) == 10
    for language, *sizes in stated:
        for split, size in zip(("dev", "test"), sizes, strict=True):
            found = labels(DATA / f"nli/americasnli/{split}/{language}.tsv.xz")
            assert (found.total(), set(found)) == (int(size), NLI), language


@needs_data
@pytest.mark.parametrize(
    ("files", "count", "size", "names"),
    [
        ("nc/nli/xnli/dev-*", 16, 2490, NLI),
        ("nc/nli/xnli/test-*", 16, 5010, NLI),
        ("nc/nli/sick/SICK_train*", 1, 4500, NLI),
        ("nc/nli/sick/SICK_trial*", 1, 500, NLI),
        ("nc/nli/sick/SICK_test*", 1, 4927, NLI),
        ("nli/kornli/xnli.dev*", 1, 2490, NLI),
        ("nli/kornli/xnli.test*", 1, 5010, NLI),
        ("nli/farstail/Train*", 1, 7266, NLI),
        ("nli/farstail/Val*", 1, 1537, NLI),
        ("nli/farstail/Test*", 1, 1564, NLI),
        ("nli/med/*", 1, 5382, {"entailment", "neutral"}),
        ("nli/pawsx/dev-*", 7, 1849, {"0", "1"}),
        ("nli/pawsx/test-*", 7, 1879, {"0", "1"}),
    ],
)
def test_every_other_file_has_what_its_readme_states(files, count, size, names):
    paths = list(DATA.glob(files + ".xz"))
    assert len(paths) == count
    for path in paths:
        found = labels(path)
        assert (found.total(), set(found)) == (size, names), path


@needs_data
def test_labels_of_the_same_items_agree_across_languages_and_formats():
    def sequence(path):
        return [pair.label for pair in read_pairs(DATA / path)]

    test = sequence("nc/nli/xnli/test-en.tsv.xz")
    assert test == sequence("nc/nli/xnli/test-my.tsv.xz") == sequence("nli/kornli/xnli.test.ko.tsv.xz")
    for split in ("dev", "test"):
        paws = {tuple(sequence(path)) for path in (DATA / "nli/pawsx").glob(f"{split}-*.tsv.xz")}
        assert len(paws) == 1


@needs_data
@pytest.mark.parametrize(
    "path", ["nli/farstail/Train-word.csv.xz", "nli/farstail/Val-word.csv.xz", "nli/pawsx/dev-fr.tsv.xz"]
)
def test_files_made_by_a_csv_writer_read_as_pythons_csv_reader_reads_them(path):
    text = lzma.decompress((DATA / path).read_bytes()).decode()
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter="\t"))[1 if "farstail" in path else 0 :]
    pairs = list(read_pairs(DATA / path))
    assert [(pair.first, pair.second) for pair in pairs] == [(row[0].strip(), row[1].strip()) for row in rows]
    assert any("\t" in row[0] for row in rows) == ("farstail" in path)
    assert any('"' in row[0] for row in rows)


@needs_data
def test_files_without_quoting_lose_no_line_to_a_lonely_quotation_mark():
    path = DATA / "nli/kornli/xnli.test.ko.tsv.xz"
    lines = lzma.decompress(path.read_bytes()).decode().rstrip("\n").split("\n")[1:]
    assert [f"{pair.first}\t{pair.second}" for pair in read_pairs(path)] == [
        "\t".join(field.strip() for field in line.split("\t")[:2]) for line in lines
    ]
    assert any(line.startswith('"') for line in lines)


@needs_data
def test_choices_of_plausible_alternatives_are_no_pairs():
    with pytest.raises(DataError, match=r"none of the columns hypothesis, .* Known: premise, choice1"):
        list(read_pairs(DATA / "nli/xcopa/it/val.it.jsonl.xz"))


FORMS = {
    "bare.tsv": "a\tb\tneutral\nc\td\tENTAILMENT\n",
    "named.tsv": "id\tPremise\thypothesis\tlabel\n1\ta\tb\tn\n2\t c \td\te\n",
    "order.tsv": "gold_label\tx\tsentence2\tsentence1\nneutral\t\tb\ta\n-\t\tq\tp\nEntailment\t\td\tc\n",
    "sick.txt": "pair_ID\tsentence_A\tsentence_B\tentailment_judgment\r\n1\ta\tb\tNEUTRAL\r\n2\tc\td\tENTAILMENT\r\n",
    "commas.csv": "premise,hypothesis,label\n" + '"a",b,n\n\nc,"d",e\n',
    "semicolons.csv": "\ufeffpremise;hypothesis;label\r\na;b;n\r\nc;d;e\r\n",
    "farstail.csv": "premise\thypothesis\tlabel\na\tb\tn\nc\td\te\n",
    "lines.jsonl": '{"premise": "a", "hypothesis": "b", "label": "n"}\n\n'
    '{"label": "e", "hypothesis": "d", "premise": "c"}\n',
    "snli.jsonl": '{"gold_label": "neutral", "sentence1": "a", "sentence2": "b", "n": NaN}\n'
    '{"gold_label": "-", "sentence1": "", "sentence2": "b"}\n'
    '{"gold_label": "entailment", "sentence1": "c", "sentence2": "d", "label1": null}\n',
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_says_the_same(tmp_path, name):
    assert read(tmp_path / name, FORMS[name]) == [Pair("a", "b", "neutral"), Pair("c", "d", "entailment")]


def test_labels_that_are_not_of_inference_stay_as_they_are(tmp_path):
    bare = read(tmp_path / "a.tsv", "a\tb\tn\na\tb\tYes\na\tb\t1\n")
    assert [pair.label for pair in bare] == ["n", "Yes", "1"]
    row = '{{"sentence1": "a", "sentence2": "b", "label": {}}}\n'
    numbers = read(tmp_path / "a.jsonl", row.format(0) + row.format(12) + row.format('"A"'))
    assert [pair.label for pair in numbers] == ["0", "12", "A"]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ('"say ""hi"" now"', 'say "hi" now'),
        ('"""hi"" now"', '"hi" now'),
        ('"Hello."', '"Hello."'),
        ('"Hello.', '"Hello.'),
        ('"Hi" she said "ho"', '"Hi" she said "ho"'),
        ('5" pipe', '5" pipe'),
        ('"tab\tinside"', "tab\tinside"),
        ('"tab\t""inside"""', 'tab\t"inside"'),
    ],
)
def test_quotation_marks_are_taken_off_only_where_a_csv_writer_set_them(tmp_path, field, text):
    assert read(tmp_path / "a.tsv", f"a\tb\t1\n{field}\t{field}\t1\n")[1] == Pair(text, text, "1")


@pytest.mark.parametrize(
    ("name", "text", "line", "what"),
    [
        ("a.tsv", "a\tb\n", 1, "2 columns and no names"),
        ("a.csv", "one, two, three, four\n", 1, "4 columns and no names"),
        ("a.csv", 'premise,hypothesis,label\n"a,b,c\n', 2, "not CSV"),
        ("a.tsv", "id\ta\tb\t1\n", 1, "4 columns and no names"),
        (
            "a.tsv",
            "id\ttext\tlabel\n",
            1,
            "none of the columns premise, sentence1, sentence_a. Known: id, text, label",
        ),
        ("a.tsv", "premise\thypothesis\tgold\n", 1, "none of the columns gold_label, label"),
        ("a.tsv", "a\tb\t1\na\t1\n", 2, "2 columns, but 3"),
        ("a.tsv", "a\tb\t1\na\tb\tc\t1\n", 2, "4 columns, but 3"),
        ("a.tsv", "a\tb\t1\na\tb\t1\t\n", 2, "4 columns, but 3"),
        ("a.tsv", "a\tb\t1\na\tb\t \n", 2, "no label"),
        ("a.jsonl", '{"premise": "a", "hypothesis": "b"}', 1, "none of the columns gold_label"),
        ("a.jsonl", '{"premise": 1, "hypothesis": "b", "label": 1}', 1, "'premise' is not a string"),
        ("a.jsonl", '{"premise": "a", "hypothesis": "b", "label": true}', 1, "'label' is not a string"),
        ("a.jsonl", '{"premise": "a", "hypothesis": "b", "label": 0.5}', 1, "'label' is not a string"),
        ("a.jsonl", '{"premise": "a", "hypothesis": "b", "label": null}', 1, "'label' is not a string"),
        ("a.jsonl", '{"premise": "a\\ud800", "hypothesis": "b", "label": 1}', 1, "half a surrogate pair"),
        ("a.jsonl", '{"premise": "a\\u0000", "hypothesis": "b", "label": 1}', 1, "NUL"),
    ],
)
def test_what_is_no_pair_is_refused_with_its_line(tmp_path, name, text, line, what):
    with pytest.raises(DataError) as error:
        read(tmp_path / name, text)
    assert error.value.line == line
    assert what in error.value.what
