"""The vocabulary every layer shares: conditions, sites, blocks, weights.

Shape legend, used as a suffix of tensor names throughout the package:

    B rows of a batch        T tokens of a row         D width of the backbone
    K distinct conditions    S sites of a block        R rows of weights: 1 (shared) or B (one per row)
    E any other width (bottleneck, hypernetwork, labels)
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from polyloom.errors import BackboneError, ConditionError, suggest

Placement = Literal["layer", "output", "norm"]
BlockKind = Literal["bottleneck", "lora"]
Shapes = Mapping[str, tuple[int, ...]]

_NAME = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")


class Site(NamedTuple):
    """A place in the backbone: one layer of one stack."""

    stack: str
    layer: int

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}"


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """What is being done, in which language or languages; written ``task/language[/target]``."""

    task: str
    source: str
    target: str | None = None

    def __post_init__(self) -> None:
        for part in (self.task, self.source, self.target):
            if part is not None and not (isinstance(part, str) and _NAME.fullmatch(part)):
                raise ConditionError(
                    f"condition: {part!r} is not a name. Names are letters and digits, joined by '.', '_' or '-'; "
                    "a condition is task/language or task/source/target, such as pos/tr or mt/en/tr."
                )

    @classmethod
    def parse(cls, text: "str | Condition") -> "Condition":
        """Read ``pos/tr`` or ``mt/en/tr``; a condition is returned as it is."""
        if isinstance(text, Condition):
            return text
        parts = str(text).split("/")
        if len(parts) not in (2, 3):
            raise ConditionError(
                f"condition {text!r}: expected task/language or task/source/target, such as pos/tr or mt/en/tr."
            )
        return cls(*parts)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages it names, each once."""
        return tuple(dict.fromkeys(lang for lang in (self.source, self.target) if lang is not None))

    def __str__(self) -> str:
        return "/".join(part for part in (self.task, self.source, self.target) if part is not None)


class Names:
    """Ordered names with their row numbers; grows at the end, so that row numbers never change."""

    def __init__(self, kind: str, names: Iterable[str] = ()) -> None:
        self.kind = kind
        self._rows: dict[str, int] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """Append a name and return its row."""
        if name in self._rows:
            raise ConditionError(f"{self.kind} {name!r} is there already.")
        return self._rows.setdefault(name, len(self._rows))

    def row(self, name: str) -> int:
        """The row of a name, or an error that says what is known."""
        try:
            return self._rows[name]
        except KeyError:
            raise ConditionError(f"unknown {self.kind} {name!r}. {suggest(name, self._rows)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True)
class World:
    """What a method is built for. It can be extended later, never reordered.

    Attributes:
        languages: Language names.
        tasks: Task names with their number of labels, ``None`` where a task has no fixed label set (mlm, mt).
        directions: Pairs ``source/target`` for methods that store something per pair.
    """

    languages: tuple[str, ...]
    tasks: Mapping[str, int | None]
    directions: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        languages: Iterable[str],
        tasks: Mapping[str, int | None] | Iterable[str],
        directions: Iterable[str] | None = None,
    ) -> Self:
        """Build a world; ``en/*`` and ``*/en`` among the directions stand for all pairs with English.

        Where directions are left out, they lead from the first language (by convention the source of transfer) to every
        other.
        """
        languages = tuple(languages)
        tasks = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(tasks)
        if not languages or not tasks:
            raise ConditionError("world: at least one language and one task are needed.")
        for name in (*languages, *tasks):
            Condition("check", name)
        patterns = [f"{languages[0]}/*"] if directions is None else directions
        return cls(languages, tasks, expand_directions(patterns, languages))


def expand_directions(patterns: Iterable[str], languages: Sequence[str]) -> tuple[str, ...]:
    """Expand ``en/*``, ``*/en`` and ``en/tr`` over the languages, each pair once, in order."""
    pairs: dict[str, None] = {}
    for pattern in patterns:
        source, _, target = pattern.partition("/")
        for name in (source, target):
            if name != "*" and name not in languages:
                raise ConditionError(f"direction {pattern!r}: unknown language {name!r}. {suggest(name, languages)}")
        sources = languages if source == "*" else [source]
        targets = languages if target == "*" else [target]
        pairs.update({f"{one}/{other}": None for one in sources for other in targets if one != other})
    return tuple(pairs)


class ConditionIds(NamedTuple):
    """The distinct conditions of a batch as row numbers, and which of them each row of the batch uses."""

    task_K: Tensor
    source_K: Tensor
    target_K: Tensor
    pair_K: Tensor
    rows_B: Tensor


