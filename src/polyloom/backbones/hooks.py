"""The hooks: one small callable per place, all reading what the listener holds for this forward pass."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyloom.errors import BusyError, RowError
from polyloom.nn.bottleneck import bottleneck
from polyloom.nn.invertible import couple, uncouple
from polyloom.nn.lora import lora
from polyloom.weights import Block, Site, Weights

BUSY = (
    "backbone: already in use by another call. One backbone serves one forward pass at a time: put rows of several "
    "languages into one batch, or give each thread its own copy (copy.deepcopy(backbone))."
)


class Active(NamedTuple):
    """What is applied now: tensors by place and site, how many rows every site must see, and for which thread."""

    at: Mapping[tuple[str, Site], list[dict[str, Tensor]]]
    num_rows: int
    expand: int
    thread: int


class Listener:
    """Shared by the hooks of one backbone: holds the weights of the running forward pass."""

    def __init__(self) -> None:
        self.active: Active | None = None
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, object]) -> "Listener":
        copy = Listener()  # a copied backbone listens for itself, never for its original
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> tuple[type["Listener"], tuple[()]]:
        return Listener, ()

    def acquire(self) -> None:
        """Refuse a second use at once."""
        if not self._lock.acquire(blocking=False):
            raise BusyError(BUSY)

    def release(self) -> None:
        """End a use."""
        self._lock.release()

    def listen(self, weights: Weights, *, num_rows: int, expand: int) -> None:
        """Lay the weights out by place and site."""
        at: dict[tuple[str, Site], list[dict[str, Tensor]]] = {}
        for block in weights.blocks:
            tensors = block.by_site()
            for place, index in _places(block):
                at.setdefault((place, block.sites[index]), []).append(_apart(tensors[index]))
        self.active = Active(at, num_rows, expand, current_thread())

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts for a checkpointed layer: nothing in forward, the same weights again in recomputation."""
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
    """The running thread; in compiled code weights are values of the graph, which no other thread can see."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def _places(block: Block) -> list[tuple[str, int]]:
    """Where a block acts, and with which of its sites' tensors."""
    if block.kind == "invertible":  # enters with the first stack's language, leaves with the last's
        return [("embedding", 0), ("unembedding", len(block.sites) - 1)]
    return [(block.placement, index) for index in range(len(block.sites))]


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """In bf16, a site's tensors side by side in memory: products of strided matrices take five times as long there."""
    return {name: t.contiguous() if t.dtype == torch.bfloat16 else t for name, t in tensors.items()}


class Hook:
    """A place at a site. Subclasses say what happens there."""

    def __init__(self, listener: Listener, site: Site, place: str) -> None:
        self.listener = listener
        self.site = site
        self.place = place

    def found(self) -> list[dict[str, Tensor]]:
        """The sets of weights for this place, in the order in which they act."""
        active = self.listener.active
        if active is None:
            return []
        if active.thread != current_thread():
            raise BusyError(BUSY)
        return active.at.get((self.place, self.site), [])

    def rows(self, hidden: Tensor) -> Tensor:
        """Check that the rows are those the weights were made for; beams of a row are laid side by side."""
        active = self.listener.active
        assert active is not None
        expand = active.expand if self.site.stack == "decoder" else 1
        if hidden.dim() != 3 or hidden.shape[0] != active.num_rows * expand:
            raise RowError(
                f"{self.site}: hidden states of shape {tuple(hidden.shape)} for {active.num_rows} rows × {expand}. "
                "The batch given to the model and the conditions must have the same rows in the same order."
            )
        return hidden.reshape(active.num_rows, -1, hidden.shape[-1]) if expand > 1 else hidden


class AfterLayer(Hook):
    """Placements ``layer`` and ``output``: ``h + A(h)``."""

    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        found = self.found()
        if not found:
            return output
        hidden = output[0] if isinstance(output, tuple) else output
        rows = self.rows(hidden)
        for weights in found:
            rows = rows + bottleneck(rows, weights)
        hidden = rows.reshape(hidden.shape)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


class BeforeNorm(Hook):
    """Placement ``norm`` (Pfeiffer): with s = h + x the norm's input, ``s + A(LN(s))`` for each adapter in turn."""

    def __init__(self, listener: Listener, site: Site) -> None:
        super().__init__(listener, site, "norm")

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        found = self.found()
        if not found:
            return None
        hidden = args[0]
        rows = self.rows(hidden)
        for weights in found:
            rows = rows + bottleneck(module.forward(rows), weights)
        return (rows.reshape(hidden.shape), *args[1:])


class OnProjection(Hook):
    """LoRA: adds to the output of a projection what it makes of the projection's input."""

    def __init__(self, listener: Listener, site: Site, projection: str) -> None:
        super().__init__(listener, site, "attention")
        self.projection = projection

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        for weights in self.found():
            added = lora(self.rows(args[0]), weights, projection=self.projection)
            output = output + added.reshape(output.shape)
        return output


class BeforeStack(Hook):
    """Invertible adapters on what enters a stack: the output of the embeddings."""

    def __init__(self, listener: Listener, site: Site) -> None:
        super().__init__(listener, site, "embedding")

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self.found()
        if not found:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        rows = self.rows(hidden)
        for weights in found:
            rows = couple(rows, weights)
        hidden = rows.reshape(hidden.shape)
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})


class BeforeHead(Hook):
    """The inverse of the invertible adapters, between a head's transform and its projection to the vocabulary."""

    def __init__(self, listener: Listener, stack: str) -> None:
        super().__init__(listener, Site(stack, 0), "unembedding")

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        found = self.found()
        if not found:
            return None
        rows = self.rows(args[0])
        for weights in reversed(found):
            rows = uncouple(rows, weights)
        return (rows.reshape(args[0].shape), *args[1:])
