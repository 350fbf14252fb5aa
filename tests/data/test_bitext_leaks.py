"""Test pairs that training has seen, whole or by one side, are found and told by their weight."""

import unicodedata
from pathlib import Path

import pytest

from polyloom.data.catalog import resolve
from polyloom.data.check import check_corpora
from polyloom.data.corpus_stats import CorpusRole, text_key
from polyloom.data.records import Bitext, Pair, Text
from tests.data.test_bitext import pairs_of, write
from tests.shared import DATA, needs_data


def overlaps(train: Path, test: Path, direction: str = "x/y") -> dict[str | None, int]:
    uses = [
        CorpusRole("mt", "eng/y", "train", resolve(str(train))),
        CorpusRole("mt", direction, "test", resolve(str(test))),
    ]
    return {overlap.side: overlap.count for overlap in check_corpora(uses).overlaps}


def test_test_pairs_are_found_in_training_by_source_by_target_and_whole(tmp_path):
    write(tmp_path, {"train.tsv": "One.\tEins.\nTwo.\tZwei.\nThree.\tDrei.\n"})
    write(tmp_path, {"test.tsv": "one.\tEINS.\ntwo.\tdos\nuno\tDrei.\nnew\tneu\n"})
    assert overlaps(tmp_path / "train.tsv", tmp_path / "test.tsv") == {None: 1, "source": 2, "target": 2}
    write(tmp_path, {"back.tsv": "eins.\tOne.\n"})  # the other direction learns the same
    assert overlaps(tmp_path / "train.tsv", tmp_path / "back.tsv") == {None: 1, "source": 1, "target": 1}
    write(tmp_path, {"zero.tsv": "Un.\tEins.\nDeux.\tzwei.\n"})  # x to y, when English to y is learnt
    assert overlaps(tmp_path / "train.tsv", tmp_path / "zero.tsv") == {"target": 2}
    write(tmp_path, {"clean.tsv": "a\tb\n"})
    assert overlaps(tmp_path / "train.tsv", tmp_path / "clean.tsv") == {}
    assert text_key(Bitext("a", "b")) not in (
        text_key(Bitext("ab", "")),
        text_key(Text("ab")),
        text_key(Pair("a", "b", "")),
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("One.\tEins.\n", ["serious: 1 of 1 pairs (100 %) of {} are also in {}: scores will be skewed."]),
        ("Uno.\tEins.\n", ["serious: 1 of 1 targets (100 %) of {} are also in {}: scores will be skewed."]),
        ("One.\tUno.\n", ["check: 1 of 1 sources (100 %) of {} are also in {}: scores will be skewed."]),
        ("Uno.\tDos.\n", []),
    ],
)
def test_a_leak_is_told_once_and_by_its_weight(tmp_path, rows, said):
    write(tmp_path, {"train.tsv": "One.\tEins.\n", "test.tsv": rows})
    train, test = (resolve(str(tmp_path / f"{name}.tsv")) for name in ("train", "test"))
    report = check_corpora([CorpusRole("mt", "a/b", "train", train), CorpusRole("mt", "c/b", "test", test)])
    expected = [line.format(test.name, train.name) for line in said]
    assert [f"{issue.severity}: {issue.what}" for issue in report.issues] == expected


def test_raw_text_that_has_the_answers_is_noted(tmp_path):
    write(tmp_path, {"raw.txt": "Eins.\n", "test.tsv": "One.\tEins.\n"})
    raw, test = (resolve(str(tmp_path / name)) for name in ("raw.txt", "test.tsv"))
    for uses in (
        [CorpusRole("mlm", "de", "train", raw), CorpusRole("mt", "en/de", "test", test)],
        [CorpusRole("mt", "en/de", "train", test), CorpusRole("mlm", "de", "test", raw)],
    ):
        (issue,) = check_corpora(uses).issues
        assert "seen in another task" in issue.what


@needs_data
def test_the_splits_of_tatoeba_do_not_leak_but_a_join_of_them_does():
    """Its README: an English sentence is in the same split everywhere, and zero-shot pairs are new on both sides."""
    names = [
        "tatoeba-mt:eng-spa/train",
        "tatoeba-mt:eng-fra/train",
        "tatoeba-mt:eng-spa/test",
        "tatoeba-zero:fra-spa/test",
    ]
    corpora = [resolve(name, root=DATA) for name in names]
    uses = [
        CorpusRole("mt", "/".join(c.languages or ()), "train" if c.split == "train" else "test", c) for c in corpora
    ]
    found = {(o.name, o.other, o.side): o.count for o in check_corpora(uses).overlaps}
    texts = {c.name: [(fold(p.source), fold(p.target)) for p in pairs_of(c)] for c in corpora}
    expected: dict[tuple[str, str, str | None], int] = {}
    for test in names[2:]:
        for train in names[:2]:
            known = {text for pair in texts[train] for text in pair}
            either = {frozenset(pair) for pair in texts[train]}
            expected[test, train, None] = sum(frozenset(pair) in either for pair in texts[test])
            expected[test, train, "source"] = sum(source in known for source, _ in texts[test])
            expected[test, train, "target"] = sum(target in known for _, target in texts[test])
    print(found)
    assert found == {key: count for key, count in expected.items() if count}


def fold(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())
