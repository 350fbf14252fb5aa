"""Pairs are those of the files, turned as the direction says; what is doubtful is refused, what is bad is left out."""

import gzip
import json
import lzma
import re
from pathlib import Path

import pytest

from polyloom.data.catalog import Corpus, resolve
from polyloom.data.readers.bitext import Filter, PairFilter, Table, pair_key, read_bitext
from polyloom.data.records import Bitext, Text
from polyloom.errors import DataError
from tests.shared import DATA, needs_data

PAIRS = [Bitext("one", "eins"), Bitext("two two", "zwei"), Bitext("four", "vier")]
BACK = [Bitext(pair.target, pair.source) for pair in PAIRS]
UNIT = '<tu><tuv xml:lang="{}"><seg>{}</seg></tuv>\n<tuv xml:lang="{}"><seg>{}</seg></tuv></tu>\n'


def tmx(units: str, before: str = "") -> str:
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return f'{head}{before}<tmx version="1.4">\n<header srclang="en"/>\n<body>\n{units}</body></tmx>\n'


def unit(**texts: str) -> str:
    sides = "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>\n' for code, text in texts.items())
    return f"<tu>{sides}</tu>\n"


FORMS: dict[str, tuple[dict[str, str], str]] = {  # files, and the name of the corpus
    "files": ({"t.en": "one\ntwo two\n\nfour\n", "t.de": "eins\nzwei\ndrei\nvier"}, "t.{en,de}"),
    "folders": ({"en/t.txt": "one\n\ntwo two \nfour\n", "de/t.txt": "eins\nx\nzwei\nvier\n"}, "{en,de}/t.txt"),
    "other words": ({"t.a": "one\ntwo two\nfour\n", "t.b": "eins\nzwei\nvier\n"}, "t.{a,b}#en,de"),
    "table": ({"t.tsv": "one\teins\n\ntwo two\tzwei\n\tdrei\nfour\tvier\n"}, "t.tsv#en,de"),
    "columns": ({"t.tsv": "7\tone\t\teins\n8\ttwo two\tx\tzwei\n9\tfour\ty\tvier\n"}, "t.tsv#_,en,_,de"),
    "json": (
        {"t.jsonl": "".join(json.dumps({"id": i, "de": p.target, "en": p.source}) + "\n" for i, p in enumerate(PAIRS))},
        "t.jsonl",
    ),
    "json translation": (
        {
            "t.jsonl": '{"translation": {"en": "one", "de": "eins"}}\n'
            '{"translation": {"de": "zwei", "en": "two two"}}\n{"translation": {"de": null, "en": "three"}}\n'
            '{"translation": {"de": "vier", "en": "four", "fr": "quatre"}}\n'
        },
        "t.jsonl",
    ),
    "tmx": (
        {
            "t.tmx": tmx(
                unit(en="one", fr="un", de="eins")
                + unit(en="three", fr="trois")
                + unit(de="zwei", en="two two")
                + unit(fr="cinq", de="fünf")
                + unit(EN_us="four", DE="vier")
            )
        },
        "t.tmx",
    ),
}


def write(folder: Path, texts: dict[str, str], packing: str = "") -> None:
    for name, text in texts.items():
        data = text.encode()
        path = folder / (name + packing)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes({"": data, ".gz": gzip.compress(data), ".xz": lzma.compress(data)}[packing])


def pairs_of(corpus: Corpus) -> list[Bitext]:
    return [record for record in corpus.records("bitext") if isinstance(record, Bitext)]


def packed_name(name: str, packing: str) -> str:
    bare, sign, after = name.partition("#")
    return f"{bare}{packing}{sign}{after}"


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_serves_both_directions(tmp_path, monkeypatch, form, packing):
    monkeypatch.chdir(tmp_path)
    texts, name = FORMS[form]
    write(tmp_path, texts, packing)
    corpus = resolve(packed_name(name, packing))
    assert list(corpus.records("bitext", direction=("en", "de"))) == PAIRS
    assert list(corpus.records("bitext", direction=("de", "en"))) == BACK
    part = resolve(packed_name(name, packing) + "[1:3]")
    assert list(part.records("bitext", direction=("de", "en"))) == BACK[1:3]
    with pytest.raises(DataError, match="fewer examples"):
        list(resolve(packed_name(name, packing) + "[:4]").records("bitext", direction=("en", "de")))


