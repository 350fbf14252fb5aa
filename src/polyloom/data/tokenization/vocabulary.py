"""Train a subword vocabulary for many languages on a sample in which small languages are upsampled."""

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
from polyloom.io.atomic import atomic_dir

SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"}  # ids 0 to 3, as configs of m2m_100 expect
MASK = "<mask>"
MODEL_FILE = "sentencepiece.model"

_NAME = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")
_MARK = "▁"
_THREADS = 16  # fixed, because the result depends on it in the last digits
_LINE_BYTES = 1 << 20
_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """Settings of a vocabulary."""

    size: int
    """Number of tokens, including the four special tokens; language tokens are added to it."""
    temperature: float = 5.0
    """T: languages are sampled by their number of distinct lines to the power 1/T. Lower it towards 1 to sample large
    languages more."""
    coverage: float = 0.99995
    """Share of the sample's characters that must be in the vocabulary; rarer characters become unknown."""
    lines: int = 1_000_000
    """Number of lines to sample, or all distinct lines if there are fewer."""
    seed: int = 0
    """Seed of the sample."""
    mask: bool = False
    """Whether to add a mask token, and a token that begins every text; for encoders."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a language in the sample, and its tokenization."""

    available: int
    """Number of distinct lines of its text."""
    drawn: int
    """Number of lines in the sample; more than `available` if lines repeat."""
    words: int
    """Number of words in the sample, separated by spaces."""
    tokens: int
    """Number of tokens in the sample."""
    characters: int
    """Number of characters in the sample, with a word mark for each space as in SentencePiece."""
    unknown: int
    """Number of characters that are not in the vocabulary."""


@dataclass(frozen=True)
class Report:
    """The result of training a vocabulary."""

    config: VocabularyConfig
    shares: Mapping[str, Share]
    """The part of each language, in the order of the texts."""
    languages: tuple[str, ...]
    """Languages that have a token, in the order of their ids."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        rates = {
            name: {
                **asdict(share),
                "tokens_per_word": share.tokens / share.words,
                "unknown_rate": share.unknown / share.characters,
            }
            for name, share in self.shares.items()
        }
        return {**asdict(self.config), "language_tokens": list(self.languages), "languages": rates}


@dataclass(frozen=True)
class _DistinctLines:
    """The distinct lines of a language by their hashes: their number, and the lowest hashes, in order."""

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
    """Train a Unigram vocabulary and write it as a tokenizer that Transformers loads.

    Text is tokenized as by SentencePiece, except for ties, such as 000 as 00 and 0 or as 0 and 00, which depend on
    rounding. A repeated line counts once. The sample has the lines with the lowest keyed hashes, so it depends on the
    content of the lines and not on their order.

    Args:
        texts: Lines by language; each is read twice, so no iterators.
        into: The folder to create.
        config: The settings.
        languages: Languages that get a token, in this order; other languages of the texts follow.
        progress: Called with a description of each step.
    """
    try:
        import sentencepiece  # noqa: PLC0415 - only needed to train vocabularies
    except ImportError:
        raise PolyloomError("sentencepiece is not installed. Run: pip install 'polyloom[train]'") from None
    _check(texts, into, config)
    tokens = tuple(dict.fromkeys([*languages, *texts]))
    for language in tokens:
        if not _NAME.fullmatch(language):  # no condition could name it
            raise PolyloomError(f"language {language!r}: is not a name such as de or deu_Latn.")

    # Two passes over the text, with hashes alone in memory between them: the first counts the distinct lines, on which
    # the shares of languages depend, and the second draws the sample.
    counted = {}
    for language, text in texts.items():
        progress(f"counting {language}")
        counted[language] = _count(text, config)
        if not counted[language].count:
            raise PolyloomError(f"text of {language!r}: there is nothing in it. Leave the language out.")
    draws = share_lines({language: lines.count for language, lines in counted.items()}, config)
    sample: dict[str, list[tuple[str, int]]] = {}
    for language, text in texts.items():
        progress(f"sampling {language}")
        sample[language] = list(_draw(text, counted[language], draws[language], config))

    # SentencePiece learns the vocabulary; what is measured and used is the tokenizer of Transformers.
    progress(f"training a vocabulary of {config.size} tokens on {sum(draws.values())} lines")
    model = _learn(sentencepiece, sample, config)
    tokenizer = _tokenizer(sentencepiece.SentencePieceProcessor(model_proto=model), tokens, mask=config.mask)
    shares = {}
    for language, lines in sample.items():
        progress(f"measuring {language}")
        shares[language] = _measure(tokenizer, lines, counted[language].count)
    _write(into, tokenizer, model, tokens, mask=config.mask)
    return Report(config, shares, tokens)


def language_token(language: str) -> str:
    """Return the token of a language, as M2M100 writes it."""
    return f"__{language}__"


def share_lines(sizes: Mapping[str, int], config: VocabularyConfig) -> dict[str, int]:
    """Return each language's number of lines in the sample: by size to the power 1/T, at least one."""
    # p ~ size^(1/T) (Arivazhagan et al. 2019, Massively Multilingual Neural Machine Translation in the Wild).
    total = max(min(config.lines, sum(sizes.values())), len(sizes))
    exact = shares_at(np.array(list(sizes.values()), dtype=np.float64), config.temperature) * total
    counts = np.maximum(1, np.floor(exact).astype(np.int64))
    # Lines left over by rounding go to the largest remainders; lines added for the minimum are taken from the largest.
    for place in np.argsort(counts - exact, kind="stable")[: max(0, total - counts.sum())]:
        counts[place] += 1
    while counts.sum() > total:
        counts[counts.argmax()] -= 1
    return dict(zip(sizes, counts.tolist(), strict=True))


