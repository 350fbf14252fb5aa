"""Entities are those that seqeval's default mode finds, in real, damaged and all possible short sentences."""

import itertools
import lzma
import random
import re

import numpy as np
import pytest

from polyloom.data.catalog import resolve
from polyloom.data.records import Tagged
from polyloom.errors import PolyloomError
from polyloom.metrics.score import ACCURACY, F1, Score
from polyloom.metrics.spans import Span, chunk_statistics, repair_bio, span_statistics, spans
from polyloom.metrics.tags import tag_statistics
from tests.metrics.peers import ask, needs_peers
from tests.shared import DATA, needs_data

LANGUAGES = [
    "zh",
    "sw",
    "my",
    "ja",
    "ar",
    "de",
    "en",
    "gu",
    "hi",
    "jv",
    "pa",
    "qu",
    "ru",
    "ta",
    "tr",
    "yo",
]  # ja and zh have malformed gold tags
UNER = ["Cebuano-GJA", "Tagalog-TRG", "Chinese-PUD", "Swedish-PUD"]
ALL_TAGS = ["O", "B-X", "I-X", "E-X", "S-X", "B-Y-Z", "I-Y-Z", "E-Y-Z", "B", "I"]
ALL_SHORT = [list(tags) for length in range(1, 5) for tags in itertools.product(ALL_TAGS, repeat=length)]

# Tags without a prefix, among them those that seqeval mistakes for one, and for a tag of the same type.
UPOS = re.findall(r"\w+", "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X")
HOSTILE = ["X", "_", "O", ".", "B", "I", "E", "S", "CCONJ", "SCONJ", "INTJ", "E-X", "B-CONJ", "NOUN", "-", "VB-D"]
TREEBANKS = ["yo_ytb", "ar_pud", "tr_boun", "en_ewt", "zh_gsd", "mt_mudt", "wo_wtb", "hsb_ufal"]


def read(path, column: int) -> list[list[str]]:
    blocks = lzma.decompress(path.read_bytes()).decode().strip("\n").split("\n\n")
    rows = ([line.split("\t") for line in block.split("\n") if line[:2] != "# "] for block in blocks)
    return [[row[column] for row in sentence] for sentence in rows]


def damage(sentence: list[str], rng: random.Random, labels: list[str], *, rate: float) -> list[str]:
    """Other tags, of which many cannot follow one another."""
    anything = [f"{prefix}-{label}" for prefix in "BIIES" for label in labels] + ["O", "O", "O"]
    return [rng.choice(anything) if rng.random() < rate else tag for tag in sentence]


def corpora(names: list[str]) -> dict[str, dict[str, list[list[str]]]]:
    shuffled = random.Random(0).sample(ALL_SHORT, len(ALL_SHORT))
    shuffled.sort(key=len)
    found = {
        "all": {"gold": ALL_SHORT, "predicted": shuffled},
        "none": {"gold": [["O", "O"]], "predicted": [["O", "O"]]},
    }
    for number, name in enumerate(names):
        if name in UNER:
            path, column = next((DATA / f"ner/uner/UNER_{name}").glob("*-test.iob2.xz")), 2
        else:
            path, column = DATA / "ner/wikiann" / name / "test.tsv.xz", 1
        gold, rng = read(path, column), random.Random(number)
        labels = sorted({tag[2:] for tags in gold for tag in tags if tag != "O"})
        rate = 0.1 + 0.3 * number / len(names)
        found[name] = {"gold": gold, "predicted": [damage(tags, rng, labels, rate=rate) for tags in gold]}
    return found


@pytest.mark.parametrize(
    "names", [LANGUAGES[:3] + UNER[:1], pytest.param(LANGUAGES + UNER, marks=pytest.mark.nightly)], ids=len
)
@pytest.mark.parity
@needs_peers
@needs_data
def test_entities_and_f1_are_seqevals(tmp_path, names):
    cases = corpora(names)
    for (name, case), answer in zip(cases.items(), ask(tmp_path, "tags", list(cases.values())), strict=True):
        for side in ("gold", "predicted"):
            ours = [[[span.label, span.start, span.stop - 1] for span in spans(tags)] for tags in case[side]]
            assert ours == answer[side], name
        score = Score(F1, span_statistics(case["gold"], case["predicted"]), "")
        f1, precision, recall = answer["scores"]
        right, predicted, gold = score.statistics_NP.sum(0)
        both = zip(answer["gold"], answer["predicted"], strict=True)
        assert right == sum(len(set(map(tuple, a)) & set(map(tuple, b))) for a, b in both), name
        assert (right / max(predicted, 1), right / max(gold, 1)) == (precision, recall), name
        assert score.value == pytest.approx(100 * f1, rel=1e-14), name
        assert name in ("all", "none") or 5 < score.value < 95  # the comparison would see a difference


def random_tags(tags: list[str], rng: random.Random, lengths: list[int]) -> list[list[str]]:
    return [[rng.choice(tags) for _ in range(length)] for length in lengths]


