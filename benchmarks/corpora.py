"""Made-up corpora and datasets of any size. Nothing here imports torch: some benchmarks measure memory."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from polyloom.data.packing import ROWS_PER_PACK, Packed

NUM_WORDS, MEAN_WORDS, CHUNK = 20_000, 10, 10_000
MEAN_TOKENS = 30
REPEATED, UNEVEN = 0.05, 0.02


def write_corpus(folder: Path, pairs: int, *, seed: int = 0, mean_words: int = MEAN_WORDS) -> None:
    """Write made-up sentences and their translations, word by word: ``text.aa`` and ``text.bb``."""
    lot, draw = np.random.default_rng(seed), random.Random(seed)  # noqa: S311 - nothing is secret here
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = {
        language: np.array(["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(NUM_WORDS)], object)
        for language in ("aa", "bb")
    }
    # Few words are frequent: the r-th comes with a probability of about 1 / r.
    frequencies = np.cumsum(1 / np.arange(5, NUM_WORDS + 5))
    with (folder / "text.aa").open("w") as source, (folder / "text.bb").open("w") as target:
        for start in range(0, pairs, CHUNK):
            size = min(CHUNK, pairs - start)
            lengths = 1 + lot.gamma(3, (mean_words - 1) / 3, size).astype(int)
            ends = np.cumsum(lengths)
            ranks = np.searchsorted(frequencies, lot.random(int(ends[-1])) * frequencies[-1])
            sides = [np.split(words[language][ranks], ends[:-1]) for language in ("aa", "bb")]
            lines = [[" ".join(one), " ".join(other)] for one, other in zip(*sides, strict=True)]
            for i in np.flatnonzero(lot.random(size) < UNEVEN).tolist():
                lines[i][1] = " ".join([lines[i][1]] * 4)
            for i in np.flatnonzero(lot.random(size) < REPEATED).tolist():
                lines[i] = lines[i // 2]
            source.writelines(f"{one}\n" for one, _ in lines)
            target.writelines(f"{other}\n" for _, other in lines)


def write_bitext(folder: Path, pairs: int, pivot: str, others: Sequence[str]) -> dict[str, str]:
    """Write made-up sentences of a language with translations into others; return the corpus of each of these."""
    corpora = {}
    for seed, other in enumerate(others):
        (folder / other).mkdir()
        write_corpus(folder / other, pairs, seed=seed, mean_words=5)
        sides = [(folder / other / f"text.{side}").read_text().splitlines() for side in ("aa", "bb")]
        file = folder / f"{other}.tsv"
        file.write_text("".join(f"{one}\t{two}\n" for one, two in zip(*sides, strict=True)))
        corpora[other] = f"{file}#{pivot},{other}"
    return corpora


def random_rows(rows: int, lists: int, *, seed: int, tokens: tuple[int, int]) -> Iterator[Packed]:
    """Yield rows of one or two lists of random tokens, packed as they are written to a dataset.

    Args:
        rows: Number of rows.
        lists: Lists of a row: one of text, two of a sentence and its translation, which is 0.8 to 1.25 times as long.
        seed: Seed of the draws.
        tokens: The first token, and the one after the last.
    """
    lot = np.random.default_rng(seed)
    for start in range(0, rows, ROWS_PER_PACK):
        count = min(ROWS_PER_PACK, rows - start)
        lengths_BL = np.repeat(1 + lot.gamma(3, (MEAN_TOKENS - 1) / 3, (count, 1)).astype(np.int32), lists, axis=1)
        if lists > 1:
            lengths_BL = np.maximum(1, (lengths_BL * lot.uniform(0.8, 1.25, (count, lists))).astype(np.int32))
        # A row is stored as the number of tokens of each list, the length of the example, and the tokens.
        sizes = (lengths_BL.sum(1) + lists + 1).astype(np.int32)
        words = lot.integers(*tokens, int(sizes.sum()), dtype=np.int32)
        starts = np.cumsum(sizes) - sizes
        for column in range(lists):
            words[starts + column] = lengths_BL[:, column]
        lengths = (lengths_BL.max(1) + 2).astype(np.int32)
        words[starts + lists] = lengths
        yield Packed(words, sizes, lengths)