def _check(texts: Mapping[str, Iterable[str]], into: Path, config: VocabularyConfig) -> None:
    """Check the arguments before minutes of work."""
    if not texts:
        raise PolyloomError("vocabulary: there is no text to learn from.")
    for language, text in texts.items():
        if isinstance(text, Iterator):
            raise PolyloomError(f"text of {language!r}: is an iterator, but is read twice. Give a list, or a file.")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise PolyloomError(f"{into}: is there already. Remove it, or choose another folder.")
    if config.size <= len(SPECIAL):
        raise PolyloomError(f"size: {config.size} tokens leave nothing for text. Try 8000.")
    if not (0 < config.coverage <= 1 and config.temperature > 0 and config.lines > 0):
        raise PolyloomError("vocabulary: temperature and lines are above 0, and coverage is above 0 and at most 1.")


def _normalizer() -> Any:
    """Build the normalizer: NFKC with single spaces. SentencePiece's word mark becomes a space."""
    from tokenizers import Regex, normalizers  # noqa: PLC0415 - half a second

    spaces = normalizers.Replace(Regex(rf"[\s{_MARK}]+"), " ")
    return normalizers.Sequence([normalizers.NFKC(), spaces, normalizers.Strip()])


def _hashed(text: Iterable[str], config: VocabularyConfig) -> Iterator[tuple[int, str]]:
    """Yield normalized lines with their hashes under the seed; empty lines are left out."""
    normalizer, key = _normalizer(), str(config.seed).encode()
    for line in text:
        if clean := normalizer.normalize_str(line):
            yield int.from_bytes(blake2b(clean.encode(), digest_size=8, key=key).digest(), "little"), clean


def _count(text: Iterable[str], config: VocabularyConfig) -> _DistinctLines:
    """Count distinct lines in a first pass with 8 bytes per line, and keep the hashes that the sample may need."""
    hashes = np.unique(np.fromiter((code for code, _ in _hashed(text, config)), dtype=np.uint64))
    # A copy, so that the other hashes, which may be a hundred million, are not kept.
    return _DistinctLines(len(hashes), hashes[: config.lines].copy())


def _draw(
    text: Iterable[str], counted: _DistinctLines, draws: int, config: VocabularyConfig
) -> Iterator[tuple[str, int]]:
    """Draw the lines of the sample in a second pass, each with its count, which differs by at most one."""
    # Every line is drawn `times` times, and those with the lowest hashes once more.
    times, extra = divmod(draws, counted.count)
    last = int(counted.lowest[extra - 1]) if extra else -1
    seen = set()
    for code, line in _hashed(text, config):
        count = times + (code <= last)
        if count and code not in seen:
            seen.add(code)
            yield line, count


def _learn(spm: Any, sample: Mapping[str, Sequence[tuple[str, int]]], config: VocabularyConfig) -> bytes:
    """Train SentencePiece on text that is already normalized."""
    model = io.BytesIO()
    ids = {f"{role}_id": place for place, role in enumerate(SPECIAL)}
    names = {f"{role}_piece": token for role, token in SPECIAL.items()}
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=(line for lines in sample.values() for line, count in lines for _ in range(count)),
            model_writer=model,
            model_type="unigram",
            vocab_size=config.size,
            character_coverage=config.coverage,
            normalization_rule_name="identity",  # the lines are normalized, as the finished tokenizer does it
            max_sentence_length=_LINE_BYTES,
            num_threads=_THREADS,
            minloglevel=2,
            **ids,
            **names,
        )
    except RuntimeError as error:
        # SentencePiece reports both wrong sizes only in the text of its error.
        what = f"vocabulary: SentencePiece failed ({error})."
        if match := re.search(r"too high.*<= (\d+)", str(error)):
            what = f"size: there is text for {match[1]} tokens, not for {config.size}. Set size to {match[1]} or less."
        elif match := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
            what = (
                f"size: {config.size} tokens cannot hold the {match[1]} characters of this text. Set a larger size, "
                "or a lower coverage."
            )
        raise PolyloomError(what) from error
    return model.getvalue()


def _tokenizer(processor: Any, languages: Sequence[str], *, mask: bool) -> Any:
    """Convert the vocabulary to the format of Transformers, with language tokens at its end."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors  # noqa: PLC0415

    # The same ids and log probabilities as in SentencePiece, so that both choose the same pieces.
    scored = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=processor.unk_id(), byte_fallback=False))
    tokenizer.normalizer = _normalizer()
    # As SentencePiece does: a word mark for each space, and one before the text.
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
    counts = np.zeros(5, dtype=np.int64)  # the fields of `Share` from `drawn` on, in their order
    for start in range(0, len(lines), _ROWS):
        batch = lines[start : start + _ROWS]
        encodings = tokenizer.encode_batch([line for line, _ in batch], add_special_tokens=False)
        for (line, times), encoding in zip(batch, encodings, strict=True):
            # A row of unknown characters is one unknown token: count its characters by the offsets.
            located = zip(encoding.ids, encoding.offsets, strict=True)
            unknown = sum(end - begin for token, (begin, end) in located if token == unknown_id)
            # One character more than the line has: the mark before its first word.
            counts += times * np.array([1, len(line.split()), len(encoding.ids), len(line) + 1, unknown])
    return Share(available, *counts.tolist())


def _write(into: Path, tokenizer: Any, model: bytes, languages: Sequence[str], *, mask: bool) -> None:
    """Write the folder atomically."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": token for role, token in (SPECIAL | ({"mask": MASK} if mask else {})).items()},
        "extra_special_tokens": [language_token(language) for language in languages],
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    with atomic_dir(into) as partial:
        tokenizer.save(str(partial / "tokenizer.json"))
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (partial / "tokenizer_config.json").write_text(text, encoding="utf-8")
        (partial / MODEL_FILE).write_bytes(model)
