"""Scores: a metric is a few sufficient statistics per sentence (mostly counts) and a function of their sums.

Corpus scores, confidence intervals and paired comparisons all come from the same array, ``statistics_NP`` (N
sentences, P statistics). The last statistic of every metric is what it is measured over (words, gold entities, tokens),
whatever is predicted.

Where there is nothing to divide by, accuracy, F1, UAS and LAS are 0.0, as in seqeval and in the CoNLL 2018 evaluation,
and so are BLEU and chrF, as in sacrebleu; perplexity is nan. A score over no sentences at all is refused.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyloom.errors import PolyloomError, suggest
from polyloom.metrics import bleu
from polyloom.registry import Registry
from polyloom.version import __version__

Array = NDArray[Any]


@dataclass(frozen=True)
class Metric:
    """What is counted per sentence, and what follows from the sums.

    Attributes:
        name: Its name in files and signatures.
        statistics: Names of the counts, in the order of the array's last dimension.
        value: From sums ``[..., P]`` to scores ``[...]``; in percent, but for perplexity.
        higher_is_better: False for perplexity.
        settings: From a language to what else decides the value, as fields of a signature.
    """

    name: str
    statistics: tuple[str, ...]
    value: Callable[[Array], Array]
    higher_is_better: bool = True
    settings: Callable[[str], str] | None = None


def _ratio(part: Array, whole: Array, *, empty: float) -> Array:
    ratio: Array = np.divide(part, whole, out=np.full(np.shape(whole), empty), where=np.asarray(whole) != 0)
    return ratio


def _share(of: int) -> Callable[[Array], Array]:
    return lambda sums: 100.0 * _ratio(sums[..., of], sums[..., -1], empty=0.0)


def _f1(sums: Array) -> Array:
    return 100.0 * _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2], empty=0.0)


def _balance(sums: Array) -> Array:
    return 100.0 * _ratio(sums[..., 0] - sums[..., 1], sums[..., -1], empty=0.0)


def _perplexity(sums: Array) -> Array:
    return np.exp(_ratio(sums[..., 0], sums[..., 1], empty=np.nan))


_ATTACHMENT = ("uas", "las", "words")
ACCURACY = Metric("accuracy", ("right", "total"), _share(0))
F1 = Metric("f1", ("true_positives", "predicted", "gold"), _f1)
UAS = Metric("uas", _ATTACHMENT, _share(0))
LAS = Metric("las", _ATTACHMENT, _share(1))
PERPLEXITY = Metric("perplexity", ("loss", "count"), _perplexity, higher_is_better=False)
BLEU = Metric("bleu", bleu.BLEU_STATISTICS, bleu.bleu, settings=bleu.bleu_signature)
CHRF = Metric("chrf", bleu.CHRF_STATISTICS, bleu.chrf, settings=bleu.chrf_signature)
CHRF_WORDS = Metric(
    "chrf++",
    bleu.CHRF_WORDS_STATISTICS,
    bleu.chrf,
    settings=partial(bleu.chrf_signature, words=2),
)
# Scores of single sentences, which may be negative: what lies above and below zero is summed by itself.
COMET = Metric("comet", ("above", "below", "sentences"), _balance)
METRICS: Registry[Metric] = Registry("metric")


def register_metric(metric: Metric) -> Metric:
    """Register a metric under its name, so that stored scores can be read again."""
    return METRICS.register(metric.name, metric)


for _metric in (ACCURACY, F1, UAS, LAS, PERPLEXITY, BLEU, CHRF, CHRF_WORDS, COMET):
    register_metric(_metric)


@dataclass(frozen=True, eq=False)
class Score:
    """A metric's parts for every sentence of a corpus.

    Attributes:
        metric: The metric.
        statistics_NP: One row per sentence, in the corpus's order; int64, or float64 where losses are summed.
        signature: What was measured on what, see `signature`.
    """

    metric: Metric
    statistics_NP: Array
    signature: str

    def __post_init__(self) -> None:
        given = np.asarray(self.statistics_NP)
        dtype = np.int64 if given.dtype.kind in "iu" else np.float64
        statistics_NP = np.array(given, dtype, order="C")  # the order in memory decides how a sum of floats is rounded
        if statistics_NP.ndim != 2 or statistics_NP.shape[1] != len(self.metric.statistics) or not len(statistics_NP):
            raise PolyloomError(
                f"{self.metric.name}: statistics of shape {statistics_NP.shape}; expected one row per sentence, "
                f"with {', '.join(self.metric.statistics)}."
            )
        if not (np.isfinite(statistics_NP) & (statistics_NP >= 0)).all():
            raise PolyloomError(f"{self.metric.name}: some parts are negative or not finite. Did the loss overflow?")
        statistics_NP.flags.writeable = False
        object.__setattr__(self, "statistics_NP", statistics_NP)

    @property
    def value(self) -> float:
        """The score of the whole corpus."""
        return float(self.metric.value(self.statistics_NP.sum(0)))

    @property
    def count(self) -> int:
        """How many sentences."""
        return len(self.statistics_NP)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it; the value is there for readers, the parts are what is read back."""
        columns = dict(zip(self.metric.statistics, self.statistics_NP.T.tolist(), strict=True))
        return {"metric": self.metric.name, "value": self.value, "signature": self.signature, "statistics": columns}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Read back, bit for bit, what `to_dict` wrote."""
        if stored["metric"] not in METRICS:
            raise PolyloomError(f"score: unknown metric {stored['metric']!r}. {suggest(stored['metric'], METRICS)}")
        metric, columns = METRICS[stored["metric"]], stored.get("statistics", stored.get("parts"))
        if columns.keys() != set(metric.statistics):
            raise PolyloomError(f"{metric.name}: parts {', '.join(columns)}. Known: {', '.join(metric.statistics)}.")
        return cls(metric, np.array([columns[name] for name in metric.statistics]).T, stored["signature"])


def signature(metric: Metric, statistics_NP: Array, *, condition: str, corpus: str, sha256: str) -> str:
    """Say what was measured on what, so that two numbers can be told to be comparable.

    Args:
        metric: The metric.
        statistics_NP: Its parts; sentences and units (words, gold entities, tokens) are counted from them.
        condition: Task and language, such as ``pos/tr``; of two languages the last is that of the text.
        corpus: The corpus's name.
        sha256: Hash of the corpus; its first twelve digits are kept.

    Returns:
        ``metric:las|condition:dep/tr|corpus:ud:tr_imst/test|sha256:…|sentences:983|units:10032|polyloom:0.1.0``;
        for BLEU and chrF with sacrebleu's own signature at the end, for comparison with published scores.
    """
    fields = {
        "metric": metric.name,
        "condition": condition,
        "corpus": corpus.replace("|", "%7C"),  # of local paths, which may hold the separator
        "sha256": sha256[:12],
        "sentences": len(statistics_NP),
        "units": int(statistics_NP[:, -1].sum()),
        "polyloom": __version__,
    }
    text = "|".join(f"{key}:{value}" for key, value in fields.items())
    return f"{text}|{metric.settings(condition.rpartition('/')[2])}" if metric.settings else text


def read_signature(text: str) -> dict[str, str]:
    """The fields of a signature."""
    pairs = (field.partition(":") for field in text.split("|"))
    return {key: value for key, _, value in pairs}


def aligned(
    gold: Sequence[Sequence[Any]], predicted: Sequence[Sequence[Any]], *, what: str
) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """Pair gold and predicted sentences; never cut the longer one short."""
    if len(gold) != len(predicted):
        raise PolyloomError(f"{what}: {len(gold)} gold and {len(predicted)} predicted sentences.")
    for number, (one, other) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(one) != len(other):
            raise PolyloomError(f"{what}: sentence {number} has {len(one)} gold and {len(other)} predicted {what}.")
        yield one, other


def selection_score(scores: Sequence[Score]) -> float:
    """The mean of scores, higher is better: of perplexities the geometric mean, negated, as the mean of losses."""
    values = [s.value if s.metric.higher_is_better else -math.log(s.value) for s in scores]
    return sum(values) / len(values)