@pytest.mark.parametrize("form", FORMS)
def test_other_languages_are_an_error_that_says_which_there_are(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    texts, name = FORMS[form]
    write(tmp_path, texts)
    for direction in (("en", "nl"), ("nl", "de")):
        with pytest.raises(DataError, match=r"\ben\b.*\bde\b|\bde\b.*\ben\b"):
            list(resolve(name).records("bitext", direction=direction))
    with pytest.raises(DataError, match=r"the condition is en to en|two languages are needed"):
        list(resolve(name).records("bitext", direction=("en", "en")))


@pytest.mark.parametrize("form", ["files", "folders", "other words", "table", "columns"])
def test_a_name_that_tells_its_languages_sets_the_order(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    texts, name = FORMS[form]
    write(tmp_path, texts)
    corpus = resolve(name)
    assert (corpus.task, corpus.languages) == ("mt", ("en", "de"))
    assert list(corpus.records("bitext")) == PAIRS
    with pytest.raises(DataError, match="no records of kind 'text'"):
        list(corpus.records("text"))


def test_what_does_not_tell_its_languages_is_read_as_it_stands(tmp_path):
    write(tmp_path, {"t.tsv": "one\teins\n", "t.jsonl": '{"source": "one", "target": "eins", "en": "x"}\n'})
    for name in ("t.tsv", "t.jsonl"):
        corpus = resolve(str(tmp_path / name))
        for direction in (None, ("en", "de"), ("de", "en")):
            assert list(corpus.records("bitext", direction=direction)) == PAIRS[:1]


def test_without_a_direction_the_first_line_sets_the_order_of_all(tmp_path):
    write(tmp_path, {"t.jsonl": '{"en": "one", "de": "eins"}\n{"de": "zwei", "en": "two two"}\n'})
    assert list(read_bitext(tmp_path / "t.jsonl")) == PAIRS[:2]
    write(tmp_path, {"t.tmx": tmx(unit(en="one", de="eins") + unit(de="zwei", en="two two"))})
    assert list(read_bitext(tmp_path / "t.tmx")) == PAIRS[:2]
    write(tmp_path, {"t.jsonl": '{"en": "", "de": "", "fr": ""}\n', "t.tmx": tmx(unit(en="a", de="b", fr="c"))})
    for name in ("t.jsonl", "t.tmx"):
        with pytest.raises(DataError, match=r"3 languages. Say which two are meant. Known: '?en'?, '?de'?, '?fr'?."):
            list(read_bitext(tmp_path / name))


@pytest.mark.parametrize(("short", "long"), [(0, 1), (2, 3), (3, 400_000)])
def test_files_of_different_length_are_never_cut_to_the_shorter(tmp_path, short, long):
    for one, other in ((short, long), (long, short)):
        write(tmp_path, {"t.en": "a\n" * one, "t.de": "b\n" * other})
        with pytest.raises(DataError, match=f"t.en has {one:,} lines and .*t.de has {other:,} lines") as error:
            list(resolve(f"{tmp_path}/t.{{en,de}}").records("bitext"))
        assert error.value.line == max(1, short)


def test_lines_end_where_those_of_other_corpora_end(tmp_path):
    """Were one side split at U+2028 or a lone carriage return, all pairs behind it would be wrong."""
    write(tmp_path, {"t.en": "a\u2028b\x0bc\x85d\ne\rf\r\n", "t.de": "1\n2\n"})
    found = list(resolve(f"{tmp_path}/t.{{en,de}}").records("bitext"))
    assert found == [Bitext("a\u2028b\x0bc\x85d", "1"), Bitext("e f", "2")]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("t.{en,de}", "no such file: .*t.de"),
        ("t.{en,en}", "two languages are needed"),
        ("t.tsv#en", "two languages are needed, not en"),
        ("t.tsv#en,en", "two languages"),
        ("t.tsv#en,_", "two languages"),
        ("t.tsv#en,,de", "expected languages after #"),
        ("t.tsv#en, de", "expected languages after #"),
        ("t.jsonl#en,de", "only the columns of a table"),
        ("t.none#en,de", "no such file"),
    ],
)
def test_names_that_say_too_little_are_refused(tmp_path, monkeypatch, name, what):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"t.en": "", "t.tsv": "", "t.jsonl": ""})
    with pytest.raises(DataError, match=what) as error:
        resolve(name)
    assert str(error.value).startswith(f"{name}: ")


