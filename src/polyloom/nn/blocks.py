"""Block kinds: the tensors of a block, their initialisation, where the block acts, what it computes, its cost.

Nothing outside this file interprets the names of a block's tensors, except the formats that exchange them with other
libraries (`polyloom.export`). A new kind is a subclass of `BlockKind`, or of `ProjectionBlock` or `AttentionBlock`,
registered with `register_block`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from polyloom.errors import BackboneError
from polyloom.nn.linear import layer_norm, linear
from polyloom.registry import Registry
from polyloom.weights import BackboneShape, Block, Shapes, Site

SMALL_STD = 0.01 / 3**0.5  # of generated biases and layer norms: the standard deviation of U(-0.01, 0.01)
ATTENTION = "attention"  # the place of blocks that add keys and values


class TensorSpec(NamedTuple):
    """One tensor of a block at one site."""

    shape: tuple[int, ...]
    start: float | None
    """Initial value of all elements of a stored tensor. ``None``: random numbers, drawn by the method's initialiser.
    Generated tensors have this mean at initialisation (0 for ``None``)."""
    neutral: float | None = None
    """Value with which the block has no effect, if all tensors with such a value have it. ``None``: the tensor may
    have any value. A kind has no neutral values at all if it cannot be without effect."""

    @property
    def mean(self) -> float:
        """The mean that a generated tensor has at initialisation."""
        return self.start or 0.0

    @property
    def std(self) -> float:
        """The standard deviation that a generated tensor should have at initialisation."""
        return xavier_std(self.shape) if len(self.shape) == 2 else SMALL_STD


TensorSpecs = Mapping[str, TensorSpec]
Norm = Literal["none", "before", "after"]


class BlockKind(ABC):
    """Base class of block kinds."""

    name: ClassVar[str]
    """Name of the kind in recipes and files."""
    in_layers: ClassVar[bool] = True
    """Whether the block can act in every layer, so that methods accept it as ``block``."""
    options: ClassVar[tuple[str, ...]] = ("placement",)
    """The settings of a method that the kind has: some of ``placement``, ``targets``, ``alpha`` and ``rslora``."""

    @abstractmethod
    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:
        """Describe the tensors at one site, by names that no attribute of `torch.nn.ModuleDict` has.

        Args:
            shape: Shape of the backbone, with the linear layers that `restrict` leaves.
            size: Bottleneck size, rank, or number of labels.
            norm: Layer norm, if the kind can have one.
        """

    @abstractmethod
    def size_of(self, shapes: Shapes) -> int:
        """Return the `size` of a block from the shapes of its tensors; 0 if they do not belong to this kind."""

    def norm_of(self, tensors: Mapping[str, object]) -> Norm:  # noqa: ARG002 - for kinds that can have one
        """Return which layer norm a block has; none by default."""
        return "none"

    def specs_like(self, shapes: Shapes, shape: BackboneShape) -> TensorSpecs:
        """Describe the tensors that a block should have on a backbone, if it is to be like one with these shapes."""
        return self.tensors(shape, self.size_of(shapes), norm=self.norm_of(shapes))

    def mistakes(self, settings: Mapping[str, Any]) -> list[str]:
        """List what is wrong with a method's settings of blocks; by default those that the kind does not have."""
        return [
            f"{name}: a {self.name} block has no such setting. Leave it out, or choose a kind of block that has it: "
            f"{', '.join(kind.name for kind in BLOCKS.values() if name in kind.options)}."
            for name, value in settings.items()
            if value and name not in self.options
        ]

    def restrict(self, shape: BackboneShape, targets: str | Sequence[str] | None) -> BackboneShape:  # noqa: ARG002
        """Return the shape with only the linear layers that the block acts on; all of them by default.

        Args:
            shape: Shape of the backbone.
            targets: The setting ``targets``, for kinds that have it.
        """
        return shape

    def placements(self, shape: BackboneShape) -> tuple[str, ...]:
        """List the placements that the kind allows; those of the layers by default. None: it cannot act there."""
        return shape.placements

    def sites(self, shape: BackboneShape) -> tuple[Site, ...]:
        """List the sites that the kind allows; all layers by default."""
        return shape.sites

    def choose_placement(self, shape: BackboneShape, wanted: str | None, preferred: Sequence[str]) -> str:
        """Return the wanted placement, or the first preferred one that the backbone has."""
        return shape.choose_placement(wanted, preferred)

    def places(self, block: Block) -> list[tuple[str, int]]:
        """List the places where a block acts, each with the index of the site whose tensors are used there.

        A place is a placement of the layers, the name of a linear layer (its output), `input_of` that name (its
        input), or ``attention``.
        """
        return [(block.placement, index) for index in range(len(block.sites))]

    @abstractmethod
    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:
        """Apply the block and return the new value of `output_BTE`.

        Args:
            output_BTE: The tensor that the block changes: hidden states, or the output or the input of a linear layer.
            input_BTD: The input of the block: the hidden states (layer-normed at the placement ``norm``), or the input
                of the linear layer.
            tensors: One set for all rows, or one set per row.
            place: The place, as `places` names it.
        """

    def up_projections(self, names: Iterable[str]) -> list[str]:  # noqa: ARG002 - for kinds that have some
        """Name the tensors whose last dimension are the units of the block: its up projections, if it has some."""
        return []

    def scaled(self, tensors: dict[str, Tensor], factor: float) -> dict[str, Tensor]:  # noqa: ARG002 - for LoRA
        """Multiply what the block adds by a factor, if the kind has a scaling."""
        return tensors

    def flops(self, block: Block, num_stacks: int) -> int:
        """Count the operations per token of a block's matrices; each token goes through one of the stacks."""
        return 2 * num_matrix_elements(block) // num_stacks

    def finite(self, name: str, tensor: Tensor) -> Tensor:  # noqa: ARG002 - for kinds that allow infinite values
        """Return whether each value of a tensor is allowed; by default nan and infinity are not."""
        return tensor.isfinite()


