"""Tokenize text and words with a Hugging Face tokenizer, with the guarantees that training relies on."""

import hashlib
import json
import re
import unicodedata
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from polyloom.data.tokenization.chat import ChatTemplate
from polyloom.data.tokenization.python_backends import PythonBackend
from polyloom.data.tokenization.trial import try_tokenizer
from polyloom.errors import PolyloomError
from polyloom.io.model_folder import CONFIG, TOKENIZER, check_config, find_folder

WORD_MARKS = ("▁", "Ġ")  # how SentencePiece and byte-level vocabularies mark the beginning of a word
# How translation models write language tokens: M2M100, Marian, mBART, NLLB.
_LANGUAGE = re.compile(
    r"__(?P<m2m>[\w.-]+)__|>>(?P<marian>[\w.-]+)<<|(?P<mbart>[a-z]{2}_[A-Z]{2})|(?P<nllb>[a-z]{3}_[A-Z][a-z]{3})"
)


class Words(NamedTuple):
    """The tokens of a sentence that was tokenized word by word."""

    ids: list[int]
    """Tokens of all words, one after another, without special tokens."""
    counts: list[int]
    """Number of tokens of each word, never 0."""
    reads: list[int]
    """Position in each word of the token that represents it: the first one that is not a bare word mark."""


class Located(NamedTuple):
    """The tokens of a text and the characters that each stands for."""

    ids: list[int]
    """Tokens, without special tokens."""
    begins: list[int]
    """Position of each token's first character, white space left out; -1 of a token that stands for none."""
    ends: list[int]
    """Position behind each token's last character; -1 of a token that stands for none."""


class _Special(NamedTuple):
    """Special tokens at one position of an input, and their type ids."""

    ids: list[int]
    types: list[int]


