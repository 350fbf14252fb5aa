"""Base classes of methods: a method computes weights from conditions and defines its training stages."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from polyloom.conditions import Condition, ConditionIds, Index, Inventory
from polyloom.errors import ConditionError, ConfigError, suggest
from polyloom.nn.blocks import BLOCKS, Norm, TensorSpecs
from polyloom.nn.tables import Bank, GrowingTable
from polyloom.registry import HINT
from polyloom.weights import BackboneShape, Block, Placement, Site, Weights

Part = Literal["task", "language", "pair"]


@dataclass(frozen=True)
class Stage:
    """A stage of a method's training.

    Attributes:
        name: Name of the stage, as in the paper.
        trains: Names of the trainable parameter groups: groups of the method, ``backbone`` or its parts
            ``backbone.norms`` and ``backbone.head``, ``heads``. Everything else is frozen.
        tasks: Tasks whose data the stage uses: ``raw-text``, ``labelled`` (all others) or ``all``. Default: ``all``.
    """

    name: str
    trains: tuple[str, ...]
    tasks: Literal["raw-text", "labelled", "all"] = "all"


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Base class of the settings of a method."""

    name: ClassVar[str]
    """Name of the method in recipes."""

    def with_labelled(self, conditions: Sequence[Condition]) -> Self:  # noqa: ARG002 - for psf
        """Return the settings with the conditions that have labelled training data, if the method depends on them."""
        return self

    def continues(self, other: "MethodConfig") -> bool:
        """Return whether a model that was trained with `other` can be trained further with these settings."""
        return self == other


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(MethodConfig):
    """Settings that all methods with adapters share."""

    adapter_size: int = 48
    """Bottleneck size of the adapters, or the rank if `block` is ``lora``. A larger size gives more capacity and
    more parameters per adapter."""
    block: str = "bottleneck"
    """Kind of the adapters: ``bottleneck``, ``lora`` or another registered kind. Use ``lora`` to export to PEFT."""
    placement: Placement | None = None
    """Where in a layer a bottleneck acts: ``norm``, ``output`` or ``layer``. Default: the placement of the method's
    paper, if the backbone has it. Leave it out with ``lora``."""
    targets: str | tuple[str, ...] | None = None
    """The linear layers that LoRA, or another kind for linear layers, acts on: some of ``q``, ``k``, ``v``, ``o``,
    ``gate``, ``up`` and ``down``, or ``all-linear``. Default: what the kind prefers; LoRA adapts ``q`` and ``v``, or
    what stands for them."""
    alpha: float | None = None
    """Numerator of LoRA's scaling, ``alpha / rank``. Default: the rank, so that the scaling is 1."""
    rslora: bool = False
    """Whether the scaling is ``alpha / √rank``, which keeps what large ranks learn in proportion."""

    def __post_init__(self) -> None:
        check_positive(self, "adapter_size")
        kinds = layer_blocks()
        known = f"method.block: {self.block!r} is not a choice. {suggest(self.block, kinds)} {HINT}"
        check(self, self.block in kinds, known)
        of_blocks = {name: getattr(self, name) for name in ("placement", "targets", "alpha", "rslora")}
        for mistake in BLOCKS[self.block].mistakes(of_blocks):
            check(self, False, f"method.{mistake}")

    def scaling(self, rank: int) -> float:
        """Return the factor of LoRA of a rank."""
        if self.alpha is None and not self.rslora:
            return 1.0
        return float((rank if self.alpha is None else self.alpha) / (rank**0.5 if self.rslora else rank))