def test_markup_of_a_segment_is_left_out_and_its_text_kept(tmp_path):
    marked = (
        'Press <bpt i="1">&lt;b&gt;<sub>no</sub></bpt><hi>the <hi>red</hi></hi><ept i="1">&lt;/b&gt;</ept>\n   '
        '<![CDATA[<key>]]> &amp; <ph>{0}<hi>x</hi></ph>go<it pos="end">}</it><ut>u</ut>&#x21;'
    )
    write(tmp_path, {"t.tmx": tmx(unit(en=marked, de=" b\u00a0c "))})
    assert list(read_bitext(tmp_path / "t.tmx", ("en", "de"))) == [Bitext("Press the red <key> & go!", "b\u00a0c")]


def test_notes_and_properties_of_a_unit_are_no_text(tmp_path):
    text = (
        unit(en="a", de="b").replace("<seg>", "<note>n</note><prop>p</prop><seg>").replace("<tu>", "<tu><prop>q</prop>")
    )
    write(tmp_path, {"t.tmx": tmx(text)})
    assert list(read_bitext(tmp_path / "t.tmx", ("en", "de"))) == [Bitext("a", "b")]


def test_a_variety_stands_for_its_language_but_never_for_two_and_never_before_the_language_itself(tmp_path):
    both = '<tu><tuv xml:lang="pt-BR"><seg>ônibus</seg></tuv><tuv lang="PT"><seg>autocarro</seg></tuv></tu>\n'
    write(tmp_path, {"t.tmx": tmx(both + UNIT.format("pt_br", "a", "ptx", "b"))})
    path = tmp_path / "t.tmx"
    assert list(read_bitext(path, ("pt", "pt-BR"))) == [Bitext("autocarro", "ônibus")]
    assert list(read_bitext(path, ("pt", "ptx"))) == [Bitext("a", "b")]
    with pytest.raises(DataError, match="no unit has both"):
        list(read_bitext(path, ("pt-PT", "ptx")))


def lines(path: Path) -> list[str]:
    return lzma.decompress(path.read_bytes()).decode().split("\n")[:-1]


def zipped(folder: Path, one: str, other: str, split: str) -> list[Bitext]:
    """As the README of the data zips them."""
    rows = zip(*(lines(folder / f"{name}.txt.xz") for name in (one, other, "split")), strict=True)
    return [Bitext(x, y) for x, y, s in rows if s == split and x and y and "<range>" not in (x, y)]


