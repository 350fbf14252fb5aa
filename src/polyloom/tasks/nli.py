"""Natural language inference: one label per pair of texts."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from polyloom.data.records import Kind, Pair, Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.tasks.base import Columns, EncodedExample, Example, TaskBatch, Tokens
from polyloom.tasks.classification import Classification


class Nli(Classification):
    """Natural language inference: one label per pair of texts."""

    name = "nli"
    kind: ClassVar[Kind] = "pair"
    columns: ClassVar[Columns] = {"first": "ints", "second": "ints", "labels": "ints"}
    summary = "natural language inference: accuracy"

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Encode both texts, with the label as a list of one number."""
        pairs = [record for record in records if isinstance(record, Pair)]
        firsts, seconds = tokenizer.text([p.first for p in pairs]), tokenizer.text([p.second for p in pairs])
        special = tokenizer.num_special(pair=True)
        for record, first, second in zip(pairs, firsts, seconds, strict=True):
            labels = {} if index is None else {"labels": [index.setdefault(record.label, len(index))]}
            yield {"first": first, "second": second, "length": len(first) + len(second) + special} | labels

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out one row per pair; the longer text is cut first where both do not fit."""
        rows = [example.row for example in examples]
        room = max_length - tokenizer.num_special(pair=True)
        pairs = [shorten(row["first"], row["second"], room) for row in rows]
        return self.batch([Tokens(*tokenizer.pair(first, second)) for first, second in pairs], rows)


def shorten(first: Sequence[int], second: Sequence[int], room: int) -> tuple[list[int], list[int]]:
    """Cut the longer of two texts from its end until both fit."""
    # A text of at most half the room stays whole, and the other one gets the rest. Of two longer ones each gets a half.
    half = room // 2
    if len(first) + len(second) > room:
        keep = room - len(second) if len(second) <= half else max(room - half, 0)
        first, second = (
            (first[:keep], second[: room - keep]) if len(first) > half else (first, second[: room - len(first)])
        )
    return [int(i) for i in first], [int(i) for i in second]
