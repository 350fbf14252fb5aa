"""What the tensors of a block must look like on a backbone; what does not is refused before it is used."""

from polyloom.errors import CheckpointError
from polyloom.nn.bottleneck import bottleneck_shapes
from polyloom.nn.invertible import invertible_shapes
from polyloom.nn.lora import lora_shapes
from polyloom.weights import BackboneShape, Block, Shapes, Site


def check_block(block: Block, shape: BackboneShape, place: str) -> None:
    """Refuse a block that a backbone of this shape cannot apply."""
    found = {name: tuple(tensor.shape[2:]) for name, tensor in block.tensors.items()}
    wanted, placements = _wanted(block, found, shape)
    if block.placement not in placements:
        raise CheckpointError(
            f"{place}: a {block.kind} cannot sit at {block.placement!r} of {shape.family}. "
            f"Known: {', '.join(placements)}."
        )
    sites = {Site(stack, 0) for stack in shape.stacks} if block.kind == "invertible" else set(shape.sites)
    if block.kind != "classifier" and not (set(block.sites) <= sites and len(set(block.sites)) == len(block.sites)):
        raise CheckpointError(f"{place}: a {block.kind} for layers that this {shape.family} does not have.")
    if found != dict(wanted):
        raise CheckpointError(
            f"{place}: the tensors of a {block.kind} are {_text(found)}; on this {shape.family} they should be "
            f"{_text(wanted)}."
        )


def _wanted(block: Block, found: Shapes, shape: BackboneShape) -> tuple[Shapes, tuple[str, ...]]:
    """Shapes of the tensors at a site, given those found; where such a block may act."""
    if block.kind == "bottleneck":
        size = found.get("down", (0,))[0]
        return bottleneck_shapes(shape.width, size, norm="norm_weight" in found), shape.placements
    if block.kind == "lora":
        size = next(iter(found.values()), (0,))[0]
        return lora_shapes(shape.projections, size), ("attention",)
    if block.kind == "invertible":
        return invertible_shapes(shape.width), ("embedding",)
    if block.kind == "classifier":
        count = found.get("bias", (0,))[-1]
        return {"weight": (count, shape.width), "bias": (count,)}, ("head",)
    return {}, ("nowhere",)


def _text(shapes: Shapes) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in sorted(shapes.items()))
