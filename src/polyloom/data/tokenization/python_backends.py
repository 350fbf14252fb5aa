"""The tokenizers of M2M100 and Marian, which Transformers has in Python only, behind the interface of the fast ones.

They are asked themselves rather than made into fast ones: their ids and their SentencePiece models are files that need
not hold the same pieces, which a fast one cannot express; and Marian's cuts source and target by a model each.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

# Their SentencePiece models.
_MODELS = {"M2M100Tokenizer": ("sp_model",), "MarianTokenizer": ("spm_source", "spm_target")}


class Encoding(NamedTuple):
    """What `Tokenizer` reads of an encoding."""

    ids: list[int]
    word_ids: list[int | None]
    sequence_ids: list[int | None]
    type_ids: list[int]


class PythonBackend:
    """Cuts texts as the tokenizer itself does, a word of a list as if it stood alone."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @staticmethod
    def supports(tokenizer: Any) -> bool:
        """Whether it is a tokenizer of these kinds."""
        return type(tokenizer).__name__ in _MODELS

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
            before = getattr(self._tokenizer, "prefix_tokens", [])
            after = getattr(self._tokenizer, "suffix_tokens", [self._tokenizer.eos_token_id])
            ids = [*before, *ids, *after]
            words, owners = ([*[None] * len(before), *own, *[None] * len(after)] for own in (words, owners))
        return Encoding(ids, words, owners, [0] * len(ids))

    def encode_batch(self, texts: Sequence[str | Sequence[str]], **options: bool) -> list[Encoding]:
        """Encode one after another."""
        return [self.encode(text, **options) for text in texts]

    encode_batch_fast = encode_batch

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """The pieces of translations, by the second model where there is one."""
        side = "text_target" if len(_models(self._tokenizer)) == 2 else "text"
        return [self._tokenizer(**{side: text}, add_special_tokens=False)["input_ids"] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of pieces; of a translation's, where that makes a difference."""
        text: str = self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False, use_source_tokenizer=False)
        return text

    def to_str(self) -> str:
        """All that decides how text is cut, as JSON."""
        models = [hashlib.sha256(model.serialized_model_proto()).hexdigest() for model in _models(self._tokenizer)]
        languages = getattr(self._tokenizer, "lang_token_to_id", {})
        return json.dumps({"models": models, "vocab": self._tokenizer.get_vocab(), "languages": languages})


def _models(tokenizer: Any) -> list[Any]:
    return [getattr(tokenizer, name) for name in _MODELS.get(type(tokenizer).__name__, ())]
