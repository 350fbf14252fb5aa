"""The base class of tasks on words, and helpers that encode long sentences and gather one vector per word."""

from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyloom.data.readers.conllu import Row, Sentence, parse_conllu, write_sentence
from polyloom.data.records import Tagged
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import DataError, PolyloomError
from polyloom.io.files import checked_text
from polyloom.tasks.base import EncodedExample, Task, TaskBatch, Tokens
from polyloom.tasks.formats import MAX_LETTERS, STDIN, Format, Line, StreamItem, read_json, write_json

Ints = np.ndarray[Any, np.dtype[np.int64]]
MAX_WORDS = 2_000  # of a sentence, which is held in memory at once; a parser scores all pairs of words


class WordTask(Task, ABC):
    """A task that predicts something for every word of a sentence.

    Attributes:
        keys: JSON keys of the values predicted for a word; they also choose the columns of CoNLL-U.
    """

    keys: ClassVar[tuple[str, ...]]
    inputs: ClassVar[Mapping[Format, Format]] = {
        "text": "columns", "tokenized": "columns", "columns": "columns", "conllu": "conllu", "jsonl": "jsonl",
    }  # fmt: skip
    outputs: ClassVar[tuple[Format, ...]] = ("columns", "conllu", "jsonl")
    multiline: ClassVar[tuple[Format, ...]] = ("columns", "conllu")

    def is_cut(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> bool:
        """Return whether a single word is too long; long sentences take several rows."""
        return max(row["counts"], default=0) > max_length - tokenizer.num_special(pair=False)

    @classmethod
    def by_word(cls, prediction: Any) -> tuple[Sequence[Any], ...]:
        """Split a prediction into one sequence for each of `keys`."""
        return (prediction,)

    @classmethod
    def read(cls, lines: Sequence[Line], form: Format, language: str) -> StreamItem:
        """Read a sentence; raw text is segmented into words."""
        if form == "text":
            return _segmented(lines[0].number, _plain_text(lines[0]), lines[0].text, language)
        if form == "jsonl":
            return _read_json(lines, language)
        return _READERS[form](lines)

    @classmethod
    def write(cls, item: StreamItem, prediction: Any, form: Format) -> str:
        """Write a sentence with what was predicted for its words."""
        words = item.record.words if isinstance(item.record, Tagged) else ()
        values = [()] * len(cls.keys) if prediction is None else cls.by_word(prediction)
        named = dict(zip(cls.keys, map(list, values), strict=True))
        if form == "jsonl":
            known = isinstance(item.source, dict) and "words" in item.source
            offsets = {"offsets": item.offsets} if item.offsets else {}
            return write_json(item, **({} if known else {"words": words}), **offsets, **named)
        if form == "conllu":
            return _write_conllu(item, words, named)
        rows = zip(words, *named.values(), strict=True)
        return "".join("\t".join(map(str, row)) + "\n" for row in rows) + "\n"


def _segmented(line: int, text: str, source: dict[str, Any] | str, language: str) -> StreamItem:
    """Segment raw text into words and keep their offsets."""
    from polyloom.data.tokenization.segmentation import iter_words  # noqa: PLC0415 - only for raw text

    _word_item(line, text.split(), source)  # which checks the length
    try:
        words = list(islice(iter_words(text, language), MAX_WORDS + 1))
    except DataError:
        raise
    except PolyloomError as error:
        raise DataError(STDIN, line, str(error)) from error
    item = _word_item(line, [word.text for word in words], source, segmented=True)
    return replace(item, offsets=tuple((word.start, word.end) for word in words))


def _word_item(
    line: int, words: Sequence[str], source: dict[str, Any] | Sentence | str, *, segmented: bool = False
) -> StreamItem:
    """Make an item of words; `segmented` if no more words were looked for than are allowed."""
    letters = sum(map(len, words))
    if len(words) > MAX_WORDS or letters > MAX_LETTERS:
        size = f"a sentence of {len(words):,} words{' or more' * segmented} and {letters:,} letters. "
        limit = f"At most {MAX_WORDS:,} and {MAX_LETTERS:,} are allowed: split it into sentences."
        raise DataError(STDIN, line, size + limit)
    return StreamItem(line, Tagged(tuple(words), ()) if words else None, source)


def _plain_text(line: Line) -> str:
    if line.text.count("\t") == 9 or (line.number == 1 and line.text.startswith('{"')):
        looks = "CoNLL-U. Add --input conllu." if "\t" in line.text else "JSON. Add --input jsonl."
        raise DataError(STDIN, line.number, f"this is not plain text but {looks}")
    return line.content


def _read_tokenized(lines: Sequence[Line]) -> StreamItem:
    return _word_item(lines[0].number, _plain_text(lines[0]).split(), lines[0].text)


def _read_columns(lines: Sequence[Line]) -> StreamItem:
    words = []
    for line in lines:
        text = line.content
        if not text.strip():
            break
        words.append(text.split("\t" if "\t" in text else None, maxsplit=1)[0])
        if not words[-1].strip():
            raise DataError(STDIN, line.number, "no word in the first column.")
    return _word_item(lines[0].number, words, "")


def _read_conllu(lines: Sequence[Line]) -> StreamItem:
    (sentence,) = parse_conllu([line[:2] for line in lines], STDIN)
    return _word_item(sentence.line, sentence.words, sentence)


def _read_json(lines: Sequence[Line], language: str) -> StreamItem:
    number, entry = lines[0].number, read_json(lines)
    if isinstance(entry.get("words"), list):
        words = [checked_text(word, STDIN, number, name="words") for word in entry["words"]]
        if any(not word.strip() or set(word) & set("\t\n\r") for word in words):
            raise DataError(STDIN, number, "a word is empty, or has a tab or a line end in it.")
        return _word_item(number, words, entry)
    if "text" in entry:
        return _segmented(number, checked_text(entry["text"], STDIN, number, name="text"), entry, language)
    raise DataError(STDIN, number, 'expected {"words": ["…", …]} or {"text": "…"}.')


_READERS: Mapping[str, Callable[[Sequence[Line]], StreamItem]] = {
    "tokenized": _read_tokenized, "columns": _read_columns, "conllu": _read_conllu,
}  # fmt: skip


def _write_conllu(item: StreamItem, words: Sequence[str], named: Mapping[str, Any]) -> str:
    if item.record is None:
        return "\r\n" if isinstance(item.source, str) and item.source.endswith("\r\n") else "\n"
    if isinstance(item.source, Sentence):
        sentence = item.source
    else:
        joined = {i for i, ((_, end), (start, _)) in enumerate(pairwise(item.offsets)) if start == end}
        rows = tuple(
            Row(str(i + 1), word, *"_" * 8)._replace(misc="SpaceAfter=No" if i in joined else "_")
            for i, word in enumerate(words)
        )
        text = "".join(word if i in joined else f"{word} " for i, word in enumerate(words)).strip()
        sentence = Sentence((f"# text = {text}",), rows)
    columns = {"tags": "upos"}  # all others have the name of their column
    return write_sentence(sentence.with_predictions(**{columns.get(key, key): v for key, v in named.items()}))


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
        end = max(int(np.searchsorted(ends, starts[begin] + room, side="right")), begin + 1)
        spans.append((begin, end))
        if end >= num_words:
            return spans
        middle = starts[begin] + room // 2
        begin = min(max(int(np.searchsorted(starts, middle)), begin + 1), end)


def place_words(row: EncodedExample, room: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Lay out a sentence as windows; find the window and the token in it where each word is read.

    A word is read where it has the most context on its shorter side. A single word of more than `room` tokens is cut.
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
    """Lay out sentences as rows, with the row and position of every word: ``row_SW``, ``place_SW``, ``mask_SW``."""
    room = max_length - tokenizer.num_special(pair=False)
    offset = tokenizer.num_before
    width = max(len(row["counts"]) for row in rows)
    shape = (len(rows), width)
    row_SW, place_SW = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    mask_SW = torch.zeros(shape, dtype=torch.bool)
    sequences: list[Tokens] = []
    examples: list[int] = []
    for i, row in enumerate(rows):
        contents, window_W, place_W = place_words(row, room)
        count = len(window_W)
        row_SW[i, :count] = torch.tensor(window_W) + len(sequences)
        place_SW[i, :count] = torch.tensor(place_W) + offset
        mask_SW[i, :count] = True
        sequences += [Tokens(tokenizer.single(content)) for content in contents]
        examples += [i] * len(contents)
    targets = {"row_SW": row_SW, "place_SW": place_SW, "mask_SW": mask_SW}
    return TaskBatch(sequences, examples, targets, int(mask_SW.sum()))


def pad_targets(rows: Sequence[EncodedExample], column: str, like: Tensor) -> Tensor:
    """Lay out a per-word column as a tensor, -1 where there is no word."""
    padded = torch.full(like.shape, -1, dtype=torch.long)
    for i, row in enumerate(rows):
        padded[i, : len(row[column])] = torch.as_tensor(np.asarray(row[column], dtype=np.int64))
    return padded


def gather_words(hidden_BTD: Tensor, rows: TaskBatch) -> Tensor:
    """Gather one vector per word ``[S, W, D]``; where there is no word the vector means nothing."""
    return hidden_BTD[rows.targets["row_SW"], rows.targets["place_SW"]]
