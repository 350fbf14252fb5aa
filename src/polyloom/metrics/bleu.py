"""BLEU and chrF as sums of parts: sacrebleu counts n-grams sentence by sentence, the formulas of the sums are here.

Papineni et al. (2002), Popović (2015, 2017), with the defaults of sacrebleu (Post 2018), whose corpus scores these are:
BLEU of up to four words, smoothed exponentially; chrF2 of up to six characters; chrF++ with up to two words beside.

Words of BLEU are those of the tokenizer ``13a``; of ``zh`` for Chinese, which sets characters apart. Other languages
that are written without spaces between words, and Korean, are scored by characters (``char``): for Japanese and Korean
papers mostly have ``ja-mecab`` and ``ko-mecab``, which need further packages and dictionaries. BLEU by characters is
higher than BLEU by words, so a signature says ``tok``.

Only counting needs sacrebleu. Stored parts are read, resampled and compared without it.
"""

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyloom.errors import PolyloomError

Array = NDArray[Any]

_WORDS = 4  # the longest n-gram of BLEU
_CHARACTERS = 6  # of chrF
_RECALL = 4  # how much more it weighs than precision in chrF2: 2²
_TOKENIZERS = {
    "zh": ("zh", "zho", "chi", "cmn", "yue", "wuu", "gan", "hak", "hsn", "nan", "cdo", "lzh"),
    "char": ("ja", "jpn", "ko", "kor", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib"),
}


def _names(words: int) -> tuple[str, ...]:
    orders = [f"words_{n}" for n in range(words, 0, -1)] + [f"characters_{n}" for n in range(_CHARACTERS, 0, -1)]
    return tuple(f"{kind}_{order}" for kind in ("right", "predicted", "reference") for order in orders)


# What a metric is measured over comes last: words of the reference for BLEU, its characters for chrF.
BLEU_STATISTICS = (*(f"{kind}_{n}" for kind in ("right", "predicted") for n in range(1, _WORDS + 1)), "reference")
CHRF_STATISTICS, CHRF_WORDS_STATISTICS = _names(0), _names(2)


def bleu_statistics(references: Sequence[str], hypotheses: Sequence[str], *, language: str) -> Array:
    """Parts of `BLEU`, ``[N, 9]``: right and predicted n-grams of 1 to 4 words, words of the reference.

    Args:
        references: One per sentence, as people write: not tokenized.
        hypotheses: What was predicted, as long as the references.
        language: Of both; it chooses the tokenizer.
    """
    counts = _counts(_sacrebleu().BLEU(tokenize=tokenizer(language)), references, hypotheses)
    _, reference, *ngrams = counts.reshape(-1, 2 + 2 * _WORDS).T  # the first is predicted_1, too
    return np.stack([*ngrams, reference], axis=1)


def chrf_statistics(references: Sequence[str], hypotheses: Sequence[str], *, words: int = 0) -> Array:
    """Parts of `CHRF`, ``[N, 18]``, or with two words those of `CHRF_WORDS`, ``[N, 24]``.

    They are right, predicted and reference n-grams, the longest first, so that the last part is single characters.
    """
    counts = _counts(_sacrebleu().CHRF(word_order=words), references, hypotheses)
    orders = counts.reshape(-1, _CHARACTERS + words, 3)  # of predicted, reference, right
    return orders[:, ::-1, [2, 0, 1]].swapaxes(1, 2).reshape(-1, 3 * (_CHARACTERS + words))


def bleu(sums: Array) -> Array:
    """BLEU of sums ``[..., 9]``; the first order without a match counts as half a match, the next as a quarter."""
    right, predicted, reference = sums[..., :_WORDS], sums[..., _WORDS:-1], sums[..., -1]
    scored = np.any(right, axis=-1) & np.all(predicted, axis=-1)
    predicted = np.where(scored[..., np.newaxis], predicted, 1)
    none = right == 0
    matches = np.where(none, 0.5 ** np.cumsum(none, axis=-1), right)
    brevity = np.minimum(0.0, 1 - reference / predicted[..., 0])
    logarithms = np.log(matches / predicted).mean(axis=-1)
    return np.where(scored, 100 * np.exp(brevity + logarithms), 0.0)


def chrf(sums: Array) -> Array:
    """chrF2 of sums ``[..., 3·orders]``: F2 of mean precision and mean recall over the orders that both sides have."""
    right, predicted, reference = np.split(sums, 3, axis=-1)
    used = (predicted > 0) & (reference > 0)
    orders = np.maximum(used.sum(axis=-1), 1)
    precision, recall = (_ratio(right, whole, used).sum(axis=-1) / orders for whole in (predicted, reference))
    whole = _RECALL * precision + recall
    return 100 * _ratio((1 + _RECALL) * precision * recall, whole, whole > 0)


def _ratio(part: Array, whole: Array, where: Array) -> Array:
    ratio: Array = np.divide(part, whole, out=np.zeros(np.shape(whole)), where=where)
    return ratio


def bleu_signature(language: str) -> str:
    """What sacrebleu says of BLEU: ``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0``."""
    return _signature(_sacrebleu().BLEU(tokenize=tokenizer(language)))


def chrf_signature(_language: str, *, words: int = 0) -> str:
    """What sacrebleu says of chrF: ``nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0``."""
    return _signature(_sacrebleu().CHRF(word_order=words))


def primary(language: str) -> str:
    """The language of a code that may also name a script or a country: ``zh`` of ``zh-TW``, ``eng`` of ``eng_Latn``."""
    return re.split(r"[._-]", language)[0].lower()


def tokenizer(language: str) -> str:
    """The tokenizer that BLEU in a language is measured with: ``13a``, ``zh`` or ``char``."""
    return next((name for name, languages in _TOKENIZERS.items() if primary(language) in languages), "13a")


def _sacrebleu() -> ModuleType:
    try:
        import sacrebleu  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PolyloomError(
            "BLEU and chrF: the package sacrebleu is not installed. pip install 'polyloom[train]'"
        ) from error
    return sacrebleu


def _counts(scorer: Any, references: Sequence[str], hypotheses: Sequence[str]) -> Array:
    """The statistics of each sentence. No public function gives them; a test compares with one that uses them."""
    if len(references) != len(hypotheses):  # sacrebleu would cut the longer one short
        raise PolyloomError(f"translations: {len(references)} references and {len(hypotheses)} hypotheses.")
    return np.array(scorer._extract_corpus_statistics(hypotheses, [references]), np.int64)  # noqa: SLF001


def _signature(scorer: Any) -> str:
    scorer.corpus_score(["a"], [["a"]])  # sacrebleu signs what has scored something
    return str(scorer.get_signature())
