"""Forward hooks that apply blocks: one per place in the backbone, with the weights of the running forward pass."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyloom.backbones.layout import Layout, PlacedBlock
from polyloom.errors import BusyError, RowError
from polyloom.nn.blocks import input_of
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
        return ForwardState, ()  # a lock cannot be pickled, and no forward pass runs in a copy

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
        """Use the weights of a forward pass again. The backward pass may run after their context was closed."""
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

    def expect_rows(self, tensor: Tensor) -> tuple[int, int]:
        """Return the number of rows and of copies of each; raise an error unless a tensor has as many."""
        active = self.state.active
        assert active is not None
        num_rows, expand = active.layout.num_rows, active.expand if self.site.stack == "decoder" else 1
        # `len` of a tensor would fix the size of the batch in exported graphs.
        if tensor.dim() < 3 or tensor.shape[0] != num_rows * expand:
            raise RowError(
                f"{self.site}: hidden states of shape {tuple(tensor.shape)} for {num_rows} rows × {expand}. "
                "The batch given to the model and the conditions must have the same rows in the same order."
            )
        return num_rows, expand

    def rows(self, hidden: Tensor) -> Tensor:
        """Return hidden states with one sequence per row: the beams of a row, which are adjacent, become one.

        So each row's weights apply to all its beams without a copy: ``[B·k, T, D]`` is read as ``[B, k·T, D]``.
        """
        num_rows, expand = self.expect_rows(hidden)
        return hidden.reshape(num_rows, -1, hidden.shape[-1]) if expand > 1 else hidden

    def change(self, hidden: Tensor) -> Tensor:
        """Apply the blocks one after the other to hidden states that they both read and change."""
        rows = self.rows(hidden)
        for block in self.blocks():
            rows = block(rows, rows, place=self.place)
        return rows.reshape(hidden.shape)


class AfterLayer(Hook):
    """Placements ``layer`` and ``output``, after a layer and after its feed-forward sublayer."""

    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if not self.blocks():
            return output
        if isinstance(output, tuple):  # some layers also return what they cached or the weights of their attention
            return (self.change(output[0]), *output[1:])
        return self.change(output)


class BeforeNorm(Hook):
    """Placement ``norm`` (Pfeiffer et al. 2021): blocks change the norm's input s and read ``LN(s)``.

    What the norm then computes is ``LN(s + A(LN(s)))``, as in the paper's published code. A second block reads the norm
    of what the first one left.
    """

    def __init__(self, state: ForwardState, site: Site) -> None:
        super().__init__(state, site, "norm")

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        blocks = self.blocks()
        if not blocks:
            return None
        hidden = args[0]
        rows = self.rows(hidden)
        for block in blocks:
            rows = block(rows, module.forward(rows), place=self.place)  # `forward` alone: a call would come back here
        return (rows.reshape(hidden.shape), *args[1:])


class BeforeProjection(Hook):
    """The input of a linear layer. It runs before `AfterProjection`, whose blocks read the changed input."""

    def __init__(self, state: ForwardState, site: Site, projection: str) -> None:
        super().__init__(state, site, input_of(projection))

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (self.change(args[0]), *args[1:]) if self.blocks() else None


class AfterProjection(Hook):
    """The output of a linear layer, which blocks change. They read its input."""

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
        if not self.blocks():
            return None
        if args:
            return (self.change(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self.change(kwargs["hidden_states"])}


class BeforeHead(Hook):
    """The inverse of the invertible adapters, between a head's transform and its projection to the vocabulary."""

    def __init__(self, state: ForwardState, stack: str) -> None:
        super().__init__(state, Site(stack, 0), "unembedding")

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        blocks = self.blocks()
        if not blocks:
            return None
        rows = self.rows(args[0])
        for block in reversed(blocks):  # the last one to change the embeddings is the first to be undone
            rows = block(rows, rows, place=self.place)
        return (rows.reshape(args[0].shape), *args[1:])
