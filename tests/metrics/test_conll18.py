"""Accuracy, UAS and LAS are those of the official CoNLL 2018 evaluation, word for word, on real treebanks."""

import lzma
import random
from collections.abc import Iterator

import pytest

from polyloom.data.records import Tree
from polyloom.metrics.attachment import attachment_statistics
from polyloom.metrics.score import ACCURACY, LAS, UAS, Score
from polyloom.metrics.tags import tag_statistics
from tests.metrics.peers import ask, needs_peers
from tests.shared import DATA, needs_data

pytestmark = [pytest.mark.parity, needs_peers, needs_data]

# With and without multiword tokens, empty nodes, subtypes of relations, words with spaces.
TREEBANKS = [
    *("Amharic-ATT", "Arabic-PUD", "Breton-KEB", "Buryat-BDT", "Cebuano-GJA", "Czech-CLTT", "English-EWT", "Erzya-JR"),
    *("Faroese-OFT", "Galician-TreeGal", "Manx-Cadhan", "Marathi-UFAL", "Sanskrit-UFAL", "Tagalog-TRG", "Tamil-MWTT"),
    *("Turkish-PUD", "Vietnamese-VTB", "Yoruba-YTB"),
]
UPOS, HEAD, RELATION = 3, 6, 7
Sentence = list[list[str]]  # lines of columns; multiword tokens among them


def read(name: str) -> list[Sentence]:
    (path,) = (DATA / "ud" / f"UD_{name}").glob("*-test.conllu.xz")
    blocks = lzma.decompress(path.read_bytes()).decode().strip("\n").split("\n\n")
    rows = ([line.split("\t") for line in block.split("\n") if line[0] != "#"] for block in blocks)
    return [[[*row[:8], "_", "_"] for row in sentence if "." not in row[0]] for sentence in rows]


def words(sentence: Sentence) -> Sentence:
    return [row for row in sentence if row[0].isdigit()]


def ancestors(heads: list[int], word: int) -> Iterator[int]:
    while word:
        yield word
        word = heads[word - 1]


def damage(sentence: Sentence, rng: random.Random, relations: list[str], *, rate: float) -> Sentence:
    """Another analysis of the same words, which is a tree with one root again."""
    changed = [list(row) for row in sentence]
    rows = words(changed)
    heads = [int(row[HEAD]) for row in rows]
    for word in range(1, len(rows) + 1):
        if rng.random() < rate:
            head = rng.randint(1, len(rows))
            if heads[word - 1] and word not in ancestors(heads, head):
                heads[word - 1] = head
            elif heads[word - 1] and heads[heads[word - 1] - 1] == 0:  # a child of the root changes places with it
                heads[heads[word - 1] - 1], heads[word - 1] = word, 0
    for row, head in zip(rows, heads, strict=True):
        row[HEAD] = str(head)
        if rng.random() < rate:
            row[UPOS] = rng.choice(["NOUN", "VERB", "ADJ", "X"])
        if rng.random() < rate:
            row[RELATION] = rng.choice([rng.choice(relations), row[RELATION].split(":")[0], f"{row[RELATION]}:other"])
    return changed


def write(path, sentences: list[Sentence]) -> str:
    path.write_text("".join("\n".join("\t".join(row) for row in rows) + "\n\n" for rows in sentences))
    return str(path)


def columns(sentences: list[Sentence], column: int) -> list[tuple[str, ...]]:
    return [tuple(row[column] for row in words(sentence)) for sentence in sentences]


def trees(sentences: list[Sentence]) -> list[Tree]:
    rows = zip(columns(sentences, 1), columns(sentences, HEAD), columns(sentences, RELATION), strict=True)
    return [Tree(forms, tuple(map(int, heads)), relations) for forms, heads, relations in rows]


@pytest.mark.parametrize("names", [TREEBANKS[::4], pytest.param(TREEBANKS, marks=pytest.mark.nightly)], ids=len)
def test_counts_and_scores_are_those_of_the_official_evaluation(tmp_path, names):
    cases, files = [], []
    for number, name in enumerate(names):
        gold = read(name)
        relations = sorted({relation for sentence in columns(gold, RELATION) for relation in sentence})
        rng = random.Random(number)
        rate = 0.1 + 0.3 * number / (len(names) - 1)
        cases.append((gold, [damage(sentence, rng, relations, rate=rate) for sentence in gold]))
        files.append([write(tmp_path / f"{name}.{i}", sentences) for i, sentences in enumerate(cases[-1])])
    for name, (gold, predicted), answer in zip(names, cases, ask(tmp_path, "treebanks", files), strict=True):
        attachment = attachment_statistics(trees(gold), trees(predicted))
        ours = {
            "UPOS": Score(ACCURACY, tag_statistics(columns(gold, UPOS), columns(predicted, UPOS)), ""),
            "UAS": Score(UAS, attachment, ""),
            "LAS": Score(LAS, attachment, ""),
        }
        for column, (kind, score) in zip([0, 0, 1], ours.items(), strict=True):
            correct, total, f1 = answer[kind]
            assert tuple(score.statistics_NP.sum(0)[[column, -1]]) == (correct, total), name
            assert score.value == 100 * f1, name
            assert 50 < score.value < 100  # the comparison would see a difference
        assert score.count == len(gold)
        assert ours["LAS"].value < ours["UAS"].value
