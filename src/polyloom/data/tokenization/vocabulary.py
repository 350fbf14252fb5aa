"""Vocabularies: pieces that many languages share, learnt from a sample that does not drown the small ones."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyloom.data.mixture import temperature as shares_at
from polyloom.errors import PolyloomError
from polyloom.io.atomic import new_folder

SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"}  # ids 0 to 3, as configs of m2m_100 expect
MASK = "<mask>"
MODEL_FILE = "sentencepiece.model"

_NAME = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")
_MARK = "▁"
_THREADS = 16  # what is learnt depends on it in its last digits, so it is not the machine's choice
_LINE_BYTES = 1 << 20
_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """How a vocabulary is made.

    Attributes:
        size: Pieces, with the four special ones; language tokens come on top.
        temperature: T; languages are sampled by their number of different lines to the power 1/T.
        coverage: Share of the sample's characters that must be in the vocabulary; the rarest beyond are unknown.
        lines: Lines to sample, or all different ones if there are fewer.
        seed: Which lines are sampled.
        mask: For encoders: a token behind which pieces are hidden, and one that begins every text.
    """

    size: int
    temperature: float = 5.0
    coverage: float = 0.99995
    lines: int = 1_000_000
    seed: int = 0
    mask: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """What a language has in the sample, and what the vocabulary makes of it.

    Attributes:
        available: Different lines of its text.
        drawn: Lines in the sample; more than there are where they repeat.
        words: Of the sample, as spaces tell.
        tokens: Of the sample.
        characters: Of the sample, with a word mark before each word, which SentencePiece writes for a space.
        unknown: Those of them that are not in the vocabulary.
    """

    available: int
    drawn: int
    words: int
    tokens: int
    characters: int
    unknown: int


@dataclass(frozen=True)
class Report:
    """What was made of which text.

    Attributes:
        config: How it was made.
        shares: By language, in the order of the texts.
        languages: Those that have a token, in the order of their ids.
    """

    config: VocabularyConfig
    shares: Mapping[str, Share]
    languages: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        rates = {
            name: {
                **asdict(share),
                "pieces_per_word": share.tokens / share.words,
                "unknown_rate": share.unknown / share.characters,
            }
            for name, share in self.shares.items()
        }
        return {**asdict(self.config), "language_tokens": list(self.languages), "languages": rates}


@dataclass(frozen=True)
class _Found:
    """The different lines of a language by their hashes: how many there are, and the lowest, in order."""

    count: int
    lowest: NDArray[np.uint64]


def train_vocabulary(
    texts: Mapping[str, Iterable[str]],
    into: Path,
    *,
    config: VocabularyConfig,
    languages: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Learn a Unigram vocabulary and write it as a tokenizer that Transformers opens.

    Text is cut as SentencePiece itself would cut it, but for ties: whether 000 is 00 and 0 or 0 and 00, it leaves to
    rounding. A line that stands in a text several times counts once. Which lines are sampled depends on what they say,
    not on where they stand: those whose keyed hash is lowest.

    Args:
        texts: Lines by language; each is read twice, so no iterators.
        into: The folder to make.
        config: How.
        languages: Those to have a token, in this order; other languages of the texts follow.
        progress: Told what is being done.
    """
    spm = _sentencepiece()
    _check(texts, into, config)
    tokens = tuple(dict.fromkeys([*languages, *texts]))
    for language in tokens:
        if not _NAME.fullmatch(language):  # no condition could ask for it
            raise PolyloomError(f"language {language!r}: is not a name such as de or deu_Latn.")
    found = {}
    for language, text in texts.items():
        progress(f"counting {language}")
        found[language] = _count(text, config)
        if not found[language].count:
            raise PolyloomError(f"text of {language!r}: there is nothing in it. Leave the language out.")
    draws = share_lines({language: one.count for language, one in found.items()}, config)
    sample: dict[str, list[tuple[str, int]]] = {}
    for language, text in texts.items():
        progress(f"sampling {language}")
        sample[language] = list(_draw(text, found[language], draws[language], config))
    progress(f"learning {config.size} pieces from {sum(draws.values())} lines")
    model = _learn(spm, sample, config)
    tokenizer = _tokenizer(spm.SentencePieceProcessor(model_proto=model), tokens, mask=config.mask)
    shares = {}
    for language, lines in sample.items():
        progress(f"measuring {language}")
        shares[language] = _measure(tokenizer, lines, found[language].count)
    _write(into, tokenizer, model, tokens, mask=config.mask)
    return Report(config, shares, tokens)


