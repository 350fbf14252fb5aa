"""One run of an experiment, and how settings are put together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
Settings = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One run of an experiment.

    Attributes:
        experiment: The file it comes from.
        row: The row there.
        seed: Of everything random.
        recipe: Settings as `polyloom train` takes them.
        swaps: For conditions to score, the languages whose weights are put in the place of their own.
    """

    experiment: str
    row: str
    seed: int
    recipe: Settings
    swaps: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        """Its name in file names."""
        return f"{self.row}-{self.seed}"


def merged(one: Settings, other: Mapping[str, Any]) -> Settings:
    """Nested settings, those of the other where both have some; another kind of mixture replaces the whole."""
    found = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict) and "kind" not in value
        found[key] = merged(found[key], value) if both else value
    return found
