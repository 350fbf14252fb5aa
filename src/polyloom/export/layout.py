"""Check that a block's tensors fit a backbone."""

from polyloom.errors import CheckpointError, suggest
from polyloom.nn.blocks import BLOCKS, shapes_of
from polyloom.registry import HINT
from polyloom.weights import BackboneShape, Block, Shapes


def check_block(block: Block, shape: BackboneShape, place: str) -> None:
    """Raise an error for a block that does not fit a backbone of this shape."""
    if block.kind not in BLOCKS:
        raise CheckpointError(f"{place}: unknown kind of block {block.kind!r}. {suggest(block.kind, BLOCKS)} {HINT}")
    kind, shapes = BLOCKS[block.kind], {name: tuple(tensor.shape[2:]) for name, tensor in block.tensors.items()}
    if block.placement not in kind.placements(shape):
        raise CheckpointError(
            f"{place}: a {block.kind} cannot be placed at {block.placement!r} of {shape.family}. "
            f"Known: {', '.join(kind.placements(shape))}."
        )
    if not set(block.sites) <= set(kind.sites(shape)) or len(set(block.sites)) != len(block.sites):
        raise CheckpointError(f"{place}: a {block.kind} for layers that this {shape.family} does not have.")
    expected = shapes_of(kind.specs_like(shapes, shape))
    if shapes != dict(expected):
        raise CheckpointError(
            f"{place}: the tensors of a {block.kind} are {_text(shapes)}; on this {shape.family} they should be "
            f"{_text(expected)}."
        )


def _text(shapes: Shapes) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in sorted(shapes.items()))
