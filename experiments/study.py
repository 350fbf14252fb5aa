"""Studies: questions that a set of runs answers. A run of a study is a recipe and a seed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Settings = dict[str, Any]
Swaps = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Study:
    """A set of runs that are compared with each other.

    Attributes:
        name: Name on the command line, and of the folder of raw results.
        recipes: Recipe of every row, by its name, given the folder of vocabularies and backbones.
        seeds: Seeds of all rows.
        tried: Number of learning rates that were tried for each method, by the method's name in recipes.
        baselines: Methods that a comparison between methods needs.
        needs: Materials that the recipes name (`experiments.materials`).
        adds: For a recipe, languages that are added to the trained run, each by itself, and how (`Addition`).
        swaps: For a recipe, kinds of swaps: the condition whose weights each condition is scored with once more.
    """

    name: str
    recipes: Callable[[Path], Mapping[str, Settings]]
    seeds: Sequence[int]
    tried: Mapping[str, int]
    baselines: Sequence[str] = ()
    needs: Sequence[str] = ()
    adds: Callable[[Settings], Sequence["Addition"]] = lambda _: ()
    swaps: Callable[[Settings], Swaps] = lambda _: {}

    def jobs(self, materials: Path) -> Iterator["Job"]:
        """Yield all runs seed by seed, so that an interrupted study has complete tables of few seeds."""
        recipes = self.recipes(materials)
        for seed in self.seeds:
            for row, recipe in recipes.items():
                seeded = recipe | {"train": recipe["train"] | {"seed": seed}}
                yield Job(self.name, row, seed, seeded, self.adds(recipe), self.swaps(recipe))


@dataclass(frozen=True)
class Addition:
    """A language that is added to a trained run.

    Attributes:
        language: Its code.
        data: Its data (`NewLanguageData`).
        settings: How it is added (`AddLanguageConfig`), apart from the seed.
        name: Name in the results. Default: the language.
    """

    language: str
    data: Settings
    settings: Settings = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        study: Name of the study.
        row: Name of the row.
        seed: Random seed.
        recipe: Settings for `polyloom train`.
        adds: Languages to add then.
        swaps: Conditions to score once more with the weights of others, by the kind of swap.
    """

    study: str
    row: str
    seed: int
    recipe: Settings = field(repr=False)
    adds: Sequence[Addition] = field(default=(), repr=False)
    swaps: Swaps = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The name of the run in file names."""
        return f"{self.row}-{self.seed}"