class ProjectionBlock(BlockKind):
    """Base class of kinds that act on linear layers, each with tensors of its own.

    The name of a tensor is that of its linear layer, ``_`` and a part without ``_``, such as ``q_down``.
    """

    options: ClassVar[tuple[str, ...]] = ("targets",)
    default_targets: ClassVar[tuple[str, ...]]
    """The linear layers that the block acts on if ``targets`` names none, as far as a family has them."""

    def restrict(self, shape: BackboneShape, targets: str | Sequence[str] | None) -> BackboneShape:
        """Return the shape with the linear layers that ``targets`` names, or the default ones."""
        defaults = [name for name in self.default_targets if name in shape.projections]
        if not (targets or defaults):
            raise BackboneError(
                f"method.targets: {shape.family} has none of the linear layers {', '.join(self.default_targets)}. "
                f"Name others: {', '.join(shape.projections) or 'it declares none'}."
            )
        return shape.with_targets(targets or defaults)

    def specs_like(self, shapes: Shapes, shape: BackboneShape) -> TensorSpecs:
        """Describe a block of the same size on the same linear layers, as far as the backbone has them."""
        names = [name for name in self.projections(shapes) if name in shape.projections]
        return super().specs_like(shapes, shape.with_targets(names) if names else shape)

    def projections(self, names: Iterable[str]) -> list[str]:
        """Name the linear layers that a block acts on, from the names of its tensors."""
        return list(dict.fromkeys(name.rpartition("_")[0] for name in names))

    def place_of(self, projection: str) -> str:
        """Return where the block acts on a linear layer: on its output by default, or `input_of` it."""
        return projection

    def placements(self, shape: BackboneShape) -> tuple[str, ...]:  # noqa: ARG002
        """Return ``projections``, the only placement."""
        return ("projections",)

    def choose_placement(self, shape: BackboneShape, wanted: str | None, preferred: Sequence[str]) -> str:  # noqa: ARG002
        """Return ``projections``."""
        return "projections"

    def places(self, block: Block) -> list[tuple[str, int]]:
        """List the linear layers of the block, at every site."""
        names = self.projections(block.tensors)
        return [(self.place_of(name), index) for name in names for index in range(len(block.sites))]


