"""The base class of tasks on words, and helpers that encode long sentences and gather one vector per word."""

from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.tasks.base import EncodedExample, Example, Task, TaskBatch, Tokens

Ints = np.ndarray[Any, np.dtype[np.int64]]


class WordTask(Task, ABC):
    """A task that predicts something for every word of a sentence."""

    word_targets: ClassVar[tuple[str, ...]] = ("labels",)
    """Columns of its encoded examples that have a number for every word, which its loss needs."""

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out sentences as windows, with the targets of their words as ``labels_XW`` and the like."""
        rows = [example.row for example in examples]
        batch = collate_words(rows, tokenizer=tokenizer, max_length=max_length)
        names = [name for name in self.word_targets if name in rows[0]]  # none for a prediction
        targets = {f"{name}_XW": pad_targets(rows, name, batch.targets["mask_XW"]) for name in names}
        return replace(batch, targets={**batch.targets, **targets})

    def is_cut(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> bool:
        """Return whether a single word is too long; long sentences take several rows."""
        return max(row["counts"], default=0) > max_length - tokenizer.num_special(pair=False)


def encode_words(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """Encode words: the tokens of all words, the number of each word's tokens, and the token a word is read from."""
    special = tokenizer.num_special(pair=False)
    for words in tokenizer.words(sentences):
        yield {"tokens": words.ids, "counts": words.counts, "reads": words.reads, "length": len(words.ids) + special}


def windows(counts: Ints, room: int) -> list[tuple[int, int]]:
    """Cover words with windows ``[begin, end)`` of at most `room` tokens that overlap by up to a half."""
    ends = np.cumsum(counts)
    starts = ends - counts
    spans = []
    begin, num_words = 0, len(counts)
    while True:
        # As many words as fit, at least one; then the next window begins in the middle of this one.
        end = max(int(np.searchsorted(ends, starts[begin] + room, side="right")), begin + 1)
        spans.append((begin, end))
        if end >= num_words:
            return spans
        middle = starts[begin] + room // 2
        begin = min(max(int(np.searchsorted(starts, middle)), begin + 1), end)


def place_words(row: EncodedExample, room: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Lay out a sentence as windows; find the window and the token in it where each word is read.

    Windows overlap, so many words are in two of them. A word is read where it has the most context on its shorter side.
    A single word of more than `room` tokens is cut.
    """
    counts = np.minimum(np.asarray(row["counts"], dtype=np.int64), room)
    reads = np.minimum(np.asarray(row["reads"], dtype=np.int64), counts - 1)
    firsts = np.cumsum(row["counts"]) - row["counts"]
    ends = np.cumsum(counts)
    starts = ends - counts
    best_W = np.full(len(counts), -1)
    window_W, place_W = np.zeros(len(counts), dtype=np.int64), np.zeros(len(counts), dtype=np.int64)
    contents: list[list[int]] = []
    for begin, end in windows(counts, room):
        low, high = starts[begin], ends[end - 1]
        span = slice(begin, end)
        # At the ends of a sentence nothing is cut off: there is no more to see on that side.
        left = starts[span] - low if begin else np.full(end - begin, room)
        right = high - ends[span] if end < len(counts) else np.full(end - begin, room)
        context = np.minimum(left, right)
        better = context > best_W[span]
        best_W[span][better] = context[better]
        window_W[span][better] = len(contents)
        place_W[span][better] = (starts[span] - low + reads[span])[better]
        contents.append([int(p) for w in range(begin, end) for p in row["tokens"][firsts[w] : firsts[w] + counts[w]]])
    return contents, window_W.tolist(), place_W.tolist()


def collate_words(rows: Sequence[EncodedExample], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
    """Lay out sentences as rows, with the row and position of every word: ``row_XW``, ``place_XW``, ``mask_XW``."""
    room = max_length - tokenizer.num_special(pair=False)
    offset = tokenizer.num_before
    width = max(len(row["counts"]) for row in rows)
    shape = (len(rows), width)
    row_XW, place_XW = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    mask_XW = torch.zeros(shape, dtype=torch.bool)
    sequences: list[Tokens] = []
    examples: list[int] = []
    for i, row in enumerate(rows):
        # Windows are numbered within the sentence, and places within the window, before special tokens are added.
        contents, window_W, place_W = place_words(row, room)
        count = len(window_W)
        row_XW[i, :count] = torch.tensor(window_W) + len(sequences)
        place_XW[i, :count] = torch.tensor(place_W) + offset
        mask_XW[i, :count] = True
        sequences += [Tokens(tokenizer.single(content)) for content in contents]
        examples += [i] * len(contents)
    targets = {"row_XW": row_XW, "place_XW": place_XW, "mask_XW": mask_XW}
    return TaskBatch(sequences, examples, targets, int(mask_XW.sum()))


def pad_targets(rows: Sequence[EncodedExample], column: str, like: Tensor) -> Tensor:
    """Lay out a per-word column as a tensor, -1 where there is no word."""
    padded = torch.full(like.shape, -1, dtype=torch.long)
    for i, row in enumerate(rows):
        padded[i, : len(row[column])] = torch.as_tensor(np.asarray(row[column], dtype=np.int64))
    return padded


def gather_words(hidden_BTD: Tensor, rows: TaskBatch) -> Tensor:
    """Gather one vector per word ``[X, W, D]``; where there is no word the vector means nothing."""
    return hidden_BTD[rows.targets["row_XW"], rows.targets["place_XW"]]
