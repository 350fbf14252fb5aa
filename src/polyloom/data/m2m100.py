"""M2M100's tokenizer, which Transformers has in Python only, behind the interface of the fast ones.

It is asked itself rather than made into a fast one: its ids and its SentencePiece model are two files that need not
hold the same pieces, which a fast one cannot express.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple


class Encoding(NamedTuple):
    """What `Pieces` reads of an encoding."""

    ids: list[int]
    word_ids: list[int | None]
    sequence_ids: list[int | None]
    type_ids: list[int]


class M2M100Backend:
    """Cuts texts as the tokenizer itself does, a word of a list as if it stood alone."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @staticmethod
    def serves(tokenizer: Any) -> bool:
        """Whether it is a tokenizer of this kind."""
        return hasattr(tokenizer, "lang_token_to_id") and hasattr(tokenizer, "sp_model")

    def no_truncation(self) -> None:
        """Nothing is cut here anyway."""

    def no_padding(self) -> None:
        """Nothing is padded here anyway."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a piece that there is."""
        found: int = self._tokenizer.convert_tokens_to_ids(token)
        return None if found == self._tokenizer.unk_token_id else found

    def encode(
        self, *texts: str | Sequence[str], is_pretokenized: bool = False, add_special_tokens: bool = True
    ) -> Encoding:
        """Encode a text or a pair, each as a string or as a list of words."""
        ids: list[int] = []
        words: list[int | None] = []
        owners: list[int | None] = []
        for owner, text in enumerate(texts):
            for word, part in enumerate(text if is_pretokenized else [text]):
                found = self._tokenizer(part, add_special_tokens=False)["input_ids"]
                ids += found
                words += [word] * len(found)
                owners += [owner] * len(found)
        if add_special_tokens:
            before, after = self._tokenizer.prefix_tokens, self._tokenizer.suffix_tokens
            ids = [*before, *ids, *after]
            words, owners = ([*[None] * len(before), *own, *[None] * len(after)] for own in (words, owners))
        return Encoding(ids, words, owners, [0] * len(ids))

    def encode_batch(self, texts: Sequence[str | Sequence[str]], **options: bool) -> list[Encoding]:
        """Encode one after another."""
        return [self.encode(text, **options) for text in texts]

    encode_batch_fast = encode_batch

    def decode(self, ids: Sequence[int]) -> str:
        """The text of pieces."""
        text: str = self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return text

    def to_str(self) -> str:
        """All that decides how text is cut, as JSON."""
        model = hashlib.sha256(self._tokenizer.sp_model.serialized_model_proto()).hexdigest()
        return json.dumps({"model": model, "vocab": self._tokenizer.get_vocab(), **self._tokenizer.lang_token_to_id})
