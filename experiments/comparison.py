"""Fair comparisons: the only way to a table of a result page.

A comparison is built from rows and their scored conditions. What makes it fair is read from the raw results and the
plans, not stated by the table: the same test sets, batches and seeds in all rows, as many learning rates tried for each
method, and, between methods, every baseline of the plan. Otherwise it is not built, and the page says why.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from experiments.read import Row, Selection, difference, spread
from experiments.storage import Settings, read_plan
from polyloom.cli.render.tables import markdown
from polyloom.config.renamed import upgrade
from polyloom.errors import PolyloomError

Key = str | tuple[str, ...]  # the name of a column of scores, in one or several parts
Scores = Selection | tuple[Selection, Selection]  # to average, or two to subtract


class UnfairError(PolyloomError):
    """The rows cannot be compared."""


@dataclass(frozen=True)
class Side:
    """One row of a comparison.

    Attributes:
        label: What the row is called.
        scores: The scored conditions of every column.
        about: Further columns, which are not scores.
    """

    label: str
    scores: Mapping[Key, Scores]
    about: tuple[str, ...] = ()

    @property
    def selections(self) -> dict[Key, list[Selection]]:
        """The selections of every column: one, or two to subtract."""
        return {key: [*some] if isinstance(some, tuple) else [some] for key, some in self.scores.items()}

    @property
    def runs(self) -> list[Mapping[str, Any]]:
        """All runs that the scores come from."""
        rows = {id(row): row for parts in self.selections.values() for some in parts for row, _ in some}
        return [run for row in rows.values() for run in row.runs]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows that can be compared.

    Attributes:
        sides: The rows.
        labels: Headers of the columns that are not scores: that of the labels, then those of `Side.about`. Of a table
            with `across`, those of the parts of a key.
        base: The label of the row that all others are subtracted from. Default: none.
        across: Whether rows become columns, for few rows with many scores. Default: no.
        digits: Decimals of means. Default: 1.

    Raises:
        UnfairError: The rows cannot be compared.
    """

    sides: Sequence[Side]
    labels: tuple[str, ...]
    base: str | None = None
    across: bool = False
    digits: int = 1

    def __post_init__(self) -> None:
        reasons = [
            *_different("test sets", self.sides, _cells),
            *_different("batches", self.sides, _batches),
            *_different("learning rates tried", self.sides, _tried),
            *_different("seeds", self.sides, _seeds),
            *_missing(self.sides),
        ]
        if reasons:
            raise UnfairError("; ".join(reasons) + ".")
        if self.base is not None:
            self.side(self.base)

    def side(self, label: str) -> Side:
        """Find a row by its label."""
        (found,) = [side for side in self.sides if side.label == label]
        return found

    def shown(self, label: str, key: Key) -> str:
        """Format one score: a mean, or a difference; with the difference to `base` in parentheses."""
        side = self.side(label)
        scores = side.scores[key]
        if isinstance(scores, tuple):
            return difference(*scores)
        text = spread(scores, digits=self.digits)
        if self.base is None or label == self.base or not scores:
            return text
        base = self.side(self.base).scores[key]
        assert not isinstance(base, tuple)
        return f"{text} ({difference(scores, base, digits=self.digits)})"

    def markdown(self) -> str:
        """Format the comparison as a table."""
        keys = list(self.sides[0].scores)
        if self.across:
            lines = [[*_parts(key), *(self.shown(side.label, key) for side in self.sides)] for key in keys]
            return markdown([*self.labels, *(side.label for side in self.sides)], lines)
        lines = [[side.label, *side.about, *(self.shown(side.label, key) for key in keys)] for side in self.sides]
        return markdown([*self.labels, *(" ".join(_parts(key)) for key in keys)], lines)


Tables = Mapping[str, Callable[[], Comparison]]  # the comparisons of a table by their titles; a single one has none


def batching(recipe: Settings) -> tuple[str, ...]:
    """Describe the batches of each stage: datasets, and rows or tokens."""
    recipe, _ = upgrade(recipe)
    described = []
    for stage in recipe.get("stages", {}).values() or [{}]:
        train, mixture = (recipe.get(key, {}) | stage.get(key, {}) for key in ("train", "mixture"))
        size = (
            f"{train['tokens_per_batch']} tokens" if "tokens_per_batch" in train else f"{train['rows_per_batch']} rows"
        )
        datasets = mixture.get("datasets_per_batch", 1)
        described.append(f"{size} of {datasets} dataset{'s' if datasets > 1 else ''}")
    return tuple(described)


def _cells(side: Side) -> Any:
    """List the test sets of every column."""
    return {key: [_conditions(some) for some in parts] for key, parts in side.selections.items()}


def _conditions(selection: Selection) -> list[str]:
    return sorted(f"{condition} {_corpora(row, condition)}" for row, condition in selection)


def _corpora(row: Row, condition: str) -> Any:
    return row.runs[0]["recipe"].get("data", {}).get("test", {}).get(condition, "")


def _batches(side: Side) -> Any:
    return sorted({batching(run["recipe"]) for run in side.runs})


def _tried(side: Side) -> Any:
    return sorted({_plan(run["experiment"])["tried"].get(_method(run), 0) for run in side.runs})


def _seeds(side: Side) -> Any:
    return sorted({run["seed"] for run in side.runs})


def _different(what: str, sides: Sequence[Side], read: Callable[[Side], Any]) -> Iterable[str]:
    """Say how the rows differ, unless they are all the same."""
    groups: list[tuple[Any, list[str]]] = []
    for side in sides:
        found = read(side)
        labels = next((labels for value, labels in groups if value == found), None)
        if labels is None:
            groups.append((found, [side.label]))
        else:
            labels.append(side.label)
    if len(groups) > 1:
        described = (f"{', '.join(labels)}: {_describe(value)}" for value, labels in groups)
        yield f"{what} differ ({'; '.join(described)})"


def _describe(value: Any) -> str:
    """Describe batches, learning rates and seeds; of test sets, their number."""
    if isinstance(value, dict):
        return str(sum(len(conditions) for conditions, *_ in value.values()))
    return " or ".join(", then ".join(some) if isinstance(some, tuple) else str(some) for some in value)


def _missing(sides: Sequence[Side]) -> Iterable[str]:
    """Name the baselines that a comparison of several methods lacks."""
    runs = [run for side in sides for run in side.runs]
    methods = {_method(run) for run in runs}
    required = {name for run in runs for name in _plan(run["experiment"]).get("baselines", ())}
    if len(methods) > 1 and (missing := sorted(required - methods)):
        yield f"baselines are missing: {', '.join(missing)}"


def _method(run: Mapping[str, Any]) -> str:
    return str(run["recipe"]["method"]["name"])


def _parts(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


@cache
def _plan(experiment: str) -> Settings:
    """Read a plan, with the learning rates tried in the experiments that it takes its settings from."""
    plan = read_plan(experiment)
    shared = read_plan("directions" if plan.get("kind") == "translation" else "tuning")
    return {"tried": shared["tried"]} | plan
