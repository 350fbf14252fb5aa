"""Names of corpora lead to the right file, or to an error that helps."""

import hashlib
import json
import lzma
import re
from pathlib import Path

import pytest

from polyloom.data.catalog import COLLECTIONS, KINDS, corpus_files, data_root, resolve, treebanks
from polyloom.data.records import Bitext, LabelledText, Pair, Tagged, Text, Tree
from polyloom.errors import DataError
from tests.shared import DATA, needs_data

LINES = "one two\nthree\nfour\nfive\nsix\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small data root with a file of most kinds of layout."""
    conllu = "# text = Bir\n1\tBir\t_\tNUM\t_\t_\t0\troot\t_\t_\n\n"
    for path, text in {
        "ud/UD_Turkish-BOUN/tr_boun-ud-test.conllu": conllu,
        "ud/UD_Turkish-BOUN/tr_boun-ud-dev.conllu": conllu * 2,
        "nc/ud/UD_Turkish-IMST/tr_imst-ud-test.conllu": conllu * 3,
        "ud/UD_Elvish-New/qya_new-ud-test.conllu": conllu,
        "mono/leipzig/yo.txt": LINES,
        "nli/farstail/Val-word.csv": "premise\thypothesis\tlabel\na\tb\te\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def refusal(name: str, root: Path) -> str:
    with pytest.raises(DataError) as caught:
        resolve(name, root=root)
    assert str(caught.value).startswith(f"{name}: ")
    return str(caught.value)


def test_a_name_leads_to_its_file(root):
    corpus = resolve("ud:tr_boun/test", root=root)
    assert corpus.source == root / "ud/UD_Turkish-BOUN/tr_boun-ud-test.conllu"
    assert (corpus.language, corpus.task, corpus.split) == ("tr", "pos", "test")
    assert (corpus.licence, corpus.non_commercial) == ("CC BY-SA 4.0", False)
    assert list(corpus.records("tags")) == [Tagged(("Bir",), ("NUM",))]
    assert list(corpus.records("tree")) == [Tree(("Bir",), (0,), ("root",))]


def test_what_lies_under_nc_is_not_for_commercial_use(root):
    assert resolve("ud:tr_imst/test", root=root).non_commercial
    (root / "nc/mono/leipzig").mkdir(parents=True)
    (root / "nc/mono/leipzig/xx.txt").write_text(LINES)
    assert resolve("leipzig:xx", root=root).non_commercial  # wherever the collection says otherwise


def test_a_treebank_that_the_catalogue_does_not_know_is_found_but_its_licence_is_not(root):
    assert resolve("ud:qya_new/test", root=root).licence == "unknown"


def test_a_collection_may_call_its_splits_otherwise(root):
    assert list(resolve("farstail:fa/dev", root=root).records("pair")) == [Pair("a", "b", "entailment")]


def test_no_split_is_taken_for_another(root):
    message = refusal("ud:tr_boun/train", root)
    assert "no train split" in message
    assert "Here: dev, test" in message
    assert "never" in message
    assert "polyloom data fetch ud:tr_boun/train" in message


def test_an_unknown_corpus_says_what_was_meant_and_what_is_there(root):
    assert "Did you mean 'tr_boun'? Known: tr_boun, tr_framenet, tr_imst, tr_pud." in refusal("ud:tr_bou/test", root)
    assert "Did you mean 'ud'?" in refusal("udd:tr_boun/test", root)
    assert "unknown split 'tset'. Did you mean 'test'?" in refusal("ud:tr_boun/tset", root)
    assert "which split? Here: dev, test" in refusal("ud:tr_boun", root)
    assert "has no splits. Write leipzig:yo." in refusal("leipzig:yo/train", root)
    assert "no such file" in refusal("nowhere.txt", root)
    assert "is a folder" in refusal(str(root), root)


def test_a_corpus_of_the_catalogue_that_is_not_here_can_be_fetched(root):
    assert refusal("ud:yo_ytb/test", root).endswith("To get it: polyloom data fetch ud:yo_ytb/test")
    assert "--mirror" in refusal("wikiann:yo/test", root)


def test_a_missing_root_is_said_to_be_missing(tmp_path):
    assert "there is no data root" in refusal("ud:yo_ytb/test", tmp_path / "none")


def test_two_files_for_one_name_are_an_error_and_no_choice(root):
    whole = root / "ud/UD_Turkish-BOUN/tr_boun-ud-test.conllu"
    whole.with_name(whole.name + ".xz").write_bytes(lzma.compress(whole.read_bytes()[:10]))
    assert "several files" in refusal("ud:tr_boun/test", root)


def test_parts_and_strangers_are_not_taken_for_corpora(root):
    folder = root / "ud/UD_Turkish-BOUN"
    for name in ("tr_boun-ud-train.conllu.part", "tr_boun-ud-train.conllu.part.from", "tr_boun-ud-extra.conllu"):
        (folder / name).write_text("")
    assert [place.split for place in corpus_files("ud", root=root, item="tr_boun")] == ["dev", "test"]


@pytest.mark.parametrize("name", ["ud:../../etc/test", "ud:*/test", "ud:/etc/test", "leipzig:..", "ud:tr_boun/../test"])
def test_names_cannot_lead_out_of_the_root(root, name):
    refusal(name, root)


@pytest.mark.parametrize(
    ("part", "expected"),
    [("[:2]", ["one two", "three"]), ("[1:3]", ["three", "four"]), ("[3:]", ["five", "six"]), ("[4:5]", ["six"])],
)
def test_a_slice_takes_those_examples(root, part, expected):
    assert list(resolve(f"leipzig:yo{part}", root=root).records("text")) == [Text(line) for line in expected]


@pytest.mark.parametrize("part", ["[:6]", "[4:6]", "[5:]", "[7:9]"])
def test_a_slice_of_more_than_there_is_is_an_error(root, part):
    with pytest.raises(DataError, match="fewer examples than the slice asks for"):
        list(resolve(f"leipzig:yo{part}", root=root).records("text"))


def test_a_slice_of_at_most_so_many_takes_what_there_is(root):
    assert len(list(resolve("leipzig:yo[<=3]", root=root).records("text"))) == 3
    assert len(list(resolve("leipzig:yo[<=100000]", root=root).records("text"))) == 5


@pytest.mark.parametrize(
    "part",
    [
        "[<=0]",
        "[random:0]",
        "[random:]",
        "[<=]",
        "[random:1:-1]",
        "[2:2]",
        "[3:1]",
        "[:0]",
        "[-2:]",
        "[::2]",
        "[a:b]",
        "[5]",
    ],
)
def test_what_is_no_slice_is_refused(root, part):
    assert "slice" in refusal(f"leipzig:yo{part}", root)


def test_a_path_is_a_corpus_too(root, monkeypatch):
    monkeypatch.chdir(root)
    corpus = resolve("mono/leipzig/yo.txt[:1]")
    assert list(corpus.records("text")) == [Text("one two")]
    assert (corpus.language, corpus.task, corpus.licence) == (None, None, None)


def test_a_relative_path_is_looked_for_below_the_root_too(root, monkeypatch):
    here = root / "elsewhere"
    here.mkdir()
    (root / "mine").mkdir()
    (root / "mine/pairs.tsv").write_text("one\tuno\n")
    for language, word in (("en", "two"), ("es", "dos")):
        (root / f"mine/train.{language}").write_text(f"{word}\n")
    monkeypatch.chdir(here)
    assert len(list(resolve("mono/leipzig/yo.txt", root=root).records("text"))) == 5
    table = resolve("mine/pairs.tsv#en,es", root=root)
    assert list(table.records("bitext", direction=("es", "en"))) == [Bitext("uno", "one")]
    assert list(resolve("mine/train.{en,es}", root=root).records("bitext")) == [Bitext("two", "dos")]
    (here / "mono/leipzig").mkdir(parents=True)
    (here / "mono/leipzig/yo.txt").write_text("here\n")
    assert list(resolve("mono/leipzig/yo.txt", root=root).records("text")) == [Text("here")], "here comes first"


def test_a_path_below_the_root_is_checked_as_every_path(root):
    (root / "data").mkdir()
    (root / "secret.txt").write_text("key\n")
    checked: list[Path] = []
    resolve("../secret.txt", root=root / "data", check=checked.append)
    assert [path.resolve() for path in checked] == [(root / "secret.txt").resolve()]


def test_the_hash_is_that_of_the_file_whatever_the_slice(root):
    expected = hashlib.sha256(LINES.encode()).hexdigest()
    assert resolve("leipzig:yo", root=root).sha256 == resolve("leipzig:yo[:1]", root=root).sha256 == expected


def test_the_root_is_the_argument_or_the_environment_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("POLYLOOM_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "env"
    monkeypatch.setenv("POLYLOOM_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache/polyloom/data"


def test_the_catalogue_pins_full_commits():
    for collection in ("ud", "uner"):
        for item, entry in treebanks(collection).items():
            assert re.fullmatch("[0-9a-f]{40}", entry.commit), item
            assert entry.licence
    pinned = [made.url for made in COLLECTIONS.values() if made.url]
    assert all(re.search(r"/(\{commit\}|[0-9a-f]{40})/", url) for url in pinned)


@needs_data
def test_every_file_of_the_real_root_has_one_name_and_every_name_its_file():
    files = {
        path
        for folder in ("ud", "ner", "nli", "mono", "mt", "nc")
        for path in (DATA / folder).rglob("*.xz")
        if "xcopa" not in path.parts  # a choice among sentences: no such task here
        if "ntrex" not in path.parts  # NTREX-128 has no collection in the catalogue yet
        if path.name.partition(".")[0] not in ("split", "vref", "url", "ids", "credits")  # of the lines of mt
    }
    found = [place for collection in COLLECTIONS for place in corpus_files(collection, root=DATA)]
    assert len(found) == len({place.name for place in found}) == len(files)
    for place in found:
        if COLLECTIONS[place.collection].aligned:
            continue  # half a corpus: test_bitext.py
        corpus = resolve(place.name, root=DATA)
        assert corpus.source == place.path
        assert corpus.non_commercial == (place.path.relative_to(DATA).parts[0] == "nc"), place.name
    assert {place.path for place in found} == files


@needs_data
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_real_corpora_of_each_collection_read_as_their_task_needs(collection):
    kind = KINDS[COLLECTIONS[collection].task]
    names = [place.name for place in corpus_files(collection, root=DATA)[:2]]
    if COLLECTIONS[collection].aligned:
        names = [f"{names[0]}-{names[1].partition(':')[2]}/train"]
    for name in names:
        assert len(list(resolve(f"{name}[:20]", root=DATA).records(kind))) == 20


class TestHub:
    """Tables of the Hub, from local folders and through the real library."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        datasets = pytest.importorskip("datasets")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        datasets.disable_progress_bars()

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "table"

    @staticmethod
    def write_rows(folder: Path, *rows: object, split: str = "test") -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    @staticmethod
    def write_parquet(folder: Path, features, **columns) -> None:
        import datasets

        folder.mkdir(exist_ok=True)
        datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(folder / "test.parquet")

    def test_text(self, folder):
        self.write_rows(folder, {"text": "bir"}, {"text": "iki"}, {"text": "üç"})
        self.write_rows(folder, {"text": "dört"}, split="train")
        corpus = resolve(f"hf:{folder}/test[1:]")
        assert list(corpus.records("text")) == [Text("iki"), Text("üç")]
        assert corpus.split == "test"
        assert list(resolve(f"hf:{folder}/train").records("text")) == [Text("dört")]

    def test_classes_get_their_names(self, folder):
        from datasets import ClassLabel, Sequence, Value

        words, tags = Sequence(Value("string")), Sequence(ClassLabel(names=["O", "B-PER"]))
        self.write_parquet(
            folder, {"tokens": words, "ner_tags": tags, "pos_tags": words},
            tokens=[["Ali", "gitti"]], ner_tags=[[1, 0]], pos_tags=[["PROPN", "VERB"]],
        )  # fmt: skip
        with pytest.raises(DataError, match=r"which column\? ner_tags, pos_tags. Write hf:.*/test#ner_tags"):
            list(resolve(f"hf:{folder}/test").records("tags"))
        for column, expected in {"ner_tags": ("B-PER", "O"), "pos_tags": ("PROPN", "VERB")}.items():
            corpus = resolve(f"hf:{folder}/test#{column}[:1]")
            assert list(corpus.records("tags")) == [Tagged(("Ali", "gitti"), expected)]
        with pytest.raises(DataError, match=r"no column 'ner_tag'\. Did you mean 'ner_tags'"):
            list(resolve(f"hf:{folder}/test#ner_tag").records("tags"))

    def test_sentences_without_words_are_left_out(self, folder):
        rows = [{"tokens": ["a"], "tags": ["X"]}, {"tokens": [], "tags": []}, {"tokens": ["b"], "tags": ["Y"]}]
        self.write_rows(folder, *rows)
        assert list(resolve(f"hf:{folder}/test").records("tags")) == [Tagged(("a",), ("X",)), Tagged(("b",), ("Y",))]

    def test_a_row_that_is_not_there_is_an_error_with_its_number(self, folder):
        self.write_rows(folder, {"tokens": ["a"], "tags": ["X"]}, {"tokens": None, "tags": None})
        with pytest.raises(DataError, match="test:2: this row is not a tags record"):
            list(resolve(f"hf:{folder}/test").records("tags"))

    def test_a_hidden_label_is_an_error_and_not_the_last_class(self, folder):
        from datasets import ClassLabel, Value

        features = {"premise": Value("string"), "hypothesis": Value("string"), "label": ClassLabel(names=["yes", "no"])}
        self.write_parquet(folder, features, premise=["a", "c"], hypothesis=["b", "d"], label=[1, -1])
        records = resolve(f"hf:{folder}/test").records("pair")
        assert next(records) == Pair("a", "b", "no")
        with pytest.raises(DataError, match=r"test:2: column label: no label \(-1\)"):
            next(records)

    def test_labelled_texts(self, folder):
        from datasets import ClassLabel, Value

        features = {"content": Value("string"), "label": ClassLabel(names=["bad", "good"]), "stars": Value("int64")}
        self.write_parquet(folder, features, content=["a", "b"], label=[1, 0], stars=[5, 2])
        first, second = LabelledText("a", "good"), LabelledText("b", "bad")
        assert list(resolve(f"hf:{folder}/test").records("labelled")) == [first, second]
        for columns in ("stars", "content,stars"):
            corpus = resolve(f"hf:{folder}/test#{columns}[:1]")
            assert list(corpus.records("labelled")) == [LabelledText("a", "5")]

    def test_trees(self, folder):
        self.write_rows(folder, {"tokens": ["a", "b"], "head": ["2", "0"], "deprel": ["det", "root"]})
        assert list(resolve(f"hf:{folder}/test").records("tree")) == [Tree(("a", "b"), (2, 0), ("det", "root"))]
        self.write_rows(folder, {"tokens": ["a", "b"], "head": ["3", "0"], "deprel": ["det", "root"]}, split="train")
        with pytest.raises(DataError, match="train:1: heads must be numbers from 0 to 2"):
            list(resolve(f"hf:{folder}/train").records("tree"))

    @pytest.mark.parametrize(
        ("row", "match"),
        [
            ({"tokens": ["a", "b"], "tags": ["X"]}, "differ in length"),
            ({"tokens": ["a"], "tags": [1]}, "text, or classes with names"),
            ({"tokens": "a", "tags": "X"}, "not a tags record"),
            ({"words_": ["a"], "tags": ["X"]}, "none of the columns tokens, words. Known: words_, tags"),
        ],
    )
    def test_rows_that_are_no_records_are_errors(self, folder, row, match):
        self.write_rows(folder, row)
        with pytest.raises(DataError, match=match):
            list(resolve(f"hf:{folder}/test").records("tags"))

    def test_a_split_or_folder_that_is_not_there_is_an_error(self, folder):
        self.write_rows(folder, {"text": "bir"})
        with pytest.raises(DataError, match="cannot be loaded"):
            list(resolve(f"hf:{folder}/train").records("text"))
        with pytest.raises(DataError, match="cannot be loaded"):
            list(resolve(f"hf:{folder}/none/test").records("text"))
        with pytest.raises(DataError, match="expected hf:org/name/split"):
            resolve("hf:test")

    def test_the_hash_follows_the_rows(self, folder, tmp_path):
        self.write_rows(folder, {"text": "bir"})
        self.write_rows(tmp_path / "same", {"text": "bir"})
        self.write_rows(tmp_path / "other", {"text": "iki"})
        one, same, other = (
            resolve(f"hf:{path}/test").sha256 for path in (folder, tmp_path / "same", tmp_path / "other")
        )
        assert one == same != other
