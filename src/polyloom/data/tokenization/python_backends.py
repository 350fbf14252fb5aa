"""Wrap the tokenizers of M2M100 and Marian, which Transformers has in Python only, in the interface of fast tokenizers.

They cannot be converted to fast tokenizers: their vocabulary file and their SentencePiece model may have different
tokens, and Marian has one model for the source and another for the target.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

# Their SentencePiece models.
_MODELS = {"M2M100Tokenizer": ("sp_model",), "MarianTokenizer": ("spm_source", "spm_target")}


class Encoding(NamedTuple):
    """The attributes of an encoding that `Tokenizer` uses."""

    ids: list[int]
    word_ids: list[int | None]
    sequence_ids: list[int | None]
    type_ids: list[int]


class PythonBackend:
    """Tokenize texts with the wrapped tokenizer, and each word of a list separately."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @staticmethod
    def supports(tokenizer: Any) -> bool:
        """Return whether a tokenizer is of these kinds."""
        return type(tokenizer).__name__ in _MODELS

    def no_truncation(self) -> None:
        """Do nothing: these tokenizers do not truncate."""

    def no_padding(self) -> None:
        """Do nothing: these tokenizers do not pad."""

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or ``None`` if it is not in the vocabulary."""
        token_id: int = self._tokenizer.convert_tokens_to_ids(token)
        return None if token_id == self._tokenizer.unk_token_id else token_id

    def encode(
        self, *texts: str | Sequence[str], is_pretokenized: bool = False, add_special_tokens: bool = True
    ) -> Encoding:
        """Encode a text or a pair, each as a string or as a list of words."""
        ids: list[int] = []
        words: list[int | None] = []
        owners: list[int | None] = []
        for owner, text in enumerate(texts):
            for word, part in enumerate(text if is_pretokenized else [text]):
                part_ids = self._tokenizer(part, add_special_tokens=False)["input_ids"]
                ids += part_ids
                words += [word] * len(part_ids)
                owners += [owner] * len(part_ids)
        if add_special_tokens:
            before = getattr(self._tokenizer, "prefix_tokens", [])
            after = getattr(self._tokenizer, "suffix_tokens", [self._tokenizer.eos_token_id])
            ids = [*before, *ids, *after]
            words, owners = ([*[None] * len(before), *column, *[None] * len(after)] for column in (words, owners))
        return Encoding(ids, words, owners, [0] * len(ids))

    def encode_batch(self, texts: Sequence[str | Sequence[str]], **options: bool) -> list[Encoding]:
        """Encode texts one after another."""
        return [self.encode(text, **options) for text in texts]

    encode_batch_fast = encode_batch

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of translations, by the target's model where there is one."""
        side = "text_target" if len(_models(self._tokenizer)) == 2 else "text"
        return [self._tokenizer(**{side: text}, add_special_tokens=False)["input_ids"] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, by the target's model where there is one."""
        text: str = self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False, use_source_tokenizer=False)
        return text

    def to_str(self) -> str:
        """Return everything that determines the tokenization, as JSON."""
        models = [hashlib.sha256(model.serialized_model_proto()).hexdigest() for model in _models(self._tokenizer)]
        languages = getattr(self._tokenizer, "lang_token_to_id", {})
        return json.dumps({"models": models, "vocab": self._tokenizer.get_vocab(), "languages": languages})


def _models(tokenizer: Any) -> list[Any]:
    return [getattr(tokenizer, name) for name in _MODELS.get(type(tokenizer).__name__, ())]
