"""Forward hooks that apply blocks: one per place in the backbone, with the weights of the running forward pass."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyloom.backbones.layout import Layout, PlacedBlock
from polyloom.errors import BusyError, RowError
from polyloom.weights import Site

BUSY = (
    "backbone: already in use by another call. One backbone runs one forward pass at a time: put rows of several "
    "languages into one batch, or give each thread its own copy (copy.deepcopy(backbone))."
)


class Active(NamedTuple):
    """The state of a running forward pass.

    Attributes:
        layout: The weights, and the number of rows of the batch, which every site must have.
        expand: Number of decoder rows per row of the batch, such as beams.
        thread: The thread that runs it.
    """

    layout: Layout
    expand: int
    thread: int


class ForwardState:
    """The weights of the running forward pass, shared by all hooks of one backbone."""

    def __init__(self) -> None:
        self.active: Active | None = None
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, object]) -> "ForwardState":
        copy = ForwardState()  # a copied backbone has a state of its own
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> tuple[type["ForwardState"], tuple[()]]:
        return ForwardState, ()

    def acquire(self) -> None:
        """Lock the backbone for one use; raise `BusyError` if it is in use."""
        if not self._lock.acquire(blocking=False):
            raise BusyError(BUSY)

    def release(self) -> None:
        """Unlock the backbone."""
        self._lock.release()

    def set_layout(self, layout: Layout, *, expand: int) -> None:
        """Set the weights of the forward pass."""
        self.active = Active(layout, expand, current_thread())

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of a checkpointed layer: none in forward, the same weights in recomputation."""
        return nullcontext(), self._again(self.active)

    @contextmanager
    def _again(self, active: Active | None) -> Iterator[None]:
        if active is self.active:  # the backward pass runs while the weights are still in use
            yield
            return
        self.acquire()
        self.active = active and active._replace(thread=current_thread())  # on GPUs, autograd has threads of its own
        try:
            yield
        finally:
            self.active = None
            self.release()


def current_thread() -> int:
    """Return the running thread; 0 in compiled code, whose weights are values of the graph that no thread shares."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


class Hook:
    """Base class of hooks at one place of a site. Subclasses choose the tensor that blocks change and their input."""

    def __init__(self, state: ForwardState, site: Site, place: str) -> None:
        self.state = state
        self.site = site
        self.place = place

    def blocks(self) -> list[PlacedBlock]:
        """List the blocks of this place, in the order in which they are applied."""
        active = self.state.active
        if active is None:
            return []
        if active.thread != current_thread():
            raise BusyError(BUSY)
        return active.layout.at.get((self.place, self.site), [])

    def rows(self, hidden: Tensor) -> Tensor:
        """Check that there are as many rows as the weights are for; the beams of a row become one sequence."""
        active = self.state.active
        assert active is not None
        num_rows, expand = active.layout.num_rows, active.expand if self.site.stack == "decoder" else 1
        if hidden.dim() != 3 or hidden.shape[0] != num_rows * expand:
            raise RowError(
                f"{self.site}: hidden states of shape {tuple(hidden.shape)} for {num_rows} rows × {expand}. "
                "The batch given to the model and the conditions must have the same rows in the same order."
            )
        return hidden.reshape(num_rows, -1, hidden.shape[-1]) if expand > 1 else hidden


class AfterLayer(Hook):
    """Placements ``layer`` and ``output``: blocks read and change the hidden states."""

    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        blocks = self.blocks()
        if not blocks:
            return output
        hidden = output[0] if isinstance(output, tuple) else output
        rows = self.rows(hidden)
        for block in blocks:
            rows = block(rows, rows, place=self.place)
        hidden = rows.reshape(hidden.shape)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


class BeforeNorm(Hook):
    """Placement ``norm`` (Pfeiffer): blocks change the norm's input s and read ``LN(s)``, one after the other."""

    def __init__(self, state: ForwardState, site: Site) -> None:
        super().__init__(state, site, "norm")

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        blocks = self.blocks()
        if not blocks:
            return None
        hidden = args[0]
        rows = self.rows(hidden)
        for block in blocks:
            rows = block(rows, module.forward(rows), place=self.place)
        return (rows.reshape(hidden.shape), *args[1:])


class OnProjection(Hook):
    """Placement ``projections``: blocks change the output of a linear layer, which is the place, and read its input."""

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        for block in self.blocks():
            rows = block(self.rows(output), self.rows(args[0]), place=self.place)
            output = rows.reshape(output.shape)
        return output


class BeforeStack(Hook):
    """Placement ``embedding``: blocks change what enters a stack, the output of the embeddings."""

    def __init__(self, state: ForwardState, site: Site) -> None:
        super().__init__(state, site, "embedding")

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        blocks = self.blocks()
        if not blocks:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        rows = self.rows(hidden)
        for block in blocks:
            rows = block(rows, rows, place=self.place)
        hidden = rows.reshape(hidden.shape)
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})


class BeforeHead(Hook):
    """The inverse of the invertible adapters, between a head's transform and its projection to the vocabulary."""

    def __init__(self, state: ForwardState, stack: str) -> None:
        super().__init__(state, Site(stack, 0), "unembedding")

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        blocks = self.blocks()
        if not blocks:
            return None
        rows = self.rows(args[0])
        for block in reversed(blocks):
            rows = block(rows, rows, place=self.place)
        return (rows.reshape(args[0].shape), *args[1:])
