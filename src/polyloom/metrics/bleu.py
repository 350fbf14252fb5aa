"""Compute BLEU and chrF from sums of statistics: sacrebleu counts n-grams per sentence, the formulas are here.

Papineni et al. (2002), Popović (2015, 2017), with the defaults of sacrebleu (Post 2018), whose corpus scores these
equal: BLEU of up to four words, smoothed exponentially; chrF2 of up to six characters; chrF++ with up to two words.

BLEU uses the tokenizer ``13a``; for Chinese ``zh``, which separates characters. Other languages that are written
without spaces between words, and Korean, are scored by characters (``char``). For Japanese and Korean most papers use
``ja-mecab`` and ``ko-mecab``, which need further packages and dictionaries. BLEU by characters is higher than BLEU by
words, so the signature has the tokenizer (``tok``).

Only counting needs sacrebleu. Stored statistics are read, resampled and compared without it.
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
_CHARACTERS = 6  # the longest n-gram of chrF
_RECALL = 4  # weight of recall relative to precision in chrF2: 2²
_TOKENIZERS = {
    "zh": ("zh", "zho", "chi", "cmn", "yue", "wuu", "gan", "hak", "hsn", "nan", "cdo", "lzh"),
    "char": ("ja", "jpn", "ko", "kor", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib"),
}


def _names(words: int) -> tuple[str, ...]:
    orders = [f"words_{n}" for n in range(words, 0, -1)] + [f"characters_{n}" for n in range(_CHARACTERS, 0, -1)]
    return tuple(f"{kind}_{order}" for kind in ("right", "predicted", "reference") for order in orders)


# The unit comes last: words of the reference for BLEU, its characters for chrF.
BLEU_STATISTICS = (*(f"{kind}_{n}" for kind in ("right", "predicted") for n in range(1, _WORDS + 1)), "reference")
CHRF_STATISTICS, CHRF_WORDS_STATISTICS = _names(0), _names(2)


def bleu_statistics(references: Sequence[str], hypotheses: Sequence[str], *, language: str) -> Array:
    """Count right and predicted n-grams of 1 to 4 words, and words of the reference: ``[N, 9]``, for `BLEU`.

    Args:
        references: One reference per sentence, not tokenized.
        hypotheses: One hypothesis per sentence, not tokenized.
        language: Language of both, which decides the tokenizer.
    """
    counts = _counts(_sacrebleu().BLEU(tokenize=tokenizer(language)), references, hypotheses)
    _, reference, *ngrams = counts.reshape(-1, 2 + 2 * _WORDS).T  # the first column equals predicted_1
    return np.stack([*ngrams, reference], axis=1)


def chrf_statistics(references: Sequence[str], hypotheses: Sequence[str], *, words: int = 0) -> Array:
    """Count right, predicted and reference n-grams: ``[N, 18]``, or ``[N, 24]`` with up to two words, for `CHRF_WORDS`.

    The longest n-grams come first, so that the last statistic counts single characters.
    """
    counts = _counts(_sacrebleu().CHRF(word_order=words), references, hypotheses)
    # sacrebleu has three counts for each order, characters first. Here the orders of each count lie together, from the
    # longest n-gram to the shortest, so that the last statistic is the unit.
    orders = counts.reshape(-1, _CHARACTERS + words, 3)  # predicted, reference, right
    return orders[:, ::-1, [2, 0, 1]].swapaxes(1, 2).reshape(-1, 3 * (_CHARACTERS + words))


def bleu(sums: Array) -> Array:
    """Compute BLEU of sums ``[..., 9]``; the first order without a match counts as 1/2 match, the next as 1/4."""
    right, predicted, reference = sums[..., :_WORDS], sums[..., _WORDS:-1], sums[..., -1]
    # sacrebleu's score is 0 without any match, and also where the texts are too short to have n-grams of every order.
    scored = np.any(right, axis=-1) & np.all(predicted, axis=-1)
    predicted = np.where(scored[..., np.newaxis], predicted, 1)
    # Exponential smoothing (`smooth:exp`): the k-th order without a match counts as 2⁻ᵏ matches, so that the geometric
    # mean does not become 0.
    none = right == 0
    matches = np.where(none, 0.5 ** np.cumsum(none, axis=-1), right)
    # The logarithm of the brevity penalty exp(1 − r/c), which is 1 for texts that are long enough.
    brevity = np.minimum(0.0, 1 - reference / predicted[..., 0])
    logarithms = np.log(matches / predicted).mean(axis=-1)
    return np.where(scored, 100 * np.exp(brevity + logarithms), 0.0)


def chrf(sums: Array) -> Array:
    """Compute chrF2 of sums ``[..., 3·orders]``: F2 of mean precision and recall over orders that both sides have."""
    right, predicted, reference = np.split(sums, 3, axis=-1)
    # Orders that one side has no n-grams of are left out of the mean (`eff:yes`), or short texts would score 0.
    used = (predicted > 0) & (reference > 0)
    orders = np.maximum(used.sum(axis=-1), 1)
    precision, recall = (_ratio(right, whole, used).sum(axis=-1) / orders for whole in (predicted, reference))
    whole = _RECALL * precision + recall
    return 100 * _ratio((1 + _RECALL) * precision * recall, whole, whole > 0)


def _ratio(part: Array, whole: Array, where: Array) -> Array:
    ratio: Array = np.divide(part, whole, out=np.zeros(np.shape(whole)), where=where)
    return ratio


def bleu_signature(language: str) -> str:
    """Return sacrebleu's signature of BLEU: ``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0``."""
    return _signature(_sacrebleu().BLEU(tokenize=tokenizer(language)))


def chrf_signature(_language: str, *, words: int = 0) -> str:
    """Return sacrebleu's signature of chrF: ``nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0``."""
    return _signature(_sacrebleu().CHRF(word_order=words))


def primary(language: str) -> str:
    """Return the language of a code with a script or country: ``zh`` of ``zh-TW``, ``eng`` of ``eng_Latn``."""
    return re.split(r"[._-]", language)[0].lower()


def tokenizer(language: str) -> str:
    """Return the tokenizer of BLEU for a language: ``13a``, ``zh`` or ``char``."""
    for name, languages in _TOKENIZERS.items():
        if primary(language) in languages:
            return name
    return "13a"


def _sacrebleu() -> ModuleType:
    try:
        import sacrebleu  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PolyloomError(
            "BLEU and chrF: the package sacrebleu is not installed. pip install 'polyloom[train]'"
        ) from error
    return sacrebleu


def _counts(scorer: Any, references: Sequence[str], hypotheses: Sequence[str]) -> Array:
    """Count the statistics of each sentence by a private function of sacrebleu, which a test checks."""
    if len(references) != len(hypotheses):  # sacrebleu would truncate the longer one
        raise PolyloomError(f"translations: {len(references)} references and {len(hypotheses)} hypotheses.")
    return np.array(scorer._extract_corpus_statistics(hypotheses, [references]), np.int64)  # noqa: SLF001


def _signature(scorer: Any) -> str:
    scorer.corpus_score(["a"], [["a"]])  # sacrebleu has no signature before the first score
    return str(scorer.get_signature())