def tagged_corpora(treebanks: list[str]) -> dict[str, dict[str, list[list[str]]]]:
    found = {}
    for name, tags in (("upos", UPOS), ("hostile", HOSTILE)):
        for seed in range(20):
            rng = random.Random(seed)
            lengths = [rng.randint(1, 6) for _ in range(rng.randint(1, 40))]
            gold, other = random_tags(tags, rng, lengths), random_tags(tags, rng, lengths)
            mixed = [[rng.choice(pair) for pair in zip(*both, strict=True)] for both in zip(gold, other, strict=True)]
            found[f"{name}-{seed}"] = {"gold": gold, "predicted": mixed}
    for number, name in enumerate(treebanks):
        records = [
            record for record in resolve(f"ud:{name}/test", root=DATA).records("tags") if isinstance(record, Tagged)
        ]
        gold, rng = [list(record.tags) for record in records], random.Random(number)
        predicted = [[rng.choice(UPOS) if rng.random() < 0.15 else tag for tag in tags] for tags in gold]
        found[name] = {"gold": gold, "predicted": predicted}
    return found


@pytest.mark.parametrize("treebanks", [TREEBANKS[:2], pytest.param(TREEBANKS, marks=pytest.mark.nightly)], ids=len)
@pytest.mark.parity
@needs_peers
@needs_data
def test_f1_of_tags_without_prefixes_is_seqevals(tmp_path, treebanks):
    """BAD-X's scores of tagging: real tags and random ones, whole corpora, also where sentences touch."""
    cases = tagged_corpora(treebanks)
    for (name, case), answer in zip(cases.items(), ask(tmp_path, "tags", list(cases.values())), strict=True):
        score = Score(F1, chunk_statistics(case["gold"], case["predicted"]), "")
        assert score.count == len(case["gold"])
        f1, precision, recall = answer["scores"]
        right, predicted, gold = score.statistics_NP.sum(0)
        assert (right / max(predicted, 1), right / max(gold, 1)) == (precision, recall), name
        assert score.value == pytest.approx(100 * f1, rel=1e-14), name
        if name in TREEBANKS:
            assert 50 < score.value < 95
            accuracy = Score(ACCURACY, tag_statistics(case["gold"], case["predicted"]), "").value
            assert abs(accuracy - score.value) > 1, "accuracy under another name"


def test_chunks_are_neighbours_of_one_type_and_are_counted_where_they_end():
    gold = [["NOUN", "NOUN", "VERB"], ["DET", "NOUN"]]
    predicted = [["NOUN", "VERB", "VERB"], ["DET", "NOUN"]]
    assert chunk_statistics(gold, gold).tolist() == [[2, 2, 2], [2, 2, 2]]
    assert chunk_statistics(gold, predicted).tolist() == [[0, 2, 2], [2, 2, 2]]
    assert chunk_statistics([["DET", "CCONJ"]], [["DET", "SCONJ"]]).tolist() == [[2, 2, 2]], "of one type for seqeval"
    with pytest.raises(PolyloomError, match="sentence 1 has 2 gold and 1 predicted tags"):
        chunk_statistics([["DET", "X"]], [["DET"]])


def test_repaired_tags_are_valid_and_hold_the_same_entities():
    for tags in ALL_SHORT:
        repaired = repair_bio(tags)
        assert spans(repaired) == spans(tags)
        assert repair_bio(repaired) == repaired
        for before, tag in zip(("O", *repaired), repaired, strict=False):
            assert tag == "O" or tag[0] == "B" or (tag[0] == "I" and before[2:] == tag[2:])


def test_malformed_sequences_are_read_as_conlleval_reads_them():
    assert spans(["I-PER", "I-PER", "I-LOC", "O", "E-LOC"]) == [Span("PER", 0, 2), Span("LOC", 2, 3), Span("LOC", 4, 5)]
    assert spans(["B-PER", "E-PER", "I-PER", "S-PER", "B-PER"]) == [
        Span("PER", 0, 2),
        *(Span("PER", i, i + 1) for i in (2, 3, 4)),
    ]
    assert repair_bio(["O", "I-PER", "I-PER", "I-LOC"]) == ("O", "B-PER", "I-PER", "B-LOC")


def test_extent_and_type_must_both_be_right():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O"]]
    predicted = [["B-PER", "O", "O", "B-ORG"], ["B-PER"]]
    assert span_statistics(gold, predicted).tolist() == [[0, 2, 2], [0, 1, 0]]
    assert span_statistics(gold, gold).tolist() == [[2, 2, 2], [0, 0, 0]]
    assert span_statistics(gold, gold).dtype == np.int64


@pytest.mark.parametrize("tag", ["PER", "BPER", "", "b-PER", "O-PER", "X-PER", "-PER"])
def test_what_is_no_entity_tag_is_refused(tag):
    with pytest.raises(PolyloomError, match=f"entity tag {tag!r}: neither"):
        spans(["O", tag])