@dataclass(frozen=True)
class Block:
    """Weights of one kind for one placement: at every site, for every condition (or row).

    Attributes:
        kind: ``bottleneck``, ``lora``, ``invertible`` or ``classifier``.
        placement: Where in a layer it acts; ``embedding`` for invertible adapters, ``head`` for classifiers.
        sites: Its sites, in the order of the tensors' second dimension.
        tensors: By name, each ``[K, S, ...]`` as made by a method, ``[R, S, ...]`` once laid out for a batch.
    """

    kind: str
    placement: str
    sites: tuple[Site, ...]
    tensors: Mapping[str, Tensor]

    def by_site(self) -> list[dict[str, Tensor]]:
        """The tensors of each site: without a row dimension if shared by all rows, else one set per row.

        All at once: the gradients of sites taken one by one would each be as large as those of all of them.
        """
        shared = next(iter(self.tensors.values())).shape[0] == 1
        parts = {name: t[0].unbind(0) if shared else t.unbind(1) for name, t in self.tensors.items()}
        return [{name: part[index] for name, part in parts.items()} for index in range(len(self.sites))]


@dataclass(frozen=True)
class Weights:
    """What a method makes: blocks, in the order in which they act at a site."""

    blocks: tuple[Block, ...] = ()

    def for_rows(self, rows_B: Tensor) -> "Weights":
        """Lay out one set per row, once per batch; a single condition stays one shared set."""
        return self._map(lambda tensor: tensor if tensor.shape[0] == 1 else tensor.index_select(0, rows_B))

    def take(self, rows: slice) -> "Weights":
        """Of weights laid out for a batch, those of some of its rows."""
        return self._map(lambda tensor: tensor if tensor.shape[0] == 1 else tensor[rows])

    def alone(self, index: int) -> "Weights":
        """The weights of one condition, in memory of their own."""
        return self._map(lambda tensor: tensor[index : index + 1].clone() if tensor.shape[0] > 1 else tensor)

    @staticmethod
    def together(parts: "Sequence[Weights]") -> "Weights":
        """The weights of several conditions, one after the other."""
        first = parts[0]
        blocks = (
            replace(
                b, tensors={name: torch.cat([part.blocks[i].tensors[name] for part in parts]) for name in b.tensors}
            )
            for i, b in enumerate(first.blocks)
        )
        return Weights(tuple(blocks)) if len(parts) > 1 else first

    def num_bytes(self) -> int:
        """Memory that all tensors take."""
        return sum(t.numel() * t.element_size() for block in self.blocks for t in block.tensors.values())

    def to(self, dtype: torch.dtype) -> "Weights":
        """Cast every tensor."""
        return self._map(lambda tensor: tensor.to(dtype))

    def block(self, kind: str) -> Block:
        """The only block of a kind."""
        (found,) = [block for block in self.blocks if block.kind == kind]
        return found

    def num_parameters(self) -> int:
        """How many numbers one condition's weights hold."""
        return sum(t.numel() // t.shape[0] for block in self.blocks for t in block.tensors.values())

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Weights":
        blocks = (replace(b, tensors={name: change(t) for name, t in b.tensors.items()}) for b in self.blocks)
        return Weights(tuple(blocks))


@dataclass(frozen=True)
class BackboneShape:
    """What a method must know of a backbone to make weights for it.

    Attributes:
        family: Name of the family, for messages.
        width: Hidden size, the same at every site.
        sites: All sites, encoder before decoder.
        placements: The placements the family has.
        projections: Input and output size of the projections that LoRA adapts, by name.
    """

    family: str
    width: int
    sites: tuple[Site, ...]
    placements: tuple[str, ...]
    projections: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def stacks(self) -> tuple[str, ...]:
        """``encoder``, ``decoder`` or both, in the order of computation."""
        return tuple(dict.fromkeys(site.stack for site in self.sites))

    def choose(self, wanted: str | None, preferred: Sequence[str]) -> str:
        """The placement wanted, or the first preferred one that the family has."""
        for placement in [wanted] if wanted else preferred:
            if placement in self.placements:
                return placement
        raise BackboneError(
            f"method.placement: {self.family} has no placement {wanted or preferred[0]!r}. "
            f"{suggest(wanted or preferred[0], self.placements)}"
            " Pre-norm families have no 'norm': there Pfeiffer's formula is that of 'layer'."
        )


@dataclass(frozen=True)
class Stage:
    """One stage of a method's training.

    Attributes:
        name: What the paper calls it.
        trains: Names of the parameter groups that learn: groups of the method, ``backbone``,
            ``backbone.norms``, ``heads``.
        tasks: ``mlm`` (raw text), ``labelled`` (all but mlm) or ``all``.
    """

    name: str
    trains: tuple[str, ...]
    tasks: Literal["mlm", "labelled", "all"] = "all"
