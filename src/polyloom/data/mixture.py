"""Choose the examples of a step's batch: a pure function of (seed, step), at the same cost for every step.

A *draw* takes examples from one dataset: a fixed number, or as many as fit a token budget. A batch has one draw or
more. Draws come in *rounds*, in each of which every dataset has a fixed number of slots, its quota. So the number of a
draw tells all about it, without counting the draws before:

    round, slot  = divmod(draw, slots of a round)
    dataset      = the dataset of this slot, in the order of this round: a permutation with the key (seed, round)
    earlier      = quota · round + slots of the dataset before this one in the round
    rows         = those of draw `earlier` of the dataset, see `data.order`

A resumed run, and each of several processes, computes the same batches without reading or skipping any.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from polyloom.data.order import Rows, make_stream
from polyloom.data.shuffle import permuted, random_uint64
from polyloom.errors import ConfigError, suggest

Strategy = Literal["temperature", "weights", "unimax", "round-robin", "ratio"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MIN_SLOTS, MAX_SLOTS = 2**12, 2**20  # of a round
_STRATEGY_OF_OPTION = {"weights": "weights", "max_repeats": "unimax", "ratio": "ratio"}
_KEY_BITS = 44  # for the position of an example in its dataset; above them is the number of the dataset


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """Settings of the mixture of datasets."""

    strategy: Strategy = "temperature"
    """How often each dataset is drawn. ``temperature``: so that its examples come in proportion to their number to the
    power 1/T, as in the papers, also in batches by tokens. ``weights``: in proportion to given weights. ``unimax``:
    equally often, but at most `max_repeats` epochs of a dataset. ``round-robin``: in turn. ``ratio``: N draws of one
    dataset, then M of its partner."""
    temperature: float = 1.0
    """T of ``temperature``. 1 gives all datasets the same number of epochs. Raise it to draw small datasets more often;
    a high value draws all equally often."""
    weights: Mapping[str, float] | None = None
    """Weight of every dataset, required for ``weights``. Only their proportions matter; 0 leaves a dataset out."""
    max_repeats: float | None = None
    """Largest number of epochs of a dataset, required for ``unimax``."""
    ratio: tuple[int, int] | None = None
    """N and M, required for ``ratio``."""
    datasets_per_batch: int = 1
    """Number of draws of a batch. With 1 all examples of a batch are of one dataset. Raise it to mix datasets within a
    batch."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One example of a batch."""

    dataset: str
    """Name of its dataset."""
    index: int
    """Its row in the dataset."""
    key: int
    """Random key below 2⁶³, unique within the run: it decides which tokens are masked this time."""


class Share(NamedTuple):
    """The share of a dataset in a run."""

    dataset: str
    """Name of the dataset."""
    size: int
    """Number of its examples."""
    share: float
    """Its share of the draws, from 0 to 1."""
    epochs: float
    """Number of epochs."""


