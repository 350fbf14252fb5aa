"""Choose the examples of each step's batch: a pure function of (seed, step), at the same cost for every step.

A *draw* takes a number of rows, or as many as fit a token budget, from one dataset; a batch has one draw or more. Draws
come in *rounds*, in each of which every dataset has a fixed number of slots. The number of a draw therefore determines
its dataset and how often that dataset was drawn before, and thus the epoch of the dataset and the position in it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from polyloom.data.shuffle import Key, permuted, random_uint64
from polyloom.errors import ConfigError, suggest

Strategy = Literal["temperature", "weights", "unimax", "round-robin", "ratio"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MIN_SLOTS, MAX_SLOTS = 2**12, 2**20
_STRATEGY_OF_OPTION = {"weights": "weights", "max_repeats": "unimax", "ratio": "ratio"}
_KEY_BITS = 44  # for an example's position in its dataset's epochs; the dataset's number is in the bits above


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """How datasets are mixed.

    Attributes:
        kind: How datasets are sampled. ``temperature`` (default): by size to the power 1/T. ``weights``: as given.
            ``unimax``: evenly, but no dataset more than `max_repeats` times. ``round-robin``: in turn. ``ratio``:
            N draws from one dataset, then M from its partner.
        temperature: T, 1 by default: all datasets have the same number of epochs. Raise it to draw from small datasets
            more often; a very high one draws from all equally often.
        weights: For ``weights``: the relative weight of every dataset; 0 leaves it out.
        max_repeats: For ``unimax``: the maximum number of epochs of a dataset within the run.
        ratio: For ``ratio``: N and M.
        datasets_per_batch: Number of draws per batch: 1 (default) for one dataset, more for mixed batches.
    """

    strategy: Strategy = "temperature"
    temperature: float = 1.0
    weights: Mapping[str, float] | None = None
    max_repeats: float | None = None
    ratio: tuple[int, int] | None = None
    datasets_per_batch: int = 1


@dataclass(frozen=True, slots=True)
class Pick:
    """One example of a batch.

    Attributes:
        dataset: The name of its dataset.
        index: Its row in the dataset.
        key: A number below 2⁶³ that is unique within the run; seeds the randomness of this use of the example.
    """

    dataset: str
    index: int
    key: int


class Share(NamedTuple):
    """What a run takes from a dataset: its size, its share of the draws, its number of epochs."""

    dataset: str
    size: int
    share: float
    passes: float


@dataclass(eq=False)
class Mixture:
    """Draw the batch of any step.

    Attributes:
        datasets: The lengths of the examples of each dataset.
        config: How datasets are mixed.
        seed: The seed of all randomness.
        rows_per_batch: Number of rows in a batch; either this or `tokens_per_batch` is given.
        tokens_per_batch: Maximum number of tokens in a batch, padding included. A draw gets an equal part of it; a
            single row may exceed that.
        groups: For ``ratio``: pairs of datasets, taken pair after pair. By default two datasets are a pair.
        steps: For ``unimax``: number of steps of the run.
    """

    datasets: Mapping[str, NDArray[np.int32]]
    config: MixtureConfig
    _: KW_ONLY
    seed: int
    rows_per_batch: int | None = None
    tokens_per_batch: int | None = None
    groups: Sequence[Sequence[str]] | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.config.strategy == "ratio" and self.groups is None and len(self.datasets) == 2:
            self.groups = [list(self.datasets)]
        if mistakes := list(_mistakes(self)):
            raise ConfigError("mixture", mistakes)
        self._names = list(self.datasets)
        self._sizes = [len(lengths) for lengths in self.datasets.values()]
        self._keys = [(self.seed, int.from_bytes(blake2b(n.encode(), digest_size=8).digest())) for n in self._names]
        self._streams = [self._stream(lengths) for lengths in self.datasets.values()]
        self._salt = int(random_uint64((self.seed,), 1)[0]) >> 1
        self._shuffled = self.config.strategy not in ("round-robin", "ratio")
        self._slots = self._make_slots()
        self._quotas = np.bincount(self._slots, minlength=len(self._names))
        self._last_round = (-1, self._slots, self._slots)

    def batch(self, step: int) -> list[Pick]:
        """Return the examples of a step, counted from 0."""
        if step < 0:
            raise IndexError(f"step {step}: steps are counted from 0.")
        first = step * self.config.datasets_per_batch
        return [pick for draw in range(first, first + self.config.datasets_per_batch) for pick in self._draw(draw)]

    def shares(self) -> dict[str, float]:
        """Return each dataset's share of the draws, which is exact in every full round."""
        return dict(zip(self._names, (self._quotas / len(self._slots)).tolist(), strict=True))

    def passes(self, steps: int) -> dict[str, float]:
        """Return the number of epochs of each dataset after a number of steps."""
        rounds, rest = divmod(steps * self.config.datasets_per_batch, len(self._slots))
        begun = np.bincount(self._round(rounds)[0][:rest], minlength=len(self._names))
        draws = (rounds * self._quotas + begun).tolist()
        return {n: d / s.draws_per_pass for n, d, s in zip(self._names, draws, self._streams, strict=True)}

    def table(self, steps: int) -> list[Share]:
        """Return size, share and epochs of every dataset, for a report."""
        shares, passes = self.shares(), self.passes(steps)
        return [Share(name, len(lengths), shares[name], passes[name]) for name, lengths in self.datasets.items()]

    def _draw(self, draw: int) -> Iterator[Pick]:
        number, slot = divmod(draw, len(self._slots))
        slots, ranks = self._round(number)
        dataset = int(slots[slot])
        seen = self._streams[dataset].take(int(self._quotas[dataset]) * number + int(ranks[slot]), self._keys[dataset])
        name, size, base = self._names[dataset], self._sizes[dataset], dataset << _KEY_BITS
        for place in seen.tolist():
            yield Pick(name, place % size, (base | place) ^ self._salt)

    def _round(self, number: int) -> tuple[Integers, Integers]:
        """Return the dataset of each slot of a round, and how often that dataset came before the slot in the round."""
        number = number if self._shuffled else 0
        cached, slots, ranks = self._last_round
        if cached != number:
            slots = self._slots
            if self._shuffled:
                slots = slots[permuted(np.arange(len(slots)), len(slots), (self.seed, number))]
            order = np.argsort(slots, kind="stable")
            ranks = np.empty_like(slots)
            ranks[order] = np.arange(len(slots)) - (np.cumsum(self._quotas) - self._quotas)[slots[order]]
            self._last_round = (number, slots, ranks)  # in one assignment, so that threads never see half of it
        return slots, ranks

    def _stream(self, lengths: NDArray[np.int32]) -> "_Stream":
        if self.rows_per_batch is not None:
            return _RowStream(len(lengths), self.rows_per_batch // self.config.datasets_per_batch)
        assert self.tokens_per_batch is not None
        return _TokenStream(lengths, self.tokens_per_batch // self.config.datasets_per_batch)

    def _make_slots(self) -> Integers:
        config, numbers = self.config, {name: i for i, name in enumerate(self._names)}
        if config.strategy == "round-robin":
            return np.arange(len(numbers))
        if config.strategy == "ratio":
            assert config.ratio is not None
            assert self.groups is not None
            pairs = [np.repeat([numbers[first], numbers[second]], config.ratio) for first, second in self.groups]
            return np.concatenate(pairs)
        shares = self._wanted_shares()
        # Rare datasets need long rounds: in a short round one slot would be far more than their share.
        for_rarest = min(8 / float(shares[shares > 0].min()), MAX_SLOTS)
        wanted = max(MIN_SLOTS, 16 * len(shares), math.ceil(for_rarest))
        return np.repeat(np.arange(len(shares)), apportion(shares, 1 << (wanted - 1).bit_length()))

    def _wanted_shares(self) -> Floats:
        config, sizes = self.config, np.array([stream.draws_per_pass for stream in self._streams], dtype=np.float64)
        if config.strategy == "weights":
            assert config.weights is not None
            weights = np.array([config.weights[name] for name in self._names], dtype=np.float64)
            return _normalized(weights)
        if config.strategy == "temperature":
            return temperature(sizes, config.temperature)
        assert config.max_repeats is not None
        assert self.steps is not None
        possible = int(sizes.sum() * config.max_repeats) // config.datasets_per_batch
        if self.steps > possible:
            what = f"{config.max_repeats:g} passes through all cells are {possible} steps, fewer than {self.steps}."
            raise ConfigError("mixture", [f"mixture.max_repeats: {what} Raise it, or lower train.steps."])
        return unimax(sizes, self.steps * config.datasets_per_batch, config.max_repeats)


def temperature(sizes: Floats, value: float) -> Floats:
    """Compute shares in proportion to size to the power of one over the temperature."""
    return _normalized((sizes / sizes.max()) ** (1 / value))


def unimax(sizes: Floats, budget: float, max_repeats: float) -> Floats:
    """Compute the most even shares for which no dataset has too many epochs (Chung et al. 2023, algorithm 1).

    Args:
        sizes: Sizes of the datasets.
        budget: What the run takes in all, in the same unit.
        max_repeats: Maximum number of epochs of a dataset.
    """
    taken = np.zeros(len(sizes))
    left = float(budget)
    for done, dataset in enumerate(np.argsort(sizes, kind="stable")):
        taken[dataset] = min(left / (len(sizes) - done), sizes[dataset] * max_repeats)
        left -= taken[dataset]
    return _normalized(taken)


def _normalized(weights: Floats) -> Floats:
    shares: Floats = weights / weights.sum()
    return shares


def apportion(shares: Floats, slots: int) -> Integers:
    """Assign slots by largest remainder, at least one for every share above zero."""
    poor = np.zeros(len(shares), dtype=bool)  # shares that are rounded up to one slot
    while True:
        rich = np.where(poor, 0.0, shares)
        exact = rich * ((slots - poor.sum()) / rich.sum())
        poorer = poor | ((shares > 0) & (exact < 1))
        if np.array_equal(poorer, poor):
            break
        poor = poorer
    quotas: Integers = np.floor(exact).astype(np.int64) + poor
    remainders = exact - np.floor(exact)
    quotas[np.argsort(-remainders, kind="stable")[: slots - quotas.sum()]] += 1
    return quotas


class _Stream(Protocol):
    """The examples of a dataset in the order of its draws, epoch after epoch."""

    @property
    def draws_per_pass(self) -> float: ...

    def take(self, draw: int, key: Key) -> Integers:
        """Return the examples of a draw, each as its row plus the size of the dataset times the epochs before."""
        ...


class _RowStream:
    """Take a fixed number of rows per draw; a draw that reaches the end of an epoch continues with the next."""

    def __init__(self, size: int, rows: int) -> None:
        self.size, self.rows = size, rows
        self.draws_per_pass = size / rows

    def take(self, draw: int, key: Key) -> Integers:
        begin, end = draw * self.rows, (draw + 1) * self.rows
        parts = []
        for start in range(begin // self.size * self.size, end, self.size):
            places = np.arange(max(begin, start), min(end, start + self.size)) - start
            parts.append(permuted(places, self.size, (*key, start // self.size)) + start)
        return np.concatenate(parts)


class _TokenStream:
    """Take rows of similar length per draw, as many as fit the budget; every epoch groups the rows anew."""

    def __init__(self, lengths: NDArray[np.int32], budget: int) -> None:
        self.size = len(lengths)
        bounds = [8]
        while bounds[-1] < lengths.max():
            bounds.append(-(-bounds[-1] * 9 // 64) * 8)  # an eighth longer, in multiples of eight
        buckets = np.searchsorted(bounds, lengths).astype(np.uint16)
        self.order = np.argsort(buckets, kind="stable")
        _, self.starts, self.counts = np.unique(buckets[self.order], return_index=True, return_counts=True)
        longest = np.maximum.reduceat(lengths[self.order], self.starts)
        self.rows = np.maximum(1, budget // longest.astype(np.int64))
        draws = -(-self.counts // self.rows)
        self.first_draws = np.cumsum(draws) - draws
        self.draws_per_pass = int(draws.sum())

    def take(self, draw: int, key: Key) -> Integers:
        number, place = divmod(draw, self.draws_per_pass)
        key = (*key, number)
        chosen = int(permuted(np.array([place]), self.draws_per_pass, key)[0])
        bucket = int(np.searchsorted(self.first_draws, chosen, side="right")) - 1
        rows, count = int(self.rows[bucket]), int(self.counts[bucket])
        begin = (chosen - int(self.first_draws[bucket])) * rows
        places = permuted(np.arange(begin, min(begin + rows, count)), count, (*key, bucket))
        rows_seen: Integers = self.order[self.starts[bucket] + places] + number * self.size
        return rows_seen


def _mistakes(mixture: Mixture) -> Iterator[str]:
    config, datasets = mixture.config, mixture.datasets
    yield from _config_mistakes(config)
    if not datasets:
        yield "mixture: there is no cell to draw from."
    yield from (f"cell {name!r}: has no example." for name, lengths in datasets.items() if not len(lengths))
    yield from _size_mistakes(mixture)
    if config.strategy == "unimax" and mixture.steps is None:
        yield "train.steps: missing, which kind unimax needs."
    if config.strategy == "weights" and config.weights is not None:
        yield from _weight_mistakes(config.weights, datasets)
    if config.strategy == "ratio":
        yield from _group_mistakes(mixture.groups, datasets)


def _config_mistakes(config: MixtureConfig) -> Iterator[str]:
    if config.strategy not in get_args(Strategy):
        yield f"mixture.strategy: unknown strategy {config.strategy!r}. {suggest(config.strategy, get_args(Strategy))}"
    for option, kind in _STRATEGY_OF_OPTION.items():
        given = getattr(config, option) is not None
        if given != (config.strategy == kind):
            yield f"mixture.{option}: " + (f"is of strategy {kind}, not of {config.strategy}." if given else "missing.")
    if config.strategy != "temperature" and config.temperature != 1:
        yield f"mixture.temperature: is of strategy temperature, not of {config.strategy}."
    positive: dict[str, float | None] = {
        "temperature": config.temperature,
        "datasets_per_batch": config.datasets_per_batch,
        "max_repeats": config.max_repeats,
        "ratio": min(config.ratio or (1,)),
    }
    for name, value in positive.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            yield f"mixture.{name}: {value} is not above 0."


def _size_mistakes(mixture: Mixture) -> Iterator[str]:
    rows, tokens, parts = mixture.rows_per_batch, mixture.tokens_per_batch, mixture.config.datasets_per_batch
    if (rows is None) == (tokens is None):
        yield "train.rows_per_batch: either this or train.tokens_per_batch must be given."
    elif rows is not None and (rows < 1 or (parts > 0 and rows % parts)):
        yield f"train.rows_per_batch: {rows} cannot be divided by mixture.datasets_per_batch, {parts}."
    elif tokens is not None and tokens < max(1, parts):
        yield f"train.tokens_per_batch: {tokens} are too few."


def _weight_mistakes(weights: Mapping[str, float], datasets: Mapping[str, object]) -> Iterator[str]:
    for name, weight in weights.items():
        if name not in datasets:
            yield f"mixture.weights.{name}: there is no such cell. {suggest(name, datasets)}"
        if not (math.isfinite(weight) and weight >= 0):
            yield f"mixture.weights.{name}: {weight} is not a weight."
    if missing := [name for name in datasets if name not in weights]:
        yield f"mixture.weights: none for {', '.join(missing)}. Write 0 to leave a cell out."
    elif not any(weights.values()):
        yield "mixture.weights: all are 0."


def _group_mistakes(groups: Sequence[Sequence[str]] | None, datasets: Mapping[str, object]) -> Iterator[str]:
    for group in groups or ():
        if len(group) != 2:
            yield f"groups: {', '.join(group)} is not a pair."
        yield from (
            f"groups: there is no cell {name!r}. {suggest(name, datasets)}" for name in group if name not in datasets
        )
    if missing := sorted(set(datasets) - {name for group in groups or () for name in group}):
        yield f"mixture.ratio: {', '.join(missing)} would never be drawn. Name the pairs of cells."
