"""Block kinds: the tensors of a block, their initialisation, where the block acts, what it computes, its cost.

Nothing outside this file interprets the names of a block's tensors, except the formats that exchange them with other
libraries (`polyloom.export`). A new kind is a subclass of `BlockKind`, registered with `register_block`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from polyloom.errors import BackboneError, ConfigError
from polyloom.nn.linear import layer_norm, linear
from polyloom.registry import Registry
from polyloom.weights import BackboneShape, Block, Shapes, Site

SMALL_STD = 0.01 / 3**0.5  # of generated biases and layer norms: the standard deviation of U(-0.01, 0.01)


class TensorSpec(NamedTuple):
    """One tensor of a block at one site.

    Attributes:
        shape: Its shape.
        start: Initial value of all elements of a stored tensor. ``None``: random numbers, drawn by the method's
            initialiser. Generated tensors have this mean at initialisation (0 for ``None``).
        neutral: Value with which the block has no effect, if all tensors with such a value have it. ``None``: the
            tensor may have any value.
    """

    shape: tuple[int, ...]
    start: float | None
    neutral: float | None = None

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
    """Base class of block kinds.

    Attributes:
        name: Name of the kind in recipes and files.
        in_layers: Whether the block can act in every layer, so that methods accept it as ``block``. Default: true.
    """

    name: ClassVar[str]
    in_layers: ClassVar[bool] = True

    @abstractmethod
    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:
        """Describe the tensors at one site.

        Args:
            shape: Shape of the backbone.
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

    def placements(self, shape: BackboneShape) -> tuple[str, ...]:
        """List the placements that the kind allows; those of the layers by default."""
        return shape.placements

    def sites(self, shape: BackboneShape) -> tuple[Site, ...]:
        """List the sites that the kind allows; all layers by default."""
        return shape.sites

    def choose_placement(self, shape: BackboneShape, wanted: str | None, preferred: Sequence[str]) -> str:
        """Return the wanted placement, or the first preferred one that the backbone has."""
        return shape.choose_placement(wanted, preferred)

    def places(self, block: Block) -> list[tuple[str, int]]:
        """List the places where a block acts, each with the index of the site whose tensors are used there."""
        return [(block.placement, index) for index in range(len(block.sites))]

    @abstractmethod
    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:
        """Apply the block and return the new value of `output_BTE`.

        Args:
            output_BTE: The tensor that the block changes: hidden states, or the output of a projection.
            input_BTD: The input of the block: the hidden states (layer-normed at the placement ``norm``), or the input
                of a projection.
            tensors: One set for all rows, or one set per row.
            place: The placement, or the name of the projection.
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


class Bottleneck(BlockKind):
    """A bottleneck adapter: ``z + U·relu(D·x)``; with a norm ``z + U·relu(D·LN(x))`` or ``z + LN(U·relu(D·x))``."""

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


class Lora(BlockKind):
    """LoRA on linear layers of a layer, in PEFT's form with ``lora_alpha = r``."""

    name = "lora"

    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:  # noqa: ARG002
        """Describe a down and an up projection for each linear layer of the shape."""
        tensors = {}
        for projection, (size_in, size_out) in shape.projections.items():
            down, up = lora_names(projection)
            tensors[down] = TensorSpec((size, size_in), start=None)
            tensors[up] = TensorSpec((size_out, size), start=0.0, neutral=0.0)
        return tensors

    def size_of(self, shapes: Shapes) -> int:
        """Return the rank."""
        return next(iter(shapes.values()), (0,))[0]

    def specs_like(self, shapes: Shapes, shape: BackboneShape) -> TensorSpecs:
        """Describe LoRA of the same rank on the same linear layers, as far as the backbone has them."""
        names = [name for name in lora_projections(shapes) if name in shape.projections]
        return super().specs_like(shapes, shape.with_targets(names) if names else shape)

    def placements(self, shape: BackboneShape) -> tuple[str, ...]:  # noqa: ARG002
        """Return ``projections``: LoRA acts on linear layers."""
        return ("projections",)

    def choose_placement(self, shape: BackboneShape, wanted: str | None, preferred: Sequence[str]) -> str:  # noqa: ARG002
        """Return ``projections``; raise an error if a placement is set."""
        if wanted is not None:
            raise ConfigError("method", ["method.placement: LoRA always acts on projections. Leave the setting out."])
        return "projections"

    def scaled(self, tensors: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
        """Multiply the up projections by a factor."""
        up_projections = self.up_projections(tensors) if factor != 1.0 else []
        return {name: tensor * factor if name in up_projections else tensor for name, tensor in tensors.items()}

    def up_projections(self, names: Iterable[str]) -> list[str]:
        """Name the up projections of all linear layers."""
        return [lora_names(name)[1] for name in lora_projections(names)]

    def places(self, block: Block) -> list[tuple[str, int]]:
        """List the linear layers that it adapts, at every site."""
        return [(name, index) for name in lora_projections(block.tensors) for index in range(len(block.sites))]

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:
        """Add the low-rank product to the output of the projection."""
        down, up = lora_names(place)
        return output_BTE + linear(linear(input_BTD, tensors[down]), tensors[up])


class Invertible(BlockKind):
    """The invertible adapter of MAD-X (NICE coupling) on the embeddings, inverted before the output projection."""

    name = "invertible"
    in_layers = False

    def tensors(self, shape: BackboneShape, size: int = 0, *, norm: Norm = "none") -> TensorSpecs:  # noqa: ARG002
        """Describe two subnetworks F and G, each ``D/2 → D/4 → D/2``."""
        if shape.width % 4:
            raise BackboneError(
                f"invertible adapter: width {shape.width} is not a multiple of 4. Use `invertible: false`."
            )
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


for _kind in (Bottleneck(), Lora(), Invertible(), Classifier()):
    register_block(_kind)


def shapes_of(tensors: TensorSpecs) -> Shapes:
    """Return the shapes of tensors by name."""
    return {name: spec.shape for name, spec in tensors.items()}


def xavier_std(shape: tuple[int, ...]) -> float:
    """Compute the standard deviation of a freshly initialised ``[..., out, in]`` matrix."""
    return float((2.0 / (shape[-1] + shape[-2])) ** 0.5)


def num_matrix_elements(block: Block) -> int:
    """Count the elements of a block's matrices over all sites, for one condition."""
    return sum(tensor[0].numel() for tensor in block.tensors.values() if tensor.dim() == 4)


def lora_projections(names: Iterable[str]) -> list[str]:
    """Name the linear layers that LoRA adapts, from the names of its tensors."""
    return [name.removesuffix("_down") for name in names if name.endswith("_down")]


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
    """Apply the inverse of `couple`."""
    first_BTE, second_BTE = hidden_BTD.chunk(2, dim=-1)
    second_BTE = second_BTE - _subnet(first_BTE, tensors, net="g")
    first_BTE = first_BTE - _subnet(second_BTE, tensors, net="f")
    return torch.cat([first_BTE, second_BTE], dim=-1)


def _subnet(hidden_BTE: Tensor, tensors: Mapping[str, Tensor], *, net: str) -> Tensor:
    inner = torch.relu(linear(hidden_BTE, tensors[f"{net}_in"], tensors[f"{net}_in_bias"]))
    return linear(inner, tensors[f"{net}_out"], tensors[f"{net}_out_bias"])
