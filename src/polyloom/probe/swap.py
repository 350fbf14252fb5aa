"""Score languages with the weights of other languages: the donor matrix.

Only the adapters' weights change. The head, the text and the language tokens are those of the condition.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyloom.conditions import Condition
from polyloom.data.records import Record
from polyloom.errors import PolyloomError
from polyloom.inference.cache import WeightCache
from polyloom.inference.predictor import Predictor
from polyloom.metrics.score import Score
from polyloom.weights import Weights

ScoreWith = Callable[[Condition, Condition], float | None]
OnScore = Callable[[str, str, float | None], None]
TOLERANCE = 1e-9


def kept_language(conditions: Sequence[Condition]) -> str | None:
    """Return the language that all pairs share, which keeps its weights; none if there is not exactly one."""
    pairs = [set(condition.languages) for condition in conditions]
    shared = set.intersection(*pairs) if pairs else set()
    return shared.pop() if len(shared) == 1 and any(len(pair) > 1 for pair in pairs) else None


def own_language(condition: Condition, kept: str | None) -> str:
    """Return the language whose weights are swapped: of a pair the one that is not kept, else the target."""
    others = [language for language in condition.languages if language != kept]
    return others[-1] if others else condition.source


def with_donor(condition: Condition, donor: str, kept: str | None) -> Condition | None:
    """Return the condition whose weights are used; none if a language would be paired with itself."""
    swapped = own_language(condition, kept)
    if condition.target is None:
        return Condition(condition.task, donor)
    source, target = (donor if name == swapped else name for name in (condition.source, condition.target))
    return None if source == target else Condition(condition.task, source, target)


def donor_matrix(
    conditions: Sequence[Condition],
    donors: Sequence[str],
    *,
    score: ScoreWith,
    on_score: OnScore = lambda _row, _donor, _value: None,
) -> dict[str, Any]:
    """Score every condition with every donor's weights.

    Args:
        conditions: Conditions of one task.
        donors: Languages whose weights are used, the languages of the conditions included.
        score: Function from a condition, and the condition whose weights are used, to a score; none if the method does
            not support the latter.
        on_score: Called with the language, the donor and the score, for every score.

    Returns:
        ``languages`` (both of a pair), ``own`` (the language of each row whose weights are swapped), ``donors``,
        ``scores``.
    """
    if len({condition.task for condition in conditions}) != 1:
        raise PolyloomError("probe swap: conditions of exactly one task are needed. Choose it: --task pos.")
    kept, scores = kept_language(conditions), []
    for condition in conditions:
        row = []
        for donor in donors:
            used = with_donor(condition, donor, kept)
            row.append(None if used is None else score(condition, used))
            on_score(_label(condition), donor, row[-1])
        scores.append(row)
    swapped = [own_language(condition, kept) for condition in conditions]
    return {"languages": list(map(_label, conditions)), "own": swapped, "donors": list(donors), "scores": scores}


def _label(condition: Condition) -> str:
    return "/".join(condition.languages)


@dataclass(frozen=True)
class DonorSummary:
    """The summary of a row of the donor matrix.

    Attributes:
        language: Language of the text.
        own: Score with its own weights.
        best: The best other donor.
        best_score: Score with that donor's weights.
        mean: Mean score over all other donors.
        loss: How much worse the mean is than the score with its own weights; negative if it is better.
    """

    language: str
    own: float
    best: str
    best_score: float
    mean: float
    loss: float


def summarize(matrix: Mapping[str, Any], *, higher_is_better: bool) -> list[DonorSummary]:
    """Summarize every language that has scores with its own weights and with another donor's."""
    sign, summaries = 1.0 if higher_is_better else -1.0, []
    for language, swapped, row in zip(matrix["languages"], matrix["own"], matrix["scores"], strict=True):
        scores = {donor: s for donor, s in zip(matrix["donors"], row, strict=True) if s is not None}
        own_score = scores.pop(swapped, None)
        if own_score is None or not scores:
            continue
        # Sorted, so that of equally good donors the first by name is the best, whatever the order of the matrix.
        best = max(sorted(scores), key=lambda donor: sign * scores[donor])
        mean = sum(scores.values()) / len(scores)
        summaries.append(DonorSummary(language, own_score, best, scores[best], mean, sign * (own_score - mean)))
    return summaries


def language_matters(matrix: Mapping[str, Any]) -> bool:
    """Return whether any score depends on the donor."""
    rows = [[score for score in row if score is not None] for row in matrix["scores"]]
    return any(max(row) - min(row) > TOLERANCE for row in rows if row)


class DonatedCache(WeightCache):
    """A weight cache that gives some conditions the weights of others; for generated text, whose tokens do not change.

    Attributes:
        donated: The condition whose weights are used, by condition.
    """

    donated: Mapping[Condition, Condition] = {}

    def rows(self, conditions: Sequence[Condition]) -> Weights:
        """Return the weights of a batch, one set per row; a single one if all rows have the same condition."""
        donors = [self.donated.get(condition, condition) for condition in conditions]
        weights = super().rows(donors)
        # Conditions with one donor share their weights, but not their language tokens: each row needs its own set.
        shared = len(set(donors)) == 1 < len(set(conditions))
        return Weights.cat([weights] * len(conditions)) if shared else weights


def donor_scorer(predictor: Predictor, records: Mapping[Condition, Sequence[Record]]) -> ScoreWith:
    """Return a function that scores a condition with the weights of another one, by the task's first metric.

    Args:
        predictor: The model. Its cache is replaced.
        records: The test data of each condition.
    """
    model, cache = predictor.model, DonatedCache(predictor.model)
    predictor.cache = cache

    def score(condition: Condition, used: Condition) -> float | None:
        if not (model.method.supports(used) and model.method.supports(condition)):
            return None
        task, sample = model.task(condition.task), records[condition]
        if task.generates:
            # Language tokens and length limits come from the condition, so only its weights may be replaced.
            cache.donated = {condition: used}
            predictions: list[Any] = predictor.translate([(condition, record) for record in sample])
        else:  # the condition has no other effect than to select the weights
            predictions = list(predictor.predict(sample, used))
        statistics = task.measure_chosen(sample, predictions, condition.languages[-1])
        metric = task.chosen_metrics()[0]
        return Score(metric, statistics[metric], "").value

    return score
