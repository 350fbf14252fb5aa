"""Turn conversations into tokens by the chat template that a tokenizer is published with."""

from collections.abc import Sequence
from typing import Any

import tokenizers

from polyloom.data.records import Message
from polyloom.errors import PolyloomError


class ChatTemplate:
    """The chat template of a tokenizer.

    Special tokens of the template are tokens. Messages that contain one are refused: they could end a turn and begin
    another.

    Args:
        tokenizer: The tokenizer of Transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # A copy: in that of `Tokenizer`, special tokens are spelled.
        self._backend = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._special = sorted(set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab()))

    @property
    def source(self) -> str:
        """The template itself."""
        return str(self._tokenizer.chat_template)

    def tokens(self, messages: Sequence[Message], *, answer: bool = False) -> list[int]:
        """Return the tokens of messages.

        Args:
            messages: The messages.
            answer: Whether the tokens that begin an answer of the assistant follow.
        """
        for message in messages:
            for token in self._special:
                if token in message.content:
                    raise PolyloomError(
                        f"chat: a message of the {message.role} contains {token!r}, a special token of the chat "
                        "template, which could end its turn. Remove it."
                    )
        try:
            text = self._tokenizer.apply_chat_template(
                [message._asdict() for message in messages], tokenize=False, add_generation_prompt=answer
            )
        except Exception as error:  # templates raise errors of their own, such as for roles that must alternate
            raise PolyloomError(f"chat: the chat template refuses this conversation: {error}") from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def answers(self, messages: Sequence[Message]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a conversation, and where each answer of the assistant begins and ends among them.

        Raises:
            PolyloomError: What comes before an answer is not the beginning of what comes with it, so that a model
                would be trained on something else than it is asked later.
        """
        # Templates are code, so the only way to know where an answer begins is to apply them to what precedes it.
        spans, whole = [], self.tokens(messages)
        for number, message in enumerate(messages):
            if message.role != "assistant":
                continue
            before = self.tokens(messages[:number], answer=True)
            after = self.tokens(messages[: number + 1])
            if whole[: len(before)] != before or whole[: len(after)] != after or len(after) <= len(before):
                raise PolyloomError(
                    "chat: with this chat template, what comes before an answer is not the beginning of the "
                    "conversation, so its answers cannot be told apart. Choose a template that only appends, or "
                    "conversations with a single answer."
                )
            spans.append((len(before), len(after)))
        return whole, spans
