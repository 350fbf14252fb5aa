"""Fair comparisons: the only way to a table of a result page.

What makes a comparison fair is read from the raw results and the studies, not stated by the table: the same test sets,
batches, backbones and seeds in all rows, as many learning rates tried for each method, and, between methods, every
baseline of the study. Otherwise it is not built, and the page says why.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.read import MissingError, Row, Values, rows
from experiments.studies import STUDIES
from polyloom.cli.render.tables import markdown
from polyloom.errors import PolyloomError

SEEDS = 3  # at least, for a claim


class UnfairError(PolyloomError):
    """The rows cannot be compared."""


@dataclass(frozen=True)
class Side:
    """One row of a comparison.

    Attributes:
        label: What the row is called.
        values: The numbers of every column.
        about: Further columns, which are not scores.
    """

    label: str
    values: Mapping[str, Values]
    about: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Mapping[str, Any]]:
        """All runs that the numbers come from."""
        return [run for row in self.rows for run in row.runs]

    @property
    def rows(self) -> list[Row]:
        """All rows that the numbers come from."""
        return list({id(row): row for some in self.values.values() for row in some.rows}.values())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows that can be compared.

    Attributes:
        sides: The rows.
        labels: Headers of the columns that are not scores: that of the labels, then those of `Side.about`.
        base: The label of the row that all others are subtracted from. Default: none.
        digits: Decimals of means. Default: 1.

    Raises:
        UnfairError: The rows cannot be compared.
    """

    sides: Sequence[Side]
    labels: tuple[str, ...]
    base: str | None = None
    digits: int = 1

    def __post_init__(self) -> None:
        require_fair(self.sides)

    def markdown(self, *, transposed: bool = False) -> str:
        """Format the comparison as a table: a line for each row, or transposed, a line for each column."""
        lines = [[side.label, *side.about, *(self._shown(side, key) for key in side.values)] for side in self.sides]
        table = [[*self.labels, *self.sides[0].values], *lines]
        head, *body = zip(*table, strict=True) if transposed else table
        return markdown(head, body)

    def _shown(self, side: Side, key: str) -> str:
        text = side.values[key].shown(self.digits)
        if self.base is None or side.label == self.base:
            return text
        (base,) = [other for other in self.sides if other.label == self.base]
        return f"{text} ({side.values[key].minus(base.values[key]).shown(self.digits)})"


def require_fair(sides: Sequence[Side], *, shown: bool = True) -> None:
    """Raise an error unless the rows can be compared.

    Args:
        sides: The rows.
        shown: Whether the baselines must be among the rows; otherwise it is enough that they are measured.

    Raises:
        MissingError: Seeds or baselines are not measured yet.
        UnfairError: The rows cannot be compared.
    """
    for side in sides:
        if any(len(row.runs) < SEEDS for row in side.rows):
            raise MissingError(f"{SEEDS} seeds of {side.label}")
    reasons = [
        *_different("test sets", sides, _tests),
        *_different("batches", sides, _batches),
        *_different("backbones", sides, _backbones),
        *_different("learning rates tried", sides, _tried),
        *_different("seeds", sides, _seeds),
        *_missing(sides, shown=shown),
    ]
    if reasons:
        raise UnfairError("; ".join(reasons) + ".")


def batching(recipe: Mapping[str, Any]) -> str:
    """Describe the size of a batch, which is the same in all stages."""
    train = recipe["train"]
    return f"{train['tokens_per_batch']} tokens" if "tokens_per_batch" in train else f"{train['rows_per_batch']} rows"


def _tests(side: Side) -> Any:
    """List the test corpora of every column."""
    return [
        (key, condition, str(row.runs[0]["recipe"]["data"]["test"][condition]))
        for key, values in side.values.items()
        for row in values.rows
        for condition in sorted(set(values.conditions))
    ]


def _batches(side: Side) -> Any:
    return sorted({batching(run["recipe"]) for run in side.runs})


def _backbones(side: Side) -> Any:
    """List the pretrained backbone of every seed; a study that is run again may have made it again."""
    return sorted({(run["seed"], *run.get("backbone", ())) for run in side.runs})


def _tried(side: Side) -> Any:
    return sorted({STUDIES[run["study"]].tried.get(_method(run), 0) for run in side.runs})


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


def _describe(value: Sequence[Any]) -> str:
    """Describe batches, learning rates and seeds; of test sets, their number."""
    return str(len(value)) if value and isinstance(value[0], tuple) else " or ".join(map(str, value))


def _missing(sides: Sequence[Side], *, shown: bool) -> Iterable[str]:
    """Name the baselines that a comparison of several methods lacks."""
    runs = [run for side in sides for run in side.runs]
    methods = {_method(run) for run in runs}
    if not shown:
        found = [row for study in {run["study"] for run in runs} for row in rows(study).values()]
        methods |= {_method(row.runs[0]) for row in found if len(row.runs) >= SEEDS}
    required = {name for run in runs for name in STUDIES[run["study"]].baselines}
    if len(methods) > 1 and (missing := sorted(required - methods)):
        yield f"baselines are missing: {', '.join(missing)}"


def _method(run: Mapping[str, Any]) -> str:
    return str(run["recipe"]["method"]["name"])