@needs_data
@pytest.mark.parametrize(
    ("collection", "one", "other"),
    [
        pytest.param("bible", "eng", "deu", marks=pytest.mark.nightly), ("bible", "isl", "tsn"),
        ("seed", "eng_Latn", "ita_Latn"), ("seed", "vec_Latn", "lmo_Latn"),
        ("storybooks", "en", "sw"), ("storybooks", "ha-ne", "en"), ("storybooks", "lgg", "lgg-official"),
    ],
)  # fmt: skip
def test_any_two_languages_of_an_aligned_collection_are_zipped_in_either_order(collection, one, other):
    counts = {}
    for split in ("train", "dev", "test"):
        forth = resolve(f"{collection}:{one}-{other}/{split}", root=DATA)
        back = resolve(f"{collection}:{other}-{one}/{split}", root=DATA)
        pairs = pairs_of(forth)
        counts[split] = len(pairs)
        assert pairs == zipped(DATA / "mt" / collection, one, other, split)
        turned = [Bitext(pair.target, pair.source) for pair in pairs]
        assert list(back.records("bitext")) == list(forth.records("bitext", direction=(other, one))) == turned
        assert list(back.records("bitext", direction=(one, other))) == pairs
        assert (forth.languages, forth.task, forth.split, forth.non_commercial) == ((one, other), "mt", split, False)
    if collection == "seed":
        assert counts == {"train": 5607, "test": 355, "dev": 231}  # its README


@needs_data
def test_every_pair_of_tatoeba_has_as_many_as_its_readme_says():
    readme = (DATA / "mt/README.md").read_text()
    stated = re.findall(r"^\| (eng-\w+) \| (\d+) \| (\d+) \| (\d+) \|", readme, re.MULTILINE)
    assert len(stated) == 99
    total = 0
    for pair, *counts in stated:
        for split, count in zip(("train", "dev", "test"), counts, strict=True):
            if split == "train":
                total += int(count)
            if split != "train" or int(count) < 1000 or pair == "eng-deu":
                assert len(list(resolve(f"tatoeba-mt:{pair}/{split}", root=DATA).records("bitext"))) == int(count), pair
    assert total == 403_758
    zero = re.findall(r"\b([a-z]{3}-[a-z]{3}) (\d+)[,.]", readme)
    assert len(zero) == 48
    for pair, count in zero:
        assert len(list(resolve(f"tatoeba-zero:{pair}/test", root=DATA).records("bitext"))) == int(count)


@needs_data
def test_both_orders_of_a_pair_with_english_are_the_same_file_turned():
    forth, back = (resolve(f"tatoeba-mt:{pair}/dev", root=DATA) for pair in ("eng-deu", "deu-eng"))
    pairs = pairs_of(forth)
    assert pairs == [Bitext(*line.split("\t")) for line in lines(DATA / "mt/tatoeba/eng-deu/dev.tsv.xz")]
    assert list(back.records("bitext")) == [Bitext(pair.target, pair.source) for pair in pairs]
    assert list(back.records("bitext", direction=("eng", "deu"))) == pairs
    assert back.sha256 == forth.sha256
    named = resolve("tatoeba-mt:eng-deu/dev#en,de[:5]", root=DATA)
    assert list(named.records("bitext", direction=("de", "en"))) == list(back.records("bitext"))[:5]
    assert len(list(resolve("tatoeba:bre", root=DATA).records("text"))) == 5627  # the raw text goes by its old name


def aligned_root(root: Path) -> Path:
    texts = {"aa": "a\nb\n<range>\nd\n", "bb": "1\n\n3\n4\n", "cc-x": "p\nq\nr\ns\n"}
    write(root, {f"mt/bible/{name}.txt": text for name, text in texts.items()})
    write(root, {"mt/bible/split.txt": "train\ntrain\ntrain\ntest\n", "mt/bible/vref.txt": "1\n2\n3\n4\n"})
    return root


