"""Define metrics: sufficient statistics per sentence (mostly counts), and a function of their sums.

Corpus scores, confidence intervals and paired comparisons are all computed from one array, ``statistics_NP`` (N
sentences, P statistics). The last statistic of every metric is its unit (words, gold entities, tokens), which does not
depend on the predictions.

If the denominator is zero, accuracy, F1, UAS and LAS are 0.0, as in seqeval and in the CoNLL 2018 evaluation, and so
are BLEU and chrF, as in sacrebleu; perplexity and bits per byte are NaN. A score of no sentences is an error.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyloom.errors import PolyloomError
from polyloom.io.untrusted import printable
from polyloom.metrics import bleu
from polyloom.registry import Registry
from polyloom.version import __version__

Array = NDArray[Any]


@dataclass(frozen=True)
class Metric:
    """A metric: the statistics that are counted per sentence, and the function that turns their sums into a score."""

    name: str
    """Name in recipes, files and signatures."""
    statistics: tuple[str, ...]
    """Names of the statistics, in the order of the array's last dimension."""
    value: Callable[[Array], Array]
    """Function from sums ``[..., P]`` to scores ``[...]``, in percent except for perplexity and bits per byte."""
    higher_is_better: bool = True
    """Whether a higher score is better. Not so for perplexity and bits per byte."""
    settings: Callable[[str], str] | None = None
    """Function from a language to further fields of the signature, such as the tokenizer of BLEU."""
    measure: Callable[[Sequence[Any], Sequence[Any]], Array] | None = None
    """Function from records and their predictions, as `Run.predict` returns them, to statistics ``[N, P]``. Default:
    none, the task counts them. With it, a recipe can name the metric for tasks that do not have it."""
    kinds: tuple[str, ...] = ()
    """Kinds of record that `measure` takes, such as ``tags``."""
    title: str = ""
    """Name in figures and reports. Default: `name`."""


def _ratio(part: Array, whole: Array, *, empty: float) -> Array:
    ratio: Array = np.divide(part, whole, out=np.full(np.shape(whole), empty), where=np.asarray(whole) != 0)
    return ratio


def _share(column: int) -> Callable[[Array], Array]:
    return lambda sums: 100.0 * _ratio(sums[..., column], sums[..., -1], empty=0.0)


def _f1(sums: Array) -> Array:
    # 2PR / (P + R) with P = right / predicted and R = right / gold is 2 right / (predicted + gold).
    return 100.0 * _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2], empty=0.0)


def _balance(sums: Array) -> Array:
    return 100.0 * _ratio(sums[..., 0] - sums[..., 1], sums[..., -1], empty=0.0)


def _bits_per_byte(sums: Array) -> Array:
    # The loss is in nats. It is divided by bytes, which unlike tokens do not depend on the tokenizer.
    return _ratio(sums[..., 0], sums[..., -1], empty=np.nan) / math.log(2)


def _perplexity(sums: Array) -> Array:
    return np.exp(_ratio(sums[..., 0], sums[..., 1], empty=np.nan))


_ATTACHMENT = ("uas", "las", "words")
_ANSWERS = ("exact", "overlap", "questions")
ACCURACY = Metric("accuracy", ("right", "total"), _share(0))
F1 = Metric("f1", ("true_positives", "predicted", "gold"), _f1, title="F1")
UAS = Metric("uas", _ATTACHMENT, _share(0), title="UAS")
LAS = Metric("las", _ATTACHMENT, _share(1), title="LAS")
ANSWER_F1 = Metric("answer_f1", _ANSWERS, _share(1), title="F1")  # a mean over questions, unlike that of entities
ANSWER_EXACT = Metric("answer_exact", _ANSWERS, _share(0), title="exact match")
PERPLEXITY = Metric("perplexity", ("loss", "count"), _perplexity, higher_is_better=False)
BITS_PER_BYTE = Metric("bits_per_byte", ("loss", "tokens", "bytes"), _bits_per_byte, higher_is_better=False)
BLEU = Metric("bleu", bleu.BLEU_STATISTICS, bleu.bleu, settings=bleu.bleu_signature, title="BLEU")
CHRF = Metric("chrf", bleu.CHRF_STATISTICS, bleu.chrf, settings=bleu.chrf_signature, title="chrF")
CHRF_WORDS = Metric(
    "chrf++",
    bleu.CHRF_WORDS_STATISTICS,
    bleu.chrf,
    settings=partial(bleu.chrf_signature, words=2),
    measure=lambda records, texts: bleu.chrf_statistics([record.target for record in records], texts, words=2),
    kinds=("bitext",),
    title="chrF++",
)
# A mean of sentence scores, which may be negative: positive and negative ones are summed separately.
COMET = Metric("comet", ("above", "below", "sentences"), _balance, title="COMET")
METRICS: Registry[Metric] = Registry("metric")


def register_metric(metric: Metric) -> Metric:
    """Register a metric under its name: recipes can name it (``tasks.pos.metrics``), and stored scores are read."""
    return METRICS.register(metric.name, metric)


def metric_title(name: str) -> str:
    """Return the name of a metric in figures and reports; the name itself if it is not registered."""
    metric = METRICS.get(name)
    return metric.title or name if metric else name