class AttentionBlock(BlockKind):
    """Base class of kinds that add keys and values to the self-attention of every layer."""

    options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def keys_values(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the keys and the values to add, both ``[P, E]`` for all rows or ``[R, P, E]`` for each row.

        P is their number and E the size of a token's keys in all heads, `BackboneShape.kv_width`. Every token attends
        to them, whatever its own mask says. They have no position: rotary and relative positions leave them alone.
        """

    def placements(self, shape: BackboneShape) -> tuple[str, ...]:
        """Return ``attention``, where the family allows it."""
        return (ATTENTION,) if shape.kv_width else ()

    def choose_placement(self, shape: BackboneShape, wanted: str | None, preferred: Sequence[str]) -> str:  # noqa: ARG002
        """Return ``attention``, or raise an error if keys and values cannot be added to the backbone's."""
        if not shape.kv_width:
            raise BackboneError(
                f"method.block: a {self.name} block adds keys and values to the self-attention. {shape.family} "
                "declares no module where that is possible (`Family.attention`). Choose another block or backbone."
            )
        return ATTENTION

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:
        """Refuse: the block adds to keys and values, and changes no tensor."""
        raise NotImplementedError(f"{self.name}: adds keys and values; `keys_values` is called instead")


class Bottleneck(BlockKind):
    """A bottleneck adapter (Houlsby et al. 2019): ``z + U·relu(D·x)``.

    With a norm before it, as in Bapna & Firat (2019), ``z + U·relu(D·LN(x))``; with one behind it, as in
    the published code of Hyper-X, ``z + LN(U·relu(D·x))``. The placement decides what z and x are.
    """

    name = "bottleneck"

    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:
        """Describe a down and an up projection, and a layer norm before the first or after the second.

        The norm after them is generated with a plain gain: it starts near 0 and bounds what the adapter adds.
        """
        width = shape.width
        neutral = None if norm == "after" else 0.0  # a gain of 0 is enough; with both at 0 nothing could be trained
        tensors = {
            "down": TensorSpec((size, width), start=None),
            "down_bias": TensorSpec((size,), start=0.0),
            "up": TensorSpec((width, size), start=None, neutral=neutral),
            "up_bias": TensorSpec((width,), start=0.0, neutral=neutral),
        }
        more = {
            "none": {},
            "before": {"norm_weight": TensorSpec((width,), start=1.0), "norm_bias": TensorSpec((width,), start=0.0)},
            "after": {
                "out_norm_weight": TensorSpec((width,), start=0.0, neutral=0.0),
                "out_norm_bias": TensorSpec((width,), start=0.0, neutral=0.0),
            },
        }
        return tensors | more[norm]

    def size_of(self, shapes: Shapes) -> int:
        """Return the bottleneck size."""
        return shapes.get("down", (0,))[0]

    def up_projections(self, names: Iterable[str]) -> list[str]:
        """Name the up projection."""
        return [name for name in names if name == "up"]

    def norm_of(self, tensors: Mapping[str, object]) -> Norm:
        """Return which layer norm there is."""
        return "before" if "norm_weight" in tensors else "after" if "out_norm_weight" in tensors else "none"

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:  # noqa: ARG002
        """Add the adapter's output to the hidden states."""
        if "norm_weight" in tensors:
            input_BTD = layer_norm(input_BTD, tensors["norm_weight"], tensors["norm_bias"])
        inner = torch.relu(linear(input_BTD, tensors["down"], tensors["down_bias"]))
        added_BTE = linear(inner, tensors["up"], tensors["up_bias"])
        if "out_norm_weight" in tensors:
            added_BTE = layer_norm(added_BTE, tensors["out_norm_weight"], tensors["out_norm_bias"])
        return output_BTE + added_BTE


class Lora(ProjectionBlock):
    """LoRA on linear layers (Hu et al. 2021, eq. 3): ``W x + α/r · B A x``, with ``α/r`` multiplied into B."""

    name = "lora"
    options = ("targets", "alpha", "rslora")
    default_targets = ("q", "v", "qkv")

    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:  # noqa: ARG002
        """Describe a down projection A and an up projection B for each linear layer of the shape."""
        tensors = {}
        for projection, (size_in, size_out) in shape.projections.items():
            down, up = lora_names(projection)
            tensors[down] = TensorSpec((size, size_in), start=None)
            tensors[up] = TensorSpec((size_out, size), start=0.0, neutral=0.0)
        return tensors

    def size_of(self, shapes: Shapes) -> int:
        """Return the rank: the first dimension of the first tensor, a down projection."""
        return next(iter(shapes.values()), (0,))[0]

    def mistakes(self, settings: Mapping[str, Any]) -> list[str]:
        """Also list a scaling that is not positive."""
        alpha = settings.get("alpha")
        wrong = [] if alpha is None or alpha > 0 else [f"alpha: {alpha} is not positive."]
        return super().mistakes(settings) + wrong

    def scaled(self, tensors: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
        """Multiply the up projections by a factor."""
        names = self.up_projections(tensors) if factor != 1.0 else []
        return {name: tensor * factor if name in names else tensor for name, tensor in tensors.items()}

    def up_projections(self, names: Iterable[str]) -> list[str]:
        """Name the up projections of all linear layers."""
        return [lora_names(name)[1] for name in self.projections(names)]

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:
        """Add the low-rank product to the output of the linear layer."""
        down, up = lora_names(place)
        return output_BTE + linear(linear(input_BTD, tensors[down]), tensors[up])


class Invertible(BlockKind):
    """The invertible adapter of MAD-X (Pfeiffer et al. 2020) on the embeddings, inverted before the vocabulary.

    It is a NICE coupling (Dinh et al. 2015): each half of a hidden state gets a function of the other half added, which
    can be subtracted again exactly, whatever the function is.
    """

    name = "invertible"
    in_layers = False

    def tensors(self, shape: BackboneShape, size: int = 0, *, norm: Norm = "none") -> TensorSpecs:  # noqa: ARG002
        """Describe two subnetworks F and G, each ``D/2 → D/4 → D/2``."""
        if shape.width % 4:
            raise BackboneError(
                f"invertible adapter: width {shape.width} is not a multiple of 4. Use `invertible: false`."
            )
        # With F = G = 0 the coupling is the identity, so the output matrices have neutral values, and their biases too.
        half, quarter = shape.width // 2, shape.width // 4
        tensors: dict[str, TensorSpec] = {}
        for net in ("f", "g"):
            tensors |= {
                f"{net}_in": TensorSpec((quarter, half), start=None),
                f"{net}_in_bias": TensorSpec((quarter,), start=0.0),
                f"{net}_out": TensorSpec((half, quarter), start=None, neutral=0.0),
                f"{net}_out_bias": TensorSpec((half,), start=0.0, neutral=0.0),
            }
        return tensors

    def size_of(self, shapes: Shapes) -> int:  # noqa: ARG002 - its size follows from the backbone's
        """Return 0: the block has no size of its own."""
        return 0

    def placements(self, shape: BackboneShape) -> tuple[str, ...]:  # noqa: ARG002
        """Return ``embedding``, the only placement."""
        return ("embedding",)

    def sites(self, shape: BackboneShape) -> tuple[Site, ...]:
        """Return one site for each stack."""
        return tuple(Site(stack, 0) for stack in shape.stacks)

    def places(self, block: Block) -> list[tuple[str, int]]:
        """Return the input of the first stack, and the output of the last stack, each with that stack's tensors."""
        return [("embedding", 0), ("unembedding", len(block.sites) - 1)]

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:  # noqa: ARG002
        """Apply the adapter to the embeddings, or its inverse before the output projection."""
        return (couple if place == "embedding" else uncouple)(output_BTE, tensors)

    def flops(self, block: Block, num_stacks: int) -> int:
        """Count the operations of one set of matrices at the input and one at the output."""
        return 2 * 2 * num_matrix_elements(block) // len(block.sites) // num_stacks


class Classifier(BlockKind):
    """A linear classifier that is generated for each condition and replaces the task's head."""

    name = "classifier"
    in_layers = False

    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:  # noqa: ARG002
        """Describe weight and bias of the labels."""
        return {"weight": TensorSpec((size, shape.width), start=None), "bias": TensorSpec((size,), start=0.0)}

    def size_of(self, shapes: Shapes) -> int:
        """Return the number of labels."""
        return shapes.get("bias", (0,))[-1]

    def placements(self, shape: BackboneShape) -> tuple[str, ...]:  # noqa: ARG002
        """Return ``head``, the only placement."""
        return ("head",)

    def sites(self, shape: BackboneShape) -> tuple[Site, ...]:  # noqa: ARG002
        """Return the site of the head."""
        return (Site("head", 0),)

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:  # noqa: ARG002
        """Compute the logits of the labels."""
        return linear(input_BTD, tensors["weight"], tensors["bias"])

    def make(self, generated_KSED: Tensor, absent_KE: Tensor) -> Block:
        """Build a block from generated numbers.

        Args:
            generated_KSED: The weights of each label, followed by its bias.
            absent_KE: Labels that a condition's task does not have; they get a bias of minus infinity.
        """
        # Tasks of a batch have label sets of different sizes, and one tensor holds the largest.
        bias = generated_KSED[..., -1].masked_fill(absent_KE[:, None], float("-inf"))
        return Block(self.name, "head", (Site("head", 0),), {"weight": generated_KSED[..., :-1], "bias": bias})

    def flops(self, block: Block, num_stacks: int) -> int:  # noqa: ARG002 - it reads the last stack alone
        """Count the operations of its matrix, once per token."""
        return 2 * num_matrix_elements(block)

    def finite(self, name: str, tensor: Tensor) -> Tensor:
        """Return whether each value is finite; a bias may be minus infinity, for labels of other tasks."""
        return tensor.isfinite() | (tensor == -torch.inf) if name == "bias" else tensor.isfinite()


BLOCKS: Registry[BlockKind] = Registry("block")


def register_block(kind: BlockKind) -> BlockKind:
    """Register a kind of block under its name."""
    return BLOCKS.register(kind.name, kind)


LORA = Lora()
for _kind in (Bottleneck(), LORA, Invertible(), Classifier()):
    register_block(_kind)


def input_of(projection: str) -> str:
    """Name the place at the input of a linear layer."""
    return f"{projection}.input"


def projection_of(place: str) -> str:
    """Return the linear layer of a place at its input or its output."""
    return place.removesuffix(".input")


def shapes_of(tensors: TensorSpecs) -> Shapes:
    """Return the shapes of tensors by name."""
    return {name: spec.shape for name, spec in tensors.items()}


def xavier_std(shape: tuple[int, ...]) -> float:
    """Compute the standard deviation of a freshly initialised ``[..., out, in]`` matrix."""
    return float((2.0 / (shape[-1] + shape[-2])) ** 0.5)


def num_matrix_elements(block: Block) -> int:
    """Count the elements of a block's matrices over all sites, for one condition."""
    return sum(tensor[0].numel() for tensor in block.tensors.values() if tensor.dim() == 4)


def lora_names(projection: str) -> tuple[str, str]:
    """Name the down and the up projection of LoRA on a linear layer."""
    return f"{projection}_down", f"{projection}_up"


def couple(hidden_BTD: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Apply an invertible adapter: ``o1 = F(e2) + e1; o2 = G(o1) + e2``."""
    first_BTE, second_BTE = hidden_BTD.chunk(2, dim=-1)
    first_BTE = _subnet(second_BTE, tensors, net="f") + first_BTE
    second_BTE = _subnet(first_BTE, tensors, net="g") + second_BTE
    return torch.cat([first_BTE, second_BTE], dim=-1)


def uncouple(hidden_BTD: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Apply the inverse of `couple`: ``e2 = o2 - G(o1); e1 = o1 - F(e2)``, the last change first."""
    first_BTE, second_BTE = hidden_BTD.chunk(2, dim=-1)
    second_BTE = second_BTE - _subnet(first_BTE, tensors, net="g")
    first_BTE = first_BTE - _subnet(second_BTE, tensors, net="f")
    return torch.cat([first_BTE, second_BTE], dim=-1)


def _subnet(hidden_BTE: Tensor, tensors: Mapping[str, Tensor], *, net: str) -> Tensor:
    inner = torch.relu(linear(hidden_BTE, tensors[f"{net}_in"], tensors[f"{net}_in_bias"]))
    return linear(inner, tensors[f"{net}_out"], tensors[f"{net}_out_bias"])