def test_collections_of_aligned_lines(tmp_path):
    root = aligned_root(tmp_path)
    assert list(resolve("bible:aa-bb/train", root=root).records("bitext")) == [Bitext("a", "1")]
    assert list(resolve("bible:cc-x-aa/train", root=root).records("bitext")) == [Bitext("p", "a"), Bitext("q", "b")]
    assert list(resolve("bible:bb-cc-x/test[:1]", root=root).records("bitext")) == [Bitext("4", "s")]
    for name, what in {
        "bible:aa": "Write bible:aa-LANGUAGE/SPLIT, or bible:aa/SPLIT for the text of one",
        "bible:aa-aa/train": "two languages",
        "bible:aa-bb": "Write bible:aa-bb/SPLIT",
        "bible:aa-zz/train": "^bible:zz: .*Known: aa, bb, cc-x",
        "bible:aa-vref/train": "^bible:vref: not under",
        "bible:aa-bb/trian": "unknown split",
    }.items():
        with pytest.raises(DataError, match=what):
            resolve(name, root=root)
    (root / "mt/bible/split.txt").write_text("train\ntrain\nvalid\ntest\n")
    with pytest.raises(DataError, match=r"split.txt:3: 'valid' is no split. Known: train, dev, test"):
        list(resolve("bible:aa-bb/train", root=root).records("bitext"))
    (root / "mt/bible/split.txt").unlink()
    with pytest.raises(DataError, match=r"0 files split.txt"):
        resolve("bible:aa-bb/train", root=root)


def test_the_hash_changes_with_any_of_the_files(tmp_path):
    root = aligned_root(tmp_path)
    hashes = {resolve("bible:aa-bb/train", root=root).sha256}
    for name in ("aa", "bb", "split"):
        path = root / f"mt/bible/{name}.txt"
        path.write_text(path.read_text().replace("\n", " \n", 1))
        hashes.add(resolve("bible:aa-bb/train", root=root).sha256)
    write(tmp_path, {"t.en": "a\n", "t.de": "b\n"})
    for side in ("en", "de"):
        hashes.add(resolve(f"{tmp_path}/t.{{en,de}}").sha256)
        (tmp_path / f"t.{side}").write_text("other\n")
    hashes.add(resolve(f"{tmp_path}/t.{{en,de}}").sha256)
    assert len(hashes) == 7
    assert Table(tmp_path / "t.en").sha256() == resolve(str(tmp_path / "t.en")).sha256


def test_the_filter_keeps_up_to_its_bounds_and_is_symmetric():
    assert Filter() == Filter(max_length=250, max_ratio=2.5, deduplicate=True)
    rules = PairFilter(Filter())
    assert rules.keeps(250, 250)
    assert not rules.keeps(251, 250)
    assert rules.keeps(5, 2)
    assert not rules.keeps(6, 2)
    assert rules.keeps(1, 2)
    assert not rules.keeps(1, 3)
    for one in range(261):
        for other in range(261):
            kept = min(one, other) > 0 and max(one, other) <= 250 and 2 * max(one, other) <= 5 * min(one, other)
            assert rules.keeps(one, other) == rules.keeps(other, one) == kept


def test_what_was_left_out_is_counted_by_rule():
    sieve = PairFilter(Filter(max_length=10))
    kept = [sieve.keeps(*lengths) for lengths in [(2, 3), (0, 1), (11, 9), (9, 3), (2, 3), (2, 2)]]
    assert kept == [True, False, False, False, True, True]
    assert sieve.dropped == {"empty": 1, "length": 1, "ratio": 1}


def test_keys_are_those_of_the_whole_pair():
    pairs = [("a", "bc"), ("ab", "c"), ("a", "b"), ("1 a", "b"), ("bc", "a"), ("A", "bc")]
    assert len({pair_key(Bitext(*pair)) for pair in pairs}) == len(pairs)
    assert pair_key(Bitext("a", "b")) == pair_key(Bitext("a", "b"))


def test_one_language_of_an_aligned_collection_is_raw_text(tmp_path):
    root = aligned_root(tmp_path)
    for language, texts in {"aa": ["a", "b"], "bb": ["1", "3"], "cc-x": ["p", "q", "r"]}.items():
        corpus = resolve(f"bible:{language}/train", root=root)
        assert list(corpus.records("text")) == [Text(text) for text in texts]
        assert corpus.language == language
        with pytest.raises(DataError, match="one language is raw text, not bitext"):
            list(corpus.records("bitext"))
    before = resolve("bible:bb/train", root=root).sha256
    (root / "mt/bible/split.txt").write_text("train\ntrain\ntest\ntest\n")
    assert resolve("bible:bb/train", root=root).sha256 != before