@dataclass(eq=False)
class Mixture:
    """Chooses the examples of every step."""

    datasets: Mapping[str, Rows]
    """The datasets, by name."""
    config: MixtureConfig
    """Settings."""
    _: KW_ONLY
    seed: int
    """Seed of the order of datasets and examples."""
    rows_per_batch: int | None = None
    """Number of examples in a batch."""
    tokens_per_batch: int | None = None
    """Number of tokens in a batch, instead. The examples of a draw, padded to the longest of them, never exceed their
    part of it, unless a single example does."""
    groups: Sequence[Sequence[str]] | None = None
    """Pairs of datasets for ``ratio``, drawn pair after pair. Not needed if there are only two datasets."""
    steps: int | None = None
    """Number of steps of the stage, required for ``unimax``."""

    def __post_init__(self) -> None:
        if self.config.strategy == "ratio" and self.groups is None and len(self.datasets) == 2:
            self.groups = [list(self.datasets)]
        if mistakes := list(_mistakes(self)):
            raise ConfigError("mixture", mistakes)
        self._names = list(self.datasets)
        self._sizes = [len(rows) for rows in self.datasets.values()]
        # Keys of permutations have the name of the dataset, so that another dataset in the recipe does not reorder it.
        self._keys = [(self.seed, int.from_bytes(blake2b(n.encode(), digest_size=8).digest())) for n in self._names]
        self._streams = [
            make_stream(rows, self.rows_per_batch, self.tokens_per_batch, self.config.datasets_per_batch)
            for rows in self.datasets.values()
        ]
        self._salt = int(random_uint64((self.seed,), 1)[0]) >> 1
        self._shuffled = self.config.strategy not in ("round-robin", "ratio")  # these two are an order themselves
        self._slots = self._make_slots()
        self._quotas = np.bincount(self._slots, minlength=len(self._names))
        self._last_round = (-1, self._slots, self._slots)

    def batch(self, step: int) -> list[Pick]:
        """Choose the examples of a step, counted from 0."""
        if step < 0:
            raise IndexError(f"step {step}: steps are counted from 0.")
        first = step * self.config.datasets_per_batch
        return [pick for draw in range(first, first + self.config.datasets_per_batch) for pick in self._draw(draw)]

    def shares(self) -> dict[str, float]:
        """Return the share of the draws of every dataset, exact in every full round."""
        return dict(zip(self._names, (self._quotas / len(self._slots)).tolist(), strict=True))

    def epochs(self, steps: int) -> dict[str, float]:
        """Return the exact number of epochs of every dataset after a number of steps."""
        rounds, rest = divmod(steps * self.config.datasets_per_batch, len(self._slots))
        in_last_round = np.bincount(self._round(rounds)[0][:rest], minlength=len(self._names))
        draws = (rounds * self._quotas + in_last_round).tolist()
        return {n: d / s.draws_per_epoch for n, d, s in zip(self._names, draws, self._streams, strict=True)}

    def table(self, steps: int) -> list[Share]:
        """Return size, share and epochs of every dataset after a number of steps."""
        shares, epochs = self.shares(), self.epochs(steps)
        return [Share(name, len(rows), shares[name], epochs[name]) for name, rows in self.datasets.items()]

    def _draw(self, draw: int) -> Iterator[Pick]:
        """Yield the examples of a draw; the lines are those of the module's docstring."""
        round_number, slot = divmod(draw, len(self._slots))
        slots, ranks = self._round(round_number)
        dataset = int(slots[slot])
        earlier = int(self._quotas[dataset]) * round_number + int(ranks[slot])
        positions = self._streams[dataset].take(earlier, self._keys[dataset])

        # A position counts on from epoch to epoch, so no two draws share one. Its key is unique for that reason, and
        # differs from the key of the same position in a run with another seed.
        name, size, base = self._names[dataset], self._sizes[dataset], dataset << _KEY_BITS
        for position in positions.tolist():
            yield Pick(name, position % size, (base | position) ^ self._salt)

    def _round(self, number: int) -> tuple[Integers, Integers]:
        """Return the datasets of a round's slots, and how often each slot's dataset came before it in the round."""
        number = number if self._shuffled else 0
        cached, slots, ranks = self._last_round
        if cached != number:
            slots = self._slots
            if self._shuffled:
                slots = slots[permuted(np.arange(len(slots)), len(slots), (self.seed, number))]
            # A stable sort groups the slots by dataset. The place in its group is the rank of a slot.
            order = np.argsort(slots, kind="stable")
            group_starts = np.cumsum(self._quotas) - self._quotas
            ranks = np.empty_like(slots)
            ranks[order] = np.arange(len(slots)) - group_starts[slots[order]]
            self._last_round = (number, slots, ranks)  # in one assignment: other threads see all of it or nothing
        return slots, ranks

    def _make_slots(self) -> Integers:
        """Return the dataset of every slot of a round, before shuffling."""
        config, numbers = self.config, {name: number for number, name in enumerate(self._names)}
        if config.strategy == "round-robin":
            return np.arange(len(numbers))
        if config.strategy == "ratio":
            assert config.ratio is not None
            assert self.groups is not None
            pairs = [np.repeat([numbers[first], numbers[second]], config.ratio) for first, second in self.groups]
            return np.concatenate(pairs)
        shares = self._target_shares()
        # Rare datasets need long rounds: in a short one, a single slot would be much more than their share.
        # In a round of this length the rarest one has eight.
        slots_for_rarest = min(8 / float(shares[shares > 0].min()), MAX_SLOTS)
        num_slots = max(MIN_SLOTS, 16 * len(shares), math.ceil(slots_for_rarest))
        return np.repeat(np.arange(len(shares)), apportion(shares, 1 << (num_slots - 1).bit_length()))

    def _target_shares(self) -> Floats:
        """Return the shares of the draws that the strategy asks for, before they are rounded to slots."""
        config, draws = self.config, np.array([stream.draws_per_epoch for stream in self._streams], dtype=np.float64)
        if config.strategy == "weights":
            assert config.weights is not None
            return _normalized(np.array([config.weights[name] for name in self._names], dtype=np.float64))
        if config.strategy == "temperature":
            return temperature_of_draws(np.array(self._sizes, dtype=np.float64), draws, config.temperature)
        assert config.max_repeats is not None
        assert self.steps is not None
        # More steps than all datasets allow together would break the limit of some, whatever the shares.
        possible = int(draws.sum() * config.max_repeats) // config.datasets_per_batch
        if self.steps > possible:
            what = f"{config.max_repeats:g} epochs of all datasets are {possible} steps, fewer than {self.steps}."
            raise ConfigError("mixture", [f"mixture.max_repeats: {what} Raise it, or lower train.steps."])
        return unimax(draws, self.steps * config.datasets_per_batch, config.max_repeats)