def language_token(language: str) -> str:
    """How the token of a language is written here, as M2M100 does."""
    return f"__{language}__"


def share_lines(sizes: Mapping[str, int], config: VocabularyConfig) -> dict[str, int]:
    """How many lines each language has in the sample: by size to the power 1/T, at least one, and all lines in sum."""
    total = max(min(config.lines, sum(sizes.values())), len(sizes))
    exact = shares_at(np.array(list(sizes.values()), dtype=np.float64), config.temperature) * total
    counts = np.maximum(1, np.floor(exact).astype(np.int64))
    # What rounding down has left over goes where most was cut off; what the least of one took comes off the largest.
    for place in np.argsort(counts - exact, kind="stable")[: max(0, total - counts.sum())]:
        counts[place] += 1
    while counts.sum() > total:
        counts[counts.argmax()] -= 1
    return dict(zip(sizes, counts.tolist(), strict=True))


def _sentencepiece() -> Any:
    try:
        import sentencepiece  # noqa: PLC0415 - only what makes vocabularies needs it
    except ImportError:
        raise PolyloomError("sentencepiece is not installed. Run: pip install 'polyloom[train]'") from None
    return sentencepiece


def _check(texts: Mapping[str, Iterable[str]], into: Path, config: VocabularyConfig) -> None:
    """Refuse at once what would fail after minutes."""
    if not texts:
        raise PolyloomError("vocabulary: there is no text to learn from.")
    for language, text in texts.items():
        if isinstance(text, Iterator):
            raise PolyloomError(f"text of {language!r}: is an iterator, but is read twice. Give a list, or a file.")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise PolyloomError(f"{into}: is there already. Remove it, or choose another folder.")
    if config.size <= len(SPECIAL):
        raise PolyloomError(f"size: {config.size} pieces leave nothing for text. Try 8000.")
    if not (0 < config.coverage <= 1 and config.temperature > 0 and config.lines > 0):
        raise PolyloomError("vocabulary: temperature and lines are above 0, and coverage is above 0 and at most 1.")


def _normalizer() -> Any:
    """NFKC with single spaces. The mark of SentencePiece becomes a space, as it would be read anyway."""
    from tokenizers import Regex, normalizers  # noqa: PLC0415 - half a second

    spaces = normalizers.Replace(Regex(rf"[\s{_MARK}]+"), " ")
    return normalizers.Sequence([normalizers.NFKC(), spaces, normalizers.Strip()])


def _hashed(text: Iterable[str], config: VocabularyConfig) -> Iterator[tuple[int, str]]:
    """Lines as the vocabulary sees them, with their hashes under the seed; empty ones are left out."""
    normalizer, key = _normalizer(), str(config.seed).encode()
    for line in text:
        if clean := normalizer.normalize_str(line):
            yield int.from_bytes(blake2b(clean.encode(), digest_size=8, key=key).digest(), "little"), clean


def _count(text: Iterable[str], config: VocabularyConfig) -> _Found:
    """First pass: 8 bytes per line, and afterwards no more of them than the sample could need."""
    hashes = np.unique(np.fromiter((code for code, _ in _hashed(text, config)), dtype=np.uint64))
    return _Found(len(hashes), hashes[: config.lines].copy())


