"""What becomes of a language that is served with another one's weights: the matrix of donors.

Only weights change. The task's head, the text and the language tokens stay those of the condition.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.inference.cache import WeightCache
from polyloom.weights import Weights

Score = Callable[[Condition, Condition], float | None]
Progress = Callable[[str, str, float | None], None]
SAME = 1e-9


def kept_language(conditions: Sequence[Condition]) -> str | None:
    """Of pairs, the language that all of them share and that keeps its weights; none if there is not exactly one."""
    pairs = [set(condition.languages) for condition in conditions]
    shared = set.intersection(*pairs) if pairs else set()
    return shared.pop() if len(shared) == 1 and any(len(pair) > 1 for pair in pairs) else None


def own_language(condition: Condition, kept: str | None) -> str:
    """The language whose weights are swapped: the only one; of a pair the one not kept, else the target."""
    others = [language for language in condition.languages if language != kept]
    return others[-1] if others else condition.source


def with_donor(condition: Condition, donor: str, kept: str | None) -> Condition | None:
    """The condition whose weights are used; none where a language would be paired with itself."""
    own = own_language(condition, kept)
    if condition.target is None:
        return Condition(condition.task, donor)
    source, target = (donor if name == own else name for name in (condition.source, condition.target))
    return None if source == target else Condition(condition.task, source, target)


def donor_matrix(
    conditions: Sequence[Condition],
    donors: Sequence[str],
    *,
    score: Score,
    progress: Progress = lambda _row, _donor, _value: None,
) -> dict[str, Any]:
    """Score every condition with every donor's weights.

    Args:
        conditions: Of one task.
        donors: Languages; a condition's own is among them.
        score: From a condition and the condition whose weights are used to a score; ``None`` where those are refused.
        progress: Hears of every score.

    Returns:
        ``languages`` (of a pair, both), ``own`` (whose weights each has by right), ``donors``, ``scores``.
    """
    if len({condition.task for condition in conditions}) != 1:
        raise PolyloomError("probe swap: the conditions are of several tasks, or there are none. Name one: --task pos.")
    kept, scores = kept_language(conditions), []
    for condition in conditions:
        row = []
        for donor in donors:
            used = with_donor(condition, donor, kept)
            row.append(None if used is None else score(condition, used))
            progress(_label(condition), donor, row[-1])
        scores.append(row)
    own = [own_language(condition, kept) for condition in conditions]
    return {"languages": list(map(_label, conditions)), "own": own, "donors": list(donors), "scores": scores}


def _label(condition: Condition) -> str:
    return "/".join(condition.languages)


@dataclass(frozen=True)
class Swapped:
    """What a row of the matrix says.

    Attributes:
        language: Whose text it is.
        own: Score with its own weights.
        best: The other donor that serves best.
        best_score: With that donor's weights.
        mean: Over all other donors.
        loss: How much worse others are than its own, in the mean; negative if they are better.
    """

    language: str
    own: float
    best: str
    best_score: float
    mean: float
    loss: float


def summarize(found: Mapping[str, Any], *, higher_is_better: bool) -> list[Swapped]:
    """A line for every language with a score of its own and of another donor."""
    sign, lines = 1.0 if higher_is_better else -1.0, []
    for language, own, row in zip(found["languages"], found["own"], found["scores"], strict=True):
        scores = {donor: s for donor, s in zip(found["donors"], row, strict=True) if s is not None}
        mine = scores.pop(own, None)
        if mine is None or not scores:
            continue
        best = max(sorted(scores), key=lambda donor: sign * scores[donor])
        mean = sum(scores.values()) / len(scores)
        lines.append(Swapped(language, mine, best, scores[best], mean, sign * (mine - mean)))
    return lines


def language_matters(found: Mapping[str, Any]) -> bool:
    """Whether any score depends on whose weights are used."""
    rows = [[score for score in row if score is not None] for row in found["scores"]]
    return any(max(row) - min(row) > SAME for row in rows if row)


class DonatedCache(WeightCache):
    """Weights by condition, of some those of another: for text that is generated, whose tokens stay its own."""

    donated: Mapping[Condition, Condition] = {}

    def rows(self, conditions: Sequence[Condition]) -> Weights:
        """The weights of a batch, laid out for its rows."""
        return super().rows([self.donated.get(condition, condition) for condition in conditions])