def temperature(sizes: Floats, value: float) -> Floats:
    """Compute shares in proportion to size to the power of one over the temperature: p_i ∝ n_i^(1/T)."""
    # Relative to the largest, so that no power overflows.
    return _normalized((sizes / sizes.max()) ** (1 / value))


def temperature_of_draws(sizes: Floats, draws_per_epoch: Floats, value: float) -> Floats:
    """Compute the shares of draws with which examples come in proportion to size to the power of one over T.

    A draw of dataset i has n_i / d_i examples on average, where d_i are its draws per epoch. With long examples and
    batches by tokens these are few, so the dataset needs more draws: the share of draws is ∝ p_i · d_i / n_i.
    """
    return _normalized(temperature(sizes, value) * draws_per_epoch / sizes)


def unimax(sizes: Floats, budget: float, max_repeats: float) -> Floats:
    """Compute shares that are as even as the limit of epochs allows (UniMax, Chung et al. 2023, algorithm 1).

    Args:
        sizes: Sizes of the datasets.
        budget: Size of the run, in the same unit.
        max_repeats: Largest number of epochs of a dataset.
    """
    amounts = np.zeros(len(sizes))
    left = float(budget)
    # From the smallest: each gets an even part of what is left, or its limit. Larger ones get what the limit leaves.
    for done, dataset in enumerate(np.argsort(sizes, kind="stable")):
        amounts[dataset] = min(left / (len(sizes) - done), sizes[dataset] * max_repeats)
        left -= amounts[dataset]
    return _normalized(amounts)


def _normalized(weights: Floats) -> Floats:
    shares: Floats = weights / weights.sum()
    return shares


def apportion(shares: Floats, slots: int) -> Integers:
    """Distribute slots by the largest-remainder method, at least one for every share above zero."""
    # Shares of less than a slot get one slot. That takes from the others, which may fall below a slot in turn.
    minimal = np.zeros(len(shares), dtype=bool)
    while True:
        others = np.where(minimal, 0.0, shares)
        exact = others * ((slots - minimal.sum()) / others.sum())
        extended = minimal | ((shares > 0) & (exact < 1))
        if np.array_equal(extended, minimal):
            break
        minimal = extended
    # The others get their whole slots, and those with the largest remainders one of the slots that are left.
    quotas: Integers = np.floor(exact).astype(np.int64) + minimal
    remainders = exact - np.floor(exact)
    quotas[np.argsort(-remainders, kind="stable")[: slots - quotas.sum()]] += 1
    return quotas