class Method(nn.Module, ABC):
    """Base class of methods: modules that compute weights from conditions.

    The parameter groups of a method are its direct child modules, by name.

    Attributes:
        config_type: Class of the method's settings.
        paper: The paper that introduced the method.
        summary: One line for `polyloom list methods`.
        typology_size: Length of the typological vectors that `set_features` expects. Default: ``None``, for methods
            without such vectors.
        conditioned_on: The parts of a condition that its weights depend on: ``task``, and either ``language`` (the
            weights of a decoder depend on the target alone) or ``pair`` (all weights depend on both languages).
            Conditions that agree in these parts have the same weights; the contract tests check it. Default: task and
            language.
        decoder_depends_on: The parts of `ConditionIds` that the weights of a decoder depend on, beside an encoder.
            Rows of a search whose conditions agree in them share these weights. Default: all, which is always right.
    """

    typology_size: int | None = None
    conditioned_on: ClassVar[tuple[Part, ...]] = ("task", "language")
    decoder_depends_on: tuple[str, ...] = ("task", "source", "target", "pair")
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
        """Compute the weights of the distinct conditions, ``[K, S, ...]``, in one batched computation."""

    def weights(self, conditions: Iterable[Condition | str]) -> Weights:
        """Compute the weights of a list of conditions, one set each."""
        listed = [Condition.parse(condition) for condition in conditions]
        if len(set(listed)) != len(listed):
            raise ConditionError("weights: a condition is listed twice.")
        return self.weights_of(self.encode(listed))

    def weights_of(self, ids: ConditionIds) -> Weights:
        """Compute the weights of the distinct conditions, with what those of the decoder depend on."""
        weights: Weights = self(ids)

        # Only a search in a decoder uses the keys. In training weights may be drawn at random, so equal numbers do not
        # mean equal weights; on the meta device and in compiled code the numbers are not known.
        no_values = ids.task_K.is_meta or torch.compiler.is_compiling()
        if len(self.shape.stacks) == 1 or self.training or no_values:
            return weights
        columns = torch.stack([getattr(ids, f"{name}_K") for name in self.decoder_depends_on] or [ids.task_K * 0])
        return replace(weights, decoder_keys=tuple(zip(*columns.tolist(), strict=True)))

    def encode(self, rows: Sequence[Condition | str]) -> ConditionIds:
        """Turn one condition per row into row numbers of the distinct conditions; errors name what is unknown."""
        # Weights are computed once per distinct condition; `index` says which of them a row has.
        distinct: dict[Condition, int] = {}
        index = [distinct.setdefault(Condition.parse(row), len(distinct)) for row in rows]
        if not distinct:
            raise ConditionError("conditions: none given; a batch needs one condition per row.")
        for condition in distinct:
            self.require_supported(condition)

        # A condition with one language has it as source and as target.
        columns = [
            [self.tasks.row(c.task) for c in distinct],
            [self.languages.row(c.source) for c in distinct],
            [self.languages.row(c.target or c.source) for c in distinct],
            [self.pair_row(c) for c in distinct],
            index,
        ]

        # These copies do not wait for the device, as those of `torch.tensor(…, device=…)` do.
        device = next(self.parameters(), torch.empty(0)).device
        return ConditionIds(*(torch.tensor(column).to(device, non_blocking=True) for column in columns))

    def pair_row(self, condition: Condition) -> int:  # noqa: ARG002 - for methods that store pairs
        """Return the row of the pair whose weights a condition uses; 0 for methods without weights per pair."""
        return 0

    def require_supported(self, condition: Condition) -> None:
        """Raise an error unless this method can compute weights for the condition."""
        try:
            self.tasks.row(condition.task)
            for language in condition.languages:
                self.languages.row(language)
            self.pair_row(condition)
        except ConditionError as error:
            raise ConditionError(f"condition {condition}: {error}") from None

    def supports(self, condition: Condition) -> bool:
        """Return whether this method can compute weights for the condition."""
        try:
            self.require_supported(condition)
        except ConditionError:
            return False
        return True

    # -- what is trained, and when -----------------------------------------------------------------------------------

    @property
    def labelled(self) -> bool:
        """Whether there are tasks that are not trained on raw text."""
        return any(task not in self.raw_text for task in self.tasks)

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Return the training stages of the method's paper, in order."""

    def trained_by(self, given: Condition) -> tuple[Condition, ...]:
        """Return the conditions whose weights the data of a condition train; by default that condition."""
        return (given,)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the method's parameters by group."""
        return {name: list(module.parameters()) for name, module in self.named_children()}

    def penalty(self, ids: ConditionIds) -> Tensor | None:  # noqa: ARG002 - for variational methods
        """Return a term to add to the loss of a batch; ``None`` for methods without one."""
        return None

    # -- adding languages, tasks and pairs ---------------------------------------------------------------------------

    def add_language(self, name: str, *, like: str | Sequence[str] | None = None) -> None:
        """Add a language; `like` initialises its parameters as another language's, or as the mean of several."""
        self._append("language", self.languages, name, like=like)

    def reinit_language(self, like: str | Sequence[str] | None) -> None:
        """Initialise the newest language again: at random, or from other languages as in `add_language`."""
        rows = _rows(self.languages, like)
        for table in self.growing("language"):
            if table.trainable:  # typological features stay
                table.init_last_row(rows)

    def add_task(self, name: str, *, labels: int | None = None, like: str | None = None) -> None:
        """Add a task; its parameters are initialised at random, or with `like` as a copy of another task's."""
        self._append("task", self.tasks, name, like=like)
        self.labels[name] = labels

    def add_direction(self, source: str, target: str, *, like: str | None = None) -> None:
        """Add a pair of known languages, for methods with parameters per pair."""
        for language in (source, target):
            self.languages.row(language)
        self._append("pair", self.directions, f"{source}/{target}", like=like)

    def _append(self, kind: str, names: Index, name: str, *, like: str | Sequence[str] | None) -> None:
        for part in name.split("/"):
            Condition("check", part)  # raises an error for what is no name
        rows = _rows(names, like)
        names.add(name)
        for table in self.growing(kind):
            table.append(rows if table.trainable else None)  # typological features are not copied: they are facts

    def growing(self, kind: str) -> list[GrowingTable]:
        """Return the tables with one row for each ``language``, ``task`` or ``pair``."""
        return [module for module in self.modules() if isinstance(module, GrowingTable) and module.keyed_by == kind]

    def inventory(self) -> Inventory:
        """Return the current languages, tasks and directions, including those that were added."""
        raw_text = tuple(task for task in self.tasks if task in self.raw_text)
        return Inventory(tuple(self.languages), dict(self.labels), tuple(self.directions), raw_text)

    def stores_adapters(self, kind: str) -> bool:
        """Return whether there are stored adapters for each ``language``, ``task`` or ``pair``, not only embeddings."""
        return any(isinstance(table, Bank) for table in self.growing(kind))

    # -- optional parts of a method ----------------------------------------------------------------------------------

    def output_layer(self) -> nn.Module | None:
        """Return the last layer of the hypernetwork, which outputs the weights; ``None`` if there is none."""
        return None

    def set_features(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Set the typological vectors of languages, each of length `typology_size`."""
        raise NotImplementedError(f"{self.config.name} takes no features of {', '.join(vectors)}")

    # -- for subclasses ----------------------------------------------------------------------------------------------

    def stack_languages(self, ids: ConditionIds, sites: Sequence[Site]) -> Tensor:
        """Return the language row per condition and site ``[K, S]``: source in the encoder, target in the decoder."""
        decoder_S = torch.tensor([site.stack == "decoder" for site in sites], device=ids.source_K.device)
        return torch.where(decoder_S, ids.target_K[:, None], ids.source_K[:, None])


class AdapterMethod(Method):
    """Base class of methods whose weights are blocks in the layers.

    Attributes:
        preferred: Default placements in order of preference; the first one that the backbone has is used.
        norm: Layer norm of bottleneck adapters: ``none``, ``before`` the down projection, ``after`` the up projection.
    """

    preferred: ClassVar[tuple[str, ...]]
    norm: ClassVar[Norm] = "none"
    config: AdapterConfig

    def __init__(self, config: AdapterConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        kind = BLOCKS[config.block]
        super().__init__(config, shape=kind.restrict(shape, config.targets), inventory=inventory)
        self.placement = kind.choose_placement(shape, config.placement, self.preferred)

    def block_tensors(self, size: int | None = None, *, norm: Norm | None = None) -> TensorSpecs:
        """Describe the tensors of the configured kind of block at one site."""
        return BLOCKS[self.config.block].tensors(self.shape, size or self.config.adapter_size, norm=norm or self.norm)

    def block(self, tensors: dict[str, Tensor], sites: tuple[Site, ...] | None = None) -> Block:
        """Build a block of the configured kind and placement."""
        kind = BLOCKS[self.config.block]
        # The factor of LoRA (alpha / rank) is part of the weights, so that nothing later needs to know it.
        rank = kind.size_of({name: tuple(tensor.shape[2:]) for name, tensor in tensors.items()})
        scaled = kind.scaled(tensors, self.config.scaling(rank))
        return Block(kind.name, self.placement, sites or self.shape.sites, scaled)


def layer_blocks() -> list[str]:
    """List the block kinds that methods accept as their ``block`` setting."""
    return [name for name, kind in BLOCKS.items() if kind.in_layers]


def _rows(names: Index, like: str | Sequence[str] | None) -> int | Tensor | None:
    if like is None or isinstance(like, str):
        return None if like is None else names.row(like)
    return torch.tensor([names.row(name) for name in like])


def check_positive(config: MethodConfig, *names: str) -> None:
    """Raise a configuration error if one of the named settings is not positive."""
    for name in names:
        check(config, getattr(config, name) >= 1, f"method.{name}: {getattr(config, name)} is not positive.")


def check(config: MethodConfig, holds: bool, mistake: str) -> None:
    """Raise a configuration error with the message `mistake` unless `holds`."""
    if not holds:
        raise ConfigError(f"method {config.name}", [mistake])
