"""Print the memory of a device in training: a table of its parts, by strategy."""

from collections.abc import Sequence

from rich.console import Console

from polyloom.cli.render.plan import CHOSEN, MAX_WIDTH
from polyloom.cli.render.tables import aligned
from polyloom.workflows.planning import DeviceMemory

_PARTS = {
    "backbone": "backbone",
    "gathered": "gathered from other devices",
    "learned": "learned, gradients, Adam",
    "generated": "weights of the conditions",
    "activations": "activations",
    "layer": "one layer, recomputed",
    "logits": "logits",
    "total": "total",
}


def gibibytes(value: int) -> str:
    """Format a number of bytes in GiB."""
    return f"{value / 2**30:,.2f}"


def render_memory(memory: Sequence[DeviceMemory], console: Console) -> None:
    """Print the memory of a device with each setting."""
    width, first = min(console.width, MAX_WIDTH), memory[0]
    micro_batch = f"{first.rows} {'row' if first.rows == 1 else 'rows'} of {first.length:,} tokens"
    console.print()
    console.print(f"Memory per device in GiB, for a micro-batch of {micro_batch} on each.", width=width)
    console.print()
    columns = ["part", *map(_setting, memory)]
    rows = [[label, *(gibibytes(getattr(setting, part)) for setting in memory)] for part, label in _PARTS.items()]
    console.print(aligned(columns, rows), width=width, soft_wrap=True)
    console.print(
        "The total has the larger of the two parts above it, which are not needed at the same time. Memory of the "
        "device's driver and of its allocator comes on top.",
        width=width,
    )


def _setting(memory: DeviceMemory) -> str:
    name = f"{memory.strategy}, recompute" if memory.gradient_checkpointing else memory.strategy
    return f"{CHOSEN} {name}" if memory.chosen else name
