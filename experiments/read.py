"""Read raw results: means over conditions and seeds, and differences between rows with their intervals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any

from experiments.storage import RESULTS, read_result

T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # 97.5 % quantile of Student's t, by the number of seeds


class MissingError(KeyError):
    """A row has no results yet, or not of all seeds."""


@dataclass(frozen=True)
class Row:
    """The runs of a row, one for each seed, in the order of seeds."""

    runs: Sequence[Mapping[str, Any]]

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return [run["seed"] for run in self.runs]

    def mean(self, key: str) -> float:
        """Average a figure of the training summary over seeds."""
        return fmean(run["training"][key] for run in self.runs)

    @property
    def parameters(self) -> int:
        """Count the trained parameters."""
        return int(sum(self.runs[0]["training"]["parameters"].values()))


@dataclass(frozen=True)
class Values:
    """One number for each seed of a row.

    Attributes:
        rows: Where they come from.
        by_seed: The numbers.
        conditions: The scored conditions. Default: none, for numbers that are not scores.
    """

    rows: Sequence[Row]
    by_seed: Sequence[float]
    conditions: Sequence[str] = ()

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.by_seed)

    def shown(self, digits: int = 1) -> str:
        """Format the mean, with the standard deviation over seeds."""
        spread = f" ± {stdev(self.by_seed):.{digits}f}" if len(self.by_seed) > 1 else ""
        return f"{self.mean:.{digits}f}{spread}"

    def minus(self, other: "Values") -> "Difference":
        """Subtract the numbers of another row, seed by seed."""
        pairs = zip(self.by_seed, other.by_seed, strict=True)
        return Difference([one - two for one, two in pairs])


@dataclass(frozen=True)
class Difference:
    """The difference of two rows for each seed; both see the same examples in the same order."""

    by_seed: Sequence[float]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.by_seed)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean by Student's t over seeds."""
        count = len(self.by_seed)
        half = T95[count] * stdev(self.by_seed) / count**0.5
        return self.mean - half, self.mean + half

    def shown(self, digits: int = 1) -> str:
        """Format the mean and its interval."""
        low, high = self.interval
        return f"{self.mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


@cache
def rows(study: str) -> Mapping[str, Row]:
    """Read all rows of a study that have results."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / study).glob("*.json")):
        run = read_result(path)
        runs.setdefault(run["row"], []).append(run)
    return {row: Row(sorted(seeds, key=lambda run: run["seed"])) for row, seeds in runs.items()}


def row(study: str, name: str) -> Row:
    """Read a row.

    Raises:
        MissingError: It has no results.
    """
    if name not in rows(study):
        raise MissingError(f"{study}/{name}")
    return rows(study)[name]


def average(of: Row, conditions: Iterable[str]) -> Values:
    """Average the scores of conditions, for each seed."""
    names = list(conditions)
    return Values([of], [fmean(run["scores"][name] for name in names) for run in of.runs], names)


def over(*values: Values) -> Values:
    """Average the numbers of several rows with the same seeds, seed by seed, such as both ways of a translation."""
    by_seed = [fmean(parts) for parts in zip(*(one.by_seed for one in values), strict=True)]
    conditions = [condition for one in values for condition in one.conditions]
    return Values([row for one in values for row in one.rows], by_seed, conditions)