def _draw(text: Iterable[str], found: _Found, draws: int, config: VocabularyConfig) -> Iterator[tuple[str, int]]:
    """Second pass: the lines drawn and how often, each as often as any other or once more."""
    times, extra = divmod(draws, found.count)
    last = int(found.lowest[extra - 1]) if extra else -1
    seen = set()
    for code, line in _hashed(text, config):
        count = times + (code <= last)
        if count and code not in seen:
            seen.add(code)
            yield line, count


def _learn(spm: Any, sample: Mapping[str, Sequence[tuple[str, int]]], config: VocabularyConfig) -> bytes:
    """Train SentencePiece, which only sees text that is normalised already."""
    model = io.BytesIO()
    ids = {f"{role}_id": place for place, role in enumerate(SPECIAL)}
    names = {f"{role}_piece": piece for role, piece in SPECIAL.items()}
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=(line for lines in sample.values() for line, count in lines for _ in range(count)),
            model_writer=model,
            model_type="unigram",
            vocab_size=config.size,
            character_coverage=config.coverage,
            normalization_rule_name="identity",
            max_sentence_length=_LINE_BYTES,
            num_threads=_THREADS,
            minloglevel=2,
            **ids,
            **names,
        )
    except RuntimeError as error:
        raise PolyloomError(_explained(str(error), config)) from error
    return model.getvalue()


def _explained(error: str, config: VocabularyConfig) -> str:
    if found := re.search(r"too high.*<= (\d+)", error):
        return f"size: there is text for {found[1]} pieces, not for {config.size}. Set size to {found[1]} or less."
    if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", error):
        return (
            f"size: {config.size} pieces cannot hold the {found[1]} characters of this text. Set a larger size, "
            "or a lower coverage."
        )
    return f"vocabulary: SentencePiece failed ({error})."


def _tokenizer(processor: Any, languages: Sequence[str], *, mask: bool) -> Any:
    """The same vocabulary in the form that Transformers reads, with the tokens of the languages at its end."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors  # noqa: PLC0415

    scored = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=processor.unk_id(), byte_fallback=False))
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_MARK, prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace(replacement=_MARK, prepend_scheme="always", split=True)
    begin, end = SPECIAL["bos"] if mask else "", SPECIAL["eos"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}".strip(),
        pair=f"{begin} $A {end} $B {end}".strip(),
        special_tokens=[(SPECIAL["bos"], processor.bos_id()), (end, processor.eos_id())],
    )
    tokens = [*SPECIAL.values(), *map(language_token, languages), *([MASK] if mask else [])]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
    # No token mixes letters and underscores, whatever the text: SentencePiece keeps scripts apart.
    assert tokenizer.get_vocab_size() == len(scored) + len(languages) + mask
    return tokenizer


def _measure(tokenizer: Any, lines: Sequence[tuple[str, int]], available: int) -> Share:
    unknown_id = tokenizer.token_to_id(SPECIAL["unk"])
    counts = np.zeros(5, dtype=np.int64)
    for start in range(0, len(lines), _ROWS):
        some = lines[start : start + _ROWS]
        encodings = tokenizer.encode_batch([line for line, _ in some], add_special_tokens=False)
        for (line, times), encoding in zip(some, encodings, strict=True):
            places = zip(encoding.ids, encoding.offsets, strict=True)
            unknown = sum(end - begin for token, (begin, end) in places if token == unknown_id)
            counts += times * np.array([1, len(line.split()), len(encoding.ids), len(line) + 1, unknown])
    return Share(available, *counts.tolist())


def _write(into: Path, tokenizer: Any, model: bytes, languages: Sequence[str], *, mask: bool) -> None:
    """Write the folder atomically."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": piece for role, piece in (SPECIAL | ({"mask": MASK} if mask else {})).items()},
        "extra_special_tokens": [language_token(language) for language in languages],
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    with new_folder(into) as partial:
        tokenizer.save(str(partial / "tokenizer.json"))
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (partial / "tokenizer_config.json").write_text(text, encoding="utf-8")
        (partial / MODEL_FILE).write_bytes(model)
