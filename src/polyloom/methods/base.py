"""What a method is: a function from conditions to weights, with what it trains, when, and whom it serves."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from polyloom.conditions import Condition, ConditionIds, Index, Inventory
from polyloom.errors import ConditionError, ConfigError, suggest
from polyloom.nn.blocks import BLOCKS, TensorSpecs
from polyloom.nn.tables import Bank, GrowingTable
from polyloom.registry import HINT
from polyloom.weights import BackboneShape, Block, Placement, Site, Weights

Part = Literal["task", "language", "pair"]


@dataclass(frozen=True)
class Stage:
    """One stage of a method's training.

    Attributes:
        name: What the paper calls it.
        trains: Names of the parameter groups that learn: groups of the method, ``backbone``,
            ``backbone.norms``, ``heads``.
        tasks: The tasks whose data are trained on: ``raw-text``, ``labelled`` (all others) or ``all``.
    """

    name: str
    trains: tuple[str, ...]
    tasks: Literal["raw-text", "labelled", "all"] = "all"


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Settings of a method. `name` is what recipes call it."""

    name: ClassVar[str]

    def with_labelled(self, conditions: Sequence[Condition]) -> Self:  # noqa: ARG002 - for psf
        """Tell the settings which conditions have labelled training data, where the method must know."""
        return self

    def continues(self, other: "MethodConfig") -> bool:
        """Tell whether a model that was trained with `other` can be trained further with these settings."""
        return self == other


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(MethodConfig):
    """Settings that all methods with adapters share.

    Attributes:
        adapter_size: Bottleneck size, or rank where the block is LoRA.
        block: Kind of the blocks in the layers: ``bottleneck`` or ``lora``, or another registered kind.
        placement: Where in a layer a block acts. Default: where the paper has it.
    """

    adapter_size: int = 48
    block: str = "bottleneck"
    placement: Placement | None = None

    def __post_init__(self) -> None:
        check(self, self.adapter_size >= 1, f"method.adapter_size: {self.adapter_size} is not positive.")
        kinds = layer_blocks()
        known = f"method.block: {self.block!r} is not a choice. {suggest(self.block, kinds)} {HINT}"
        check(self, self.block in kinds, known)