class Tokenizer:
    """A tokenizer.

    Text never yields special tokens: ``</s>``, ``[MASK]`` or a language token in a corpus is tokenized as unknown, by a
    decoder's vocabulary of bytes as its letters.

    Attributes:
        pad_id: Id of the padding token; where there is none, of the token that ends a text.
        bos_id: Id of the token that begins a text; ``None`` if there is none.
        eos_id: Id of the token that ends a text; ``None`` if there is none.
        unk_id: Id of the unknown token.
        mask_id: Id of the mask token; ``None`` if there is none.
        text_begin: Id of the token that a decoder reads before a whole text; ``None`` if there is none.
        text_end: Id of the token that ends a whole text of a decoder, which may not be the one that ends an answer.
        special_ids: Ids of all special tokens, including the unknown token.
        vocab_size: Number of tokens, including added ones.
        uses_types: Whether the model takes token type ids, which distinguish the two texts of a pair.
        gap: What must precede a word to be tokenized as in running text: a space for RoBERTa's vocabulary.
    """

    def __init__(self, tokenizer: Any, name: str = "tokenizer") -> None:
        self._backend = PythonBackend(tokenizer) if PythonBackend.supports(tokenizer) else tokenizer.backend_tokenizer
        pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        unk_id = tokenizer.unk_token_id
        if tokenizer.mask_token_id is None and _spell_special(self._backend) and unk_id is None:
            unk_id = pad_id  # nothing is unknown
        for role, token_id in (("pad", pad_id), ("unk", unk_id)):
            if token_id is None:
                raise PolyloomError(f"{name}: the tokenizer has no {role}_token. Set it in its tokenizer_config.json.")
        # Tokenizers of sentence-transformers truncate and pad by default; here tasks decide about both.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.pad_id: int = pad_id
        self.unk_id: int = unk_id
        self.bos_id: int | None = tokenizer.bos_token_id
        self.eos_id: int | None = tokenizer.eos_token_id
        self.mask_id: int | None = tokenizer.mask_token_id
        # The tokens around a whole text are those of pretraining. A model that was fine-tuned on conversations may have
        # other `bos` and `eos` tokens: SmolLM2 those of a turn.
        added = tokenizer.get_added_vocab()
        self.text_begin: int | None = self.eos_id if self.bos_id is None else self.bos_id
        self.text_end: int | None = added.get("<|end_of_text|>", self.eos_id)  # of Llama 3
        if "<|endoftext|>" in added:  # GPT-2, Qwen, SmolLM: one token between two texts
            self.text_begin = self.text_end = added["<|endoftext|>"]
        self.special_ids: tuple[int, ...] = tuple(sorted(set(tokenizer.all_special_ids)))
        self._chat = ChatTemplate(tokenizer) if getattr(tokenizer, "chat_template", None) else None
        self.uses_types = "token_type_ids" in tokenizer.model_input_names
        self._languages = _find_languages(tokenizer)
        self.vocab_size = max(len(tokenizer), *(token + 1 for token in self._languages.values()), 0)
        # Text never yields the forbidden tokens, and decoded text never shows the silent ones.
        self._silent = frozenset([*self.special_ids, self.unk_id, *self._languages.values()])
        self._forbidden = self._silent - {self.unk_id}
        self._marks = {self._backend.token_to_id(mark) for mark in WORD_MARKS} - {None}
        self.gap = self._find_gap()
        self._single = self._find_template(("a",), name)
        self._pair = self._find_template(("a", "a"), name)

    def text(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts, without special tokens."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._without_special(encoding.ids) for encoding in encodings]

    def located(self, texts: Sequence[str]) -> list[Located]:
        """Tokenize texts as `text` does, and find the characters of each token."""
        if isinstance(self._backend, PythonBackend):
            raise PolyloomError(
                "tokenizer: it does not say which characters a token is. Choose a backbone with a tokenizer.json."
            )
        located = []
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            begins, ends = [], []
            limits = [*(begin for begin, _ in encoding.offsets[1:]), len(text)]  # where the next token begins
            for token, (start, stop), limit in zip(encoding.ids, encoding.offsets, limits, strict=False):
                # Accents that a normalizer joined to the letter before are in no token: they belong to that letter.
                end = stop
                while end < limit and unicodedata.category(text[end]).startswith("M"):
                    end += 1
                # Offsets may include the white space before a word, which is no part of an answer.
                content = text[start:end].strip()
                begin = end - len(text[start:end].lstrip())
                is_silent = token in self._marks or not content
                begins.append(-1 if is_silent else begin)
                ends.append(-1 if is_silent else begin + len(content))
            located.append(Located(self._without_special(encoding.ids), begins, ends))
        return located

    def targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize translations, for which Marian has a second model; other tokenizers treat them as any text."""
        if not isinstance(self._backend, PythonBackend):
            return self.text(texts)
        return [self._without_special(ids) for ids in self._backend.encode_targets(texts)]

    def words(self, sentences: Sequence[Sequence[str]]) -> list[Words]:
        """Tokenize the words of sentences. A word without tokens becomes one unknown token."""
        spaced = [[*words[:1], *(self.gap + word for word in words[1:])] for words in sentences]
        encodings = self._backend.encode_batch(spaced, is_pretokenized=True, add_special_tokens=False)
        aligned = []
        for encoding, words in zip(encodings, sentences, strict=True):
            by_word: list[list[int]] = [[] for _ in words]
            for token, word in zip(self._without_special(encoding.ids), encoding.word_ids, strict=True):
                assert word is not None, "only special tokens belong to no word"
                by_word[word].append(token)
            ids, counts, reads = [], [], []
            for subwords in by_word:
                tokens = subwords or [self.unk_id]
                ids += tokens
                counts.append(len(tokens))
                # SentencePiece may put a bare mark before a word, which says nothing about it.
                reads.append(next((place for place, token in enumerate(tokens) if token not in self._marks), 0))
            aligned.append(Words(ids, counts, reads))
        return aligned

    def language_id(self, language: str) -> int | None:
        """Return the id of a language token, written ``__de__``, ``>>de<<`` or ``de_DE`` for ``de``; ``None`` if none.

        A code with country or script (``deu_Latn``) is looked up as it is. A code without stands for the only token
        that begins with it.
        """
        if language in self._languages:
            return self._languages[language]
        # `uzb` must not stand for one of `uzb_Latn` and `uzb_Cyrl`: then there is none.
        candidates = [token for name, token in self._languages.items() if name.startswith(f"{language}_")]
        return candidates[0] if len(candidates) == 1 else None

    @property
    def chat(self) -> ChatTemplate:
        """The chat template; raise an error if there is none."""
        if self._chat is None:
            raise PolyloomError(
                "tokenizer: it has no chat template, which conversations need. Choose a model that was fine-tuned on "
                "conversations (often called Instruct), or train `lm`."
            )
        return self._chat

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that have a token."""
        return tuple(self._languages)

    @property
    def ends_in_language(self) -> bool:
        """Whether the language token is the last token of a text (mBART-25), not the first."""
        return self._single[1].ids[-1:] in [[token] for token in self._languages.values()]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; special, unknown and language tokens are left out."""
        text: str = self._backend.decode([token for token in ids if token not in self._silent])
        return text

    def around(self, language: int) -> tuple[list[int], list[int]]:
        """Return the special tokens before and after a text, with the token of the given language."""
        known = set(self._languages.values())
        before, after = ([language if i in known else i for i in special.ids] for special in self._single)
        return (before, after) if language in (*before, *after) else ([language, *before], after)

    def single(self, ids: Sequence[int]) -> list[int]:
        """Add the special tokens of a single text."""
        before, after = self._single
        return [*before.ids, *ids, *after.ids]

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Join two texts with the special tokens of a pair, and return the type ids as well."""
        before, between, after = self._pair
        first_type, second_type = self._pair_types
        ids = [*before.ids, *first, *between.ids, *second, *after.ids]
        types = [*before.types, *[first_type] * len(first), *between.types, *[second_type] * len(second), *after.types]
        return ids, types

    def num_before_second(self, first: int) -> int:
        """Return the number of tokens before the second text of a pair whose first text has so many tokens."""
        before, between, _ = self._pair
        return len(before.ids) + first + len(between.ids)

    @property
    def num_before(self) -> int:
        """Number of special tokens before a single text."""
        return len(self._single[0].ids)

    def num_special(self, *, pair: bool) -> int:
        """Return the number of special tokens that are added to a text, or to a pair."""
        return sum(len(special.ids) for special in (self._pair if pair else self._single))

    def unknown_rate(self, ids: Sequence[int]) -> float:
        """Return the share of unknown tokens."""
        return list(ids).count(self.unk_id) / max(1, len(ids))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that determines the tokenization."""
        content = json.dumps(json.loads(self._backend.to_str()), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def identity(self) -> str:
        """Hash of all that the tokenizer decides: tokenization, special tokens, languages, type ids, chat template."""
        special = (self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.mask_id, self.special_ids, self.uses_types)
        decided = [self.fingerprint, special, self._languages, *([self._chat.source] if self._chat else [])]
        return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()

    def _without_special(self, ids: list[int]) -> list[int]:
        if self._forbidden.isdisjoint(ids):
            return ids
        return [self.unk_id if token in self._forbidden else token for token in ids]

    def _find_gap(self) -> str:
        """Return what must precede a word to be tokenized as in running text: a space for RoBERTa's vocabulary."""

        def ids(text: str | list[str]) -> list[int]:
            is_pretokenized = isinstance(text, list)
            encoding = self._backend.encode(text, is_pretokenized=is_pretokenized, add_special_tokens=False)
            return list(encoding.ids)

        running, words, spaced_words = ids("a a"), ids(["a", "a"]), ids(["a", " a"])
        return " " if spaced_words == running != words else ""

    def _find_template(self, texts: tuple[str, ...], name: str) -> tuple[_Special, ...]:
        """Find the special tokens before, between and after texts by tokenizing an example.

        Templates are written in several ways, or in code; what they do to an example is the same for all texts.
        """
        encoding = self._backend.encode(*texts)
        owners: list[int | None] = encoding.sequence_ids  # the text of each token; None of special tokens
        if not set(range(len(texts))) <= set(owners):
            raise PolyloomError(f"{name}: the tokenizer makes nothing of the letter a. It cannot be used.")
        starts = [owners.index(text) for text in range(len(texts))]
        stops = [len(owners) - owners[::-1].index(text) for text in range(len(texts))]
        if len(texts) == 2:
            self._pair_types = tuple(encoding.type_ids[start] for start in starts)
        template = []
        for start, stop in zip([0, *stops], [*starts, len(owners)], strict=True):
            template.append(_Special(encoding.ids[start:stop], encoding.type_ids[start:stop]))
        return tuple(template)


def _spell_special(backend: Any) -> bool:
    """Tokenize special tokens in a text as letters if the vocabulary can spell any text; return whether it can."""
    if isinstance(backend, PythonBackend):
        return False
    model, before = (json.loads(backend.to_str())[key] or {} for key in ("model", "pre_tokenizer"))
    parts = [before, *before.get("pretokenizers", ())]
    if not (model.get("byte_fallback") or any(part.get("type") == "ByteLevel" for part in parts)):
        return False
    backend.encode_special_tokens = True
    return True


def _find_languages(tokenizer: Any) -> dict[str, int]:
    """Return ids by language. Only Marian has language tokens in the plain vocabulary, in a unique notation."""
    added = tokenizer.get_added_vocab() | getattr(tokenizer, "lang_token_to_id", {})
    plain = {token: i for token, i in tokenizer.get_vocab().items() if token.startswith(">>")}
    languages = {}
    for token, token_id in sorted((plain | added).items()):
        if match := _LANGUAGE.fullmatch(token):
            languages[match[match.lastindex or 0]] = token_id  # of the four notations, the group that matched
    return languages


def load_tokenizer(name: str | Path) -> Tokenizer:
    """Load the tokenizer of a model on the Hugging Face Hub or in a directory. Code shipped with it is never run."""
    tokenizer = load_hf_tokenizer(name)
    if getattr(tokenizer, "separate_vocabs", False):
        raise PolyloomError(
            f"backbone.name: {str(name)!r} has a vocabulary for each side: one id means two tokens, which is not "
            "supported. Choose one of the Marian models that share theirs (no target_vocab.json)."
        )
    if not (getattr(tokenizer, "is_fast", False) or PythonBackend.supports(tokenizer)):
        raise PolyloomError(
            f"backbone.name: {str(name)!r} has only a slow tokenizer ({type(tokenizer).__name__}), which does not say "
            "which tokens belong to which word. Choose a model with a tokenizer.json."
        )
    return Tokenizer(tokenizer, str(name))


def load_hf_tokenizer(name: str | Path) -> Any:
    """Load the tokenizer of Transformers itself, after a trial in a process with limits."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds to import

    try:
        folder = find_folder(name, TOKENIZER)
        if (folder / CONFIG).exists():
            check_config(folder)
        try_tokenizer(folder)
        with warnings.catch_warnings():
            # Marian's tokenizer recommends a package that it would not use.
            warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except PolyloomError:
        raise
    except Exception as error:  # the Hub, Transformers and tokenizers raise many types
        first_line = (str(error).splitlines() or [repr(error)])[0]
        raise PolyloomError(
            f"backbone.name: the tokenizer of {str(name)!r} cannot be read ({first_line}). "
            "Without network, give a directory with tokenizer.json and tokenizer_config.json."
        ) from error
