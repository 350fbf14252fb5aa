"""Conversations: supervised fine-tuning on the answers of an assistant."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from polyloom.data.readers.conversations import make_messages
from polyloom.data.records import Conversation, Kind, Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import Location
from polyloom.metrics.score import Array
from polyloom.tasks.base import Columns, EncodedExample, Example, TaskBatch
from polyloom.tasks.lm import CausalLm


class Chat(CausalLm):
    """Supervised fine-tuning: the answers of a conversation are predicted, the rest is read.

    The tokenizer's own chat template lays out a conversation. A long one loses its beginning.
    """

    name = "chat"
    raw_text = False
    kind: ClassVar[Kind] = "conversation"
    columns: ClassVar[Columns] = {"tokens": "ints", "answers": "ints"}
    summary = "answers in conversations, by the tokenizer's chat template: bits per byte, perplexity"

    @classmethod
    def encode(
        cls,
        records: Sequence[Record],
        tokenizer: Tokenizer,
        index: dict[str, int] | None = None,  # noqa: ARG003 - no labels
    ) -> Iterator[EncodedExample]:
        """Encode conversations, with the first token of each answer and the one behind it."""
        for record in records:
            assert isinstance(record, Conversation)
            tokens, spans = tokenizer.chat.answers(record.messages)
            yield {"tokens": tokens, "answers": [place for span in spans for place in span], "length": len(tokens) - 1}

    def excerpt(self, row: EncodedExample, key: int, *, max_length: int) -> EncodedExample:  # noqa: ARG002
        """Leave out the beginning of a long conversation."""
        over = max(0, len(row["tokens"]) - max_length - 1)
        answers = np.maximum(np.asarray(row["answers"]) - over, 0)
        return {**row, "tokens": row["tokens"][over:], "answers": answers, "length": min(row["length"], max_length)}

    def is_cut(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> bool:  # noqa: ARG002
        """Return whether a conversation loses its beginning."""
        return int(row["length"]) > max_length

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out one row for each conversation."""
        whole = [example._replace(row=self.excerpt(example.row, 0, max_length=max_length)) for example in examples]
        return super().collate(whole, tokenizer=tokenizer, max_length=max_length)

    def targets(self, row: EncodedExample) -> Array:
        """Return the tokens of the answers, and -1 for all others."""
        tokens = np.asarray(row["tokens"], dtype=np.int64)
        targets = np.full_like(tokens, -1)
        # No state is before the first token of a row, so it cannot be predicted even if an answer begins there.
        for start, stop in np.asarray(row["answers"]).reshape(-1, 2):
            targets[max(start, 1) : stop] = tokens[max(start, 1) : stop]
        return targets

    def counted(self, rows: TaskBatch) -> Tensor:
        """Return which tokens are scored: those of the answers, with what the template ends them with."""
        return rows.targets["labels_BT"] >= 0

    def scored_text(self, record: Any) -> str:
        """Return the answers of a conversation."""
        return "".join(message.content for message in record.messages if message.role == "assistant")

    @classmethod
    def prompt_tokens(cls, prompt: Any, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens of a conversation that an answer follows; a text is what the user says."""
        listed = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return tokenizer.chat.tokens(make_messages(listed, Location("chat")), answer=True)

    @classmethod
    def opening(cls, record: Any, *, letters: int) -> tuple[Any, str]:  # noqa: ARG003 - messages stay whole
        """Divide a conversation before its last answer."""
        *before, answer = record.messages
        return [message._asdict() for message in before], answer.content
