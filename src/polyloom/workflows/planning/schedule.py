"""Plan a run of translation: epochs of every direction, tokens, operations, hours, disk and memory.

Only a table with the number of pairs is read. Lengths are assumed to be distributed as in real corpora, and batches to
be made as `data.mixture` makes them.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from polyloom.backbones import Backbone
from polyloom.conditions import Condition
from polyloom.config import Recipe, load_recipe
from polyloom.config.build import empty_backbone
from polyloom.data.blocks import BLOCK_BYTES, LENGTH_BOUNDS
from polyloom.data.mixture import temperature_of_draws, unimax
from polyloom.data.order import count_draws
from polyloom.errors import ConfigError, DataError, TrainingError
from polyloom.io.files import read_lines
from polyloom.rundir import RunDir
from polyloom.tasks import TASKS
from polyloom.training.events import StepTaken, read_log
from polyloom.workflows.planning.costs import BYTES_PER_PARAMETER, Plan

MANY_EPOCHS = 40  # more epochs than about this do not help (Muennighoff et al. 2023)
BYTES_IN_ORDER = 200  # of a block, in every process that trains: its place and its rows by length
_FIXED_BYTES = 12  # of an encoded pair: two offsets and a length; its tokens take 4 each
_SHAPE = 3  # of the gamma distribution of lengths; 3 is between stories (6) and collections of phrases (2)

Floats = NDArray[np.float64]


class Size(NamedTuple):
    """The size of a corpus: pairs, and the mean length of an example, as `EncodedDataset.lengths` returns them."""

    pairs: int
    length: float


@dataclass(frozen=True, kw_only=True)
class DirectionPlan:
    """The plan of one direction."""

    direction: str
    """Such as ``en/de``."""
    pairs: int
    """Pairs of its corpus."""
    length: float
    """Mean number of tokens of an example's longer side."""
    share: float
    """Share of all draws."""
    epochs: float
    """Number of epochs of its corpus."""
    rows_per_draw: float
    """Mean number of examples per draw."""
    full: float
    """Share of a draw that is not padding."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run."""

    steps: int
    """Optimizer steps."""
    directions: tuple[DirectionPlan, ...]
    """Plan of every direction."""
    tokens: float
    """Tokens of the sources. The log counts a little fewer: both sides are assumed to be as long as the longer. Targets
    have as many again."""
    flops: float
    """Operations of forward and backward passes, without padding."""
    hours: float | None
    """Duration at the given speed."""
    dataset_bytes: float
    """Disk space of all encoded directions."""
    order_bytes: int
    """Memory for the order of examples, in every training process."""
    model_bytes: int
    """Weights, gradients and Adam's two moments in fp32, without activations."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def repeated(self) -> list[DirectionPlan]:
        """Return the directions with very many epochs, the most first."""
        return sorted((d for d in self.directions if d.epochs > MANY_EPOCHS), key=lambda d: -d.epochs)

    def thin(self) -> list[DirectionPlan]:
        """Return the directions with too few examples of similar length to fill half of a draw."""
        return sorted((d for d in self.directions if d.full < 0.5), key=lambda d: d.full)


def read_sizes(path: Path) -> dict[frozenset[str], Size]:
    """Read a table of corpora: two languages (``en/de``), pairs, and the mean length of an example, with tabs."""
    sizes: dict[frozenset[str], Size] = {}
    for number, line in read_lines(path):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            pair, count, length = line.split("\t")
            languages, size = frozenset(pair.split("/")), Size(int(count.replace("_", "")), float(length))
        except ValueError:
            what = "expected two languages, pairs and a mean length, with tabs between: en/de 45_000_000 30."
            raise DataError(path, number, what) from None
        if len(languages) != 2 or size.pairs < 1 or not 3 <= size.length < np.inf:
            raise DataError(path, number, f"{pair}, {size.pairs} pairs, {size.length:g} tokens: not a corpus.")
        if languages in sizes:
            raise DataError(path, number, f"{pair} for the second time.")
        sizes[languages] = size
    return sizes


def tokens_per_second(run: Path, recipe: Recipe) -> float:
    """Return the training speed of a run of the same model."""
    directory = RunDir(run)
    before = load_recipe(directory.recipe)
    if (before.backbone.model_config, before.method) != (recipe.backbone.model_config, recipe.method):
        raise ConfigError(str(run), ["it has another backbone or another method, so its speed cannot be used here."])
    steps = [event for event in read_log(directory.log) if isinstance(event, StepTaken)]
    if not steps:
        raise TrainingError(f"{run}: no step was taken here. Train it for some hundred steps first.")
    return float(sum(step.tokens for step in steps) / sum(sum(step.seconds.values()) for step in steps))


def plan_run(
    recipe: Recipe,
    costs: Plan,
    *,
    sizes: Mapping[frozenset[str], Size],
    flops_per_second: float | None = None,
    tokens_per_second: float | None = None,
) -> RunPlan:
    """Plan a run from the sizes of its corpora.

    Args:
        recipe: A recipe with ``train.steps`` and ``train.tokens_per_batch``.
        costs: The cost of its method.
        sizes: Sizes of corpora by pair of languages.
        flops_per_second: Operations per second that the device reaches, for the hours.
        tokens_per_second: Or the training speed of the same model on it.
    """
    directions, steps, budget = _check_run(recipe, sizes)
    mixture, longest = recipe.mixture, recipe.data.filter.max_length + 2  # with two special tokens

    # How often each corpus is drawn from, and how many of its examples a draw takes.
    sizes_D = [sizes[frozenset(direction.split("/"))] for direction in directions]
    draws_D = np.array([_draws_per_epoch(size, budget, longest=longest) for size in sizes_D])
    pairs_D = np.array([size.pairs for size in sizes_D], dtype=np.float64)
    draws_of_run = steps * mixture.datasets_per_batch
    if mixture.strategy == "temperature":
        shares_D = temperature_of_draws(pairs_D, draws_D, mixture.temperature)
    else:
        assert mixture.max_repeats is not None
        shares_D = unimax(draws_D, draws_of_run, mixture.max_repeats)
    plans = tuple(
        DirectionPlan(
            direction=direction, pairs=size.pairs, length=size.length, share=share,
            epochs=share * draws_of_run / draws, rows_per_draw=size.pairs / draws,
            full=size.pairs / draws * size.length / budget,
        )
        for direction, size, share, draws in zip(directions, sizes_D, shares_D.tolist(), draws_D.tolist(), strict=True)
    )  # fmt: skip

    # Gradients of activations cost as much as the way forward; those of weights, where the backbone is trained, too.
    cost, backbone = costs.costs()[costs.chosen], empty_backbone(recipe.backbone)
    trains = {group for stage in cost.stages for group in stage.trains}
    passes = 3 if "backbone" in trains else 2
    tokens, flops, dataset_bytes = 0.0, 0.0, []
    for plan in plans:
        examples = plan.epochs * plan.pairs
        tokens += examples * plan.length
        flops_per_example = example_flops(backbone, plan.length) + 2 * plan.length * cost.extra_flops_per_token
        flops += passes * examples * flops_per_example
        dataset_bytes.append(plan.pairs * (_FIXED_BYTES + 8 * (plan.length - 2)))
    seconds = None
    if tokens_per_second:
        seconds = tokens / tokens_per_second
    elif flops_per_second:
        seconds = flops / flops_per_second
    return RunPlan(
        steps=steps,
        directions=plans,
        tokens=tokens,
        flops=flops,
        hours=seconds / 3600 if seconds is not None else None,
        dataset_bytes=sum(dataset_bytes),
        order_bytes=BYTES_IN_ORDER * sum(math.ceil(size / BLOCK_BYTES) for size in dataset_bytes),
        model_bytes=BYTES_PER_PARAMETER * (cost.total_parameters + 3 * cost.trainable_parameters),
    )


def example_flops(backbone: Backbone, length: float) -> float:
    """Count the operations of a forward pass for a source and a target of `length` tokens: 2·N plus attention.

    N is the number of weights of linear layers, with the output layer; looking up embeddings costs nothing.
    """
    weights = sum(m.weight.numel() for m in backbone.model.modules() if isinstance(m, nn.Linear))
    shape = backbone.shape
    # A decoder layer attends to both sides. Each attention is two products with states: for scores and for sums.
    attentions = sum(2 if site.stack != shape.stacks[0] else 1 for site in shape.sites)
    return 2 * length * weights + 4 * shape.width * length**2 * attentions


def _check_run(recipe: Recipe, sizes: Mapping[frozenset[str], Size]) -> tuple[list[str], int, int]:
    """Return the directions, the steps, and the tokens per draw; raise an error if settings are missing."""
    mistakes = []
    conditions = [Condition.parse(name) for name in recipe.data.train]
    # Without training data in the recipe, all directions are planned.
    directions = [f"{c.source}/{c.target}" for c in conditions if TASKS[c.task].bilingual]
    directions = directions or list(recipe.inventory().directions)
    if not any(TASKS[name].bilingual for name in recipe.tasks) or not directions:
        mistakes.append("directions: runs are planned for translation: `tasks: {mt: {}}`, and directions.")
    missing = [direction for direction in directions if frozenset(direction.split("/")) not in sizes]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        mistakes.append(f"--pairs: nothing for {missing[0]}{more}.")
    steps, tokens, strategy = recipe.train.steps, recipe.train.tokens_per_batch, recipe.mixture.strategy
    if steps is None:
        mistakes.append("train.steps: missing. Add train.steps=100000, say.")
    if tokens is None:
        mistakes.append("train.tokens_per_batch: missing; runs are planned for batches by tokens.")
    if strategy not in ("temperature", "unimax"):
        mistakes.append(f"mixture.strategy: no run of {strategy} can be planned. Known: temperature, unimax.")
    if mistakes or steps is None or tokens is None:
        raise ConfigError("recipe", mistakes)
    return directions, steps, tokens // recipe.mixture.datasets_per_batch


def _draws_per_epoch(size: Size, budget: int, *, longest: int) -> float:
    """Estimate the draws of an epoch: examples of similar length together.

    Lengths without the two special tokens follow a gamma distribution of shape 3, cut at the longest. For a whole
    number as shape, the share below x is 1 − e^(−z)·(1 + z + z²/2), with z = 3·x / mean (Erlang).
    """
    bounds = [*(bound for bound in LENGTH_BOUNDS if bound < longest), longest]
    # B ranges of length. Half a token is added to a bound, since lengths are whole numbers.
    z_B = _SHAPE * (np.array(bounds) - 1.5) / (size.length - 2)
    below_B = 1 - np.exp(-z_B) * (1 + z_B + z_B**2 / 2)
    counts_B = np.rint(size.pairs * np.diff(below_B, prepend=0.0) / below_B[-1])
    # A draw takes as many examples as fit if all were as long as the longest of their range.
    rows_B = np.maximum(1, budget // np.array(bounds))
    return max(1.0, float(count_draws(counts_B[None].astype(np.int64), rows_B)[0]))