def steps_of_epochs(
    epochs: float,
    datasets: Sequence[Rows],
    *,
    rows_per_batch: int | None = None,
    tokens_per_batch: int | None = None,
    datasets_per_batch: int = 1,
) -> int:
    """Count the steps that draw as many batches as a number of epochs of all datasets has, whatever their shares."""
    streams = (make_stream(rows, rows_per_batch, tokens_per_batch, datasets_per_batch) for rows in datasets)
    return math.ceil(epochs * sum(stream.draws_per_epoch for stream in streams) / datasets_per_batch)


def _mistakes(mixture: Mixture) -> Iterator[str]:
    config, datasets = mixture.config, mixture.datasets
    yield from _config_mistakes(config)
    if not datasets:
        yield "mixture: there is no dataset."
    yield from (f"dataset {name!r}: has no examples." for name, rows in datasets.items() if not len(rows))
    rows, tokens, parts = mixture.rows_per_batch, mixture.tokens_per_batch, config.datasets_per_batch
    if (rows is None) == (tokens is None):
        yield "train.rows_per_batch: set either this or train.tokens_per_batch."
    elif rows is not None and (rows < 1 or (parts > 0 and rows % parts)):
        yield f"train.rows_per_batch: {rows} cannot be divided by mixture.datasets_per_batch, {parts}."
    elif tokens is not None and tokens < max(1, parts):
        yield f"train.tokens_per_batch: {tokens} is less than mixture.datasets_per_batch, {parts}."
    if config.strategy == "unimax" and mixture.steps is None:
        yield "train.steps: missing. The strategy unimax needs it."
    if config.strategy == "weights" and config.weights is not None:
        yield from _weight_mistakes(config.weights, datasets)
    if config.strategy == "ratio":
        yield from _group_mistakes(mixture.groups, datasets)


def _config_mistakes(config: MixtureConfig) -> Iterator[str]:
    if config.strategy not in get_args(Strategy):
        yield f"mixture.strategy: unknown strategy {config.strategy!r}. {suggest(config.strategy, get_args(Strategy))}"
    for option, kind in _STRATEGY_OF_OPTION.items():
        is_set = getattr(config, option) is not None
        if is_set and config.strategy != kind:
            yield f"mixture.{option}: belongs to strategy {kind}, not {config.strategy}."
        elif not is_set and config.strategy == kind:
            yield f"mixture.{option}: missing."
    if config.strategy != "temperature" and config.temperature != 1:
        yield f"mixture.temperature: belongs to strategy temperature, not {config.strategy}."
    positive: dict[str, float | None] = {
        "temperature": config.temperature,
        "datasets_per_batch": config.datasets_per_batch,
        "max_repeats": config.max_repeats,
        "ratio": min(config.ratio or (1,)),
    }
    for name, value in positive.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            yield f"mixture.{name}: {value} is not above 0."


def _weight_mistakes(weights: Mapping[str, float], datasets: Mapping[str, object]) -> Iterator[str]:
    for name, weight in weights.items():
        if name not in datasets:
            yield f"mixture.weights.{name}: unknown dataset. {suggest(name, datasets)}"
        if not (math.isfinite(weight) and weight >= 0):
            yield f"mixture.weights.{name}: {weight} is not a weight."
    if missing := [name for name in datasets if name not in weights]:
        yield f"mixture.weights: none for {', '.join(missing)}. Set 0 to leave a dataset out."
    elif not any(weights.values()):
        yield "mixture.weights: all are 0."


def _group_mistakes(groups: Sequence[Sequence[str]] | None, datasets: Mapping[str, object]) -> Iterator[str]:
    for group in groups or ():
        if len(group) != 2:
            yield f"groups: {', '.join(group)} is not a pair."
        yield from (
            f"groups: unknown dataset {name!r}. {suggest(name, datasets)}" for name in group if name not in datasets
        )
    if missing := sorted(set(datasets) - {name for group in groups or () for name in group}):
        yield f"mixture.ratio: {', '.join(missing)} would never be drawn. Each dataset must be in a pair."