class Method(nn.Module, ABC):
    """A function from conditions to weights.

    The groups of parameters a method trains are its direct child modules, by name.

    Attributes:
        config_type: Class of its settings.
        paper: Where it was published.
        summary: One line for `polyloom list methods`.
        typology_size: Length of the typological vectors that it takes with `set_features`; ``None`` if it takes none.
        conditioned_on: The parts of a condition that its weights depend on: ``task``, and either ``language`` (the
            weights of a decoder depend on the target alone) or ``pair`` (all weights depend on both languages).
            Conditions that agree in these parts have the same weights; the contract tests check it. Default: task and
            language.
    """

    typology_size: int | None = None
    conditioned_on: ClassVar[tuple[Part, ...]] = ("task", "language")
    config_type: ClassVar[type[MethodConfig]]
    paper: ClassVar[str]
    summary: ClassVar[str]

    def __init__(self, config: MethodConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__()
        self.config = config
        self.shape = shape
        self.languages = Index("language", inventory.languages)
        self.tasks = Index("task", inventory.tasks)
        self.directions = Index("direction", inventory.directions)
        self.labels = dict(inventory.tasks)
        self.raw_text = frozenset(inventory.raw_text)

    # -- from conditions to weights ----------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, ids: ConditionIds) -> Weights:
        """Weights of the distinct conditions, ``[K, S, ...]``, in one batched computation."""

    def weights(self, conditions: Iterable[Condition | str]) -> Weights:
        """Weights for a list of conditions, one set each."""
        listed = [Condition.parse(condition) for condition in conditions]
        if len(set(listed)) != len(listed):
            raise ConditionError("weights: a condition is listed twice.")
        made: Weights = self(self.encode(listed))
        return made

    def encode(self, rows: Sequence[Condition | str]) -> ConditionIds:
        """Turn one condition per row into row numbers of the distinct ones; errors name what is unknown."""
        distinct: dict[Condition, int] = {}
        index = [distinct.setdefault(Condition.parse(row), len(distinct)) for row in rows]
        if not distinct:
            raise ConditionError("conditions: none given; a batch needs one condition per row.")
        for condition in distinct:
            self.require_supported(condition)
        columns = [
            [self.tasks.row(c.task) for c in distinct],
            [self.languages.row(c.source) for c in distinct],
            [self.languages.row(c.target or c.source) for c in distinct],
            [self.pair_row(c) for c in distinct],
            index,
        ]
        device = next(self.parameters(), torch.empty(0)).device
        return ConditionIds(*(torch.tensor(column, device=device) for column in columns))

    def pair_row(self, condition: Condition) -> int:  # noqa: ARG002 - for methods that store pairs
        """Row of the pair whose weights a condition uses; 0 for methods that store none."""
        return 0

    def require_supported(self, condition: Condition) -> None:
        """Raise unless this method can make weights for the condition."""
        try:
            self.tasks.row(condition.task)
            for language in condition.languages:
                self.languages.row(language)
            self.pair_row(condition)
        except ConditionError as error:
            raise ConditionError(f"condition {condition}: {error}") from None

    def supports(self, condition: Condition) -> bool:
        """Whether this method can make weights for the condition."""
        try:
            self.require_supported(condition)
        except ConditionError:
            return False
        return True

    # -- what is trained, and when -----------------------------------------------------------------------------------

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """The stages its paper trains in."""

    def trained_by(self, given: Condition) -> tuple[Condition, ...]:
        """The conditions whose weights data of a task and a language train: that task in that language."""
        return (given,)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The method's own parameters by group."""
        return {name: list(module.parameters()) for name, module in self.named_children()}

    def penalty(self, ids: ConditionIds) -> Tensor | None:  # noqa: ARG002 - for variational methods
        """A term to add to the loss of a batch, for methods that have one."""
        return None

    # -- growth ------------------------------------------------------------------------------------------------------

    def add_language(self, name: str, *, like: str | Sequence[str] | None = None) -> None:
        """Add a language; its weights start fresh, as a copy of another language's, or as the mean of some."""
        self._append("language", self.languages, name, like=like)

    def reinit_language(self, like: str | Sequence[str] | None) -> None:
        """Let the language that was added last begin again: fresh, or as others."""
        rows = _rows(self.languages, like)
        for table in self.growing("language"):
            if table.trainable:  # what is known of it stays
                table.init_last_row(rows)

    def add_task(self, name: str, *, labels: int | None = None, like: str | None = None) -> None:
        """Add a task; its weights start fresh or as a copy of another task's."""
        self._append("task", self.tasks, name, like=like)
        self.labels[name] = labels

    def add_direction(self, source: str, target: str, *, like: str | None = None) -> None:
        """Add a pair of known languages, for methods that store something per pair."""
        for language in (source, target):
            self.languages.row(language)
        self._append("pair", self.directions, f"{source}/{target}", like=like)

    def _append(self, kind: str, names: Index, name: str, *, like: str | Sequence[str] | None) -> None:
        for part in name.split("/"):
            Condition("check", part)
        rows = _rows(names, like)
        names.add(name)
        for table in self.growing(kind):
            table.append(rows if table.trainable else None)

    def growing(self, kind: str) -> list[GrowingTable]:
        """Those with a row for each ``language``, ``task`` or ``pair``."""
        return [module for module in self.modules() if isinstance(module, GrowingTable) and module.keyed_by == kind]

    def inventory(self) -> Inventory:
        """What it is built for now, growth included."""
        raw_text = tuple(task for task in self.tasks if task in self.raw_text)
        return Inventory(tuple(self.languages), dict(self.labels), tuple(self.directions), raw_text)

    def stores_adapters(self, kind: str) -> bool:
        """Tell whether it stores adapters for each ``language``, ``task`` or ``pair``, rather than an embedding."""
        return any(isinstance(table, Bank) for table in self.growing(kind))

    # -- what only some methods have ---------------------------------------------------------------------------------

    def output_layer(self) -> nn.Module | None:
        """Return the last layer of its hypernetwork, from which weights come; ``None`` where nothing is generated."""
        return None

    def set_features(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Take typological vectors of languages, each of length `typology_size`."""
        raise NotImplementedError(f"{self.config.name} takes no features of {', '.join(vectors)}")

    # -- for subclasses ----------------------------------------------------------------------------------------------

    def stack_languages(self, ids: ConditionIds, sites: Sequence[Site]) -> Tensor:
        """Language row per condition and site ``[K, S]``: the source in the encoder, the target in the decoder."""
        decoder_S = torch.tensor([site.stack == "decoder" for site in sites], device=ids.source_K.device)
        return torch.where(decoder_S, ids.target_K[:, None], ids.source_K[:, None])


class AdapterMethod(Method):
    """A method whose weights are blocks at sites.

    Attributes:
        preferred: Placements in the order in which the paper would have them.
        norm: Whether its bottlenecks have a layer norm of their own.
    """

    preferred: ClassVar[tuple[str, ...]]
    norm: ClassVar[bool] = False
    config: AdapterConfig

    def __init__(self, config: AdapterConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        self.placement = BLOCKS[config.block].choose_placement(shape, config.placement, self.preferred)

    def block_tensors(self, size: int | None = None, *, norm: bool | None = None) -> TensorSpecs:
        """Describe the tensors of the configured kind of block at one site."""
        norm = self.norm if norm is None else norm
        return BLOCKS[self.config.block].tensors(self.shape, size or self.config.adapter_size, norm=norm)

    def block(self, tensors: dict[str, Tensor], sites: tuple[Site, ...] | None = None) -> Block:
        """A block of the configured kind and placement."""
        return Block(self.config.block, self.placement, sites or self.shape.sites, tensors)


def layer_blocks() -> list[str]:
    """List the kinds of block that can be the ``block`` of a method."""
    return [name for name, kind in BLOCKS.items() if kind.in_layers]


def _rows(names: Index, like: str | Sequence[str] | None) -> int | Tensor | None:
    if like is None or isinstance(like, str):
        return None if like is None else names.row(like)
    return torch.tensor([names.row(one) for one in like])


def check(config: MethodConfig, holds: bool, mistake: str) -> None:
    """Refuse a setting that no schema can refuse."""
    if not holds:
        raise ConfigError(f"method {config.name}", [mistake])