for _metric in (
    ACCURACY, F1, UAS, LAS, ANSWER_F1, ANSWER_EXACT, PERPLEXITY, BITS_PER_BYTE, BLEU, CHRF, CHRF_WORDS, COMET,
):  # fmt: skip
    register_metric(_metric)


@dataclass(frozen=True, eq=False)
class Score:
    """The score of a corpus, with the statistics of every sentence.

    Attributes:
        metric: The metric.
        statistics_NP: One row per sentence, in the order of the corpus; int64, or float64 if they are sums of losses.
        signature: Metric, condition, corpus and versions, see `signature`.
    """

    metric: Metric
    statistics_NP: Array
    signature: str

    def __post_init__(self) -> None:
        # The rounding of a sum depends on the order in memory, and a stored score must be the same when it is read.
        dtype = np.int64 if np.asarray(self.statistics_NP).dtype.kind in "iu" else np.float64
        statistics_NP = np.array(self.statistics_NP, dtype, order="C")
        if statistics_NP.ndim != 2 or statistics_NP.shape[1] != len(self.metric.statistics) or not len(statistics_NP):
            raise PolyloomError(
                f"{self.metric.name}: statistics of shape {statistics_NP.shape}; expected one row per sentence, "
                f"with {', '.join(self.metric.statistics)}."
            )
        if not (np.isfinite(statistics_NP) & (statistics_NP >= 0)).all():
            raise PolyloomError(
                f"{self.metric.name}: some statistics are negative, NaN or infinite. Did the loss overflow?"
            )
        statistics_NP.flags.writeable = False
        object.__setattr__(self, "statistics_NP", statistics_NP)

    @property
    def value(self) -> float:
        """The score of the whole corpus."""
        return float(self.metric.value(self.statistics_NP.sum(0)))

    @property
    def count(self) -> int:
        """Number of sentences."""
        return len(self.statistics_NP)

    def to_dict(self) -> dict[str, Any]:
        """Return the score as JSON can hold it; `from_dict` reads the statistics and ignores the value."""
        columns = dict(zip(self.metric.statistics, self.statistics_NP.T.tolist(), strict=True))
        return {"metric": self.metric.name, "value": self.value, "signature": self.signature, "statistics": columns}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Build the score that `to_dict` returned, bit for bit."""
        metric, columns = METRICS.find(stored["metric"]), stored["statistics"]
        if columns.keys() != set(metric.statistics):
            raise PolyloomError(
                f"{metric.name}: unexpected statistics {', '.join(columns)}. Known: {', '.join(metric.statistics)}."
            )
        return cls(metric, np.array([columns[name] for name in metric.statistics]).T, printable(stored["signature"]))


def signature(metric: Metric, statistics_NP: Array, *, condition: str, corpus: str, sha256: str) -> str:
    """Write the signature of a score, which shows whether two scores are comparable.

    Args:
        metric: The metric.
        statistics_NP: Its statistics, for the number of sentences and units (words, gold entities, tokens).
        condition: The condition, such as ``pos/tr``. The last language is the language of the text.
        corpus: Name of the corpus.
        sha256: Hash of the corpus; its first twelve digits are kept.

    Returns:
        ``metric:las|condition:dep/tr|corpus:ud:tr_imst/test|sha256:…|sentences:983|units:10032|polyloom:0.1.0``;
        for BLEU and chrF with sacrebleu's own signature at the end, for comparison with published scores.
    """
    fields = {
        "metric": metric.name,
        "condition": condition,
        "corpus": corpus.replace("|", "%7C"),  # local paths may contain the separator
        "sha256": sha256[:12],
        "sentences": len(statistics_NP),
        "units": int(statistics_NP[:, -1].sum()),
        "polyloom": __version__,
    }
    text = "|".join(f"{key}:{value}" for key, value in fields.items())
    return f"{text}|{metric.settings(condition.rpartition('/')[2])}" if metric.settings else text


def read_signature(text: str) -> dict[str, str]:
    """Split a signature into its fields."""
    pairs = (field.partition(":") for field in text.split("|"))
    return {key: value for key, _, value in pairs}


def zip_sentences(
    gold: Sequence[Sequence[Any]], predicted: Sequence[Sequence[Any]], *, what: str
) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """Pair gold and predicted sentences; raise an error if their number or a length differs."""
    if len(gold) != len(predicted):
        raise PolyloomError(f"{what}: {len(gold)} gold and {len(predicted)} predicted sentences.")
    for number, (gold_sentence, predicted_sentence) in enumerate(zip(gold, predicted, strict=True), 1):
        lengths = len(gold_sentence), len(predicted_sentence)
        if lengths[0] != lengths[1]:
            raise PolyloomError(f"{what}: sentence {number} has {lengths[0]} gold and {lengths[1]} predicted {what}.")
        yield gold_sentence, predicted_sentence


def selection_score(scores: Sequence[Score]) -> float:
    """Compute the score that selects checkpoints; higher is better.

    It is the mean of all scores, in percent. A perplexity counts as minus its logarithm, which is minus the loss in
    nats per token; bits per byte and other scores that should be low count in the same way.
    """
    smallest = sys.float_info.min  # for metrics that can be 0, such as an error
    values = [s.value if s.metric.higher_is_better else -math.log(max(s.value, smallest)) for s in scores]
    return sum(values) / len(values)
