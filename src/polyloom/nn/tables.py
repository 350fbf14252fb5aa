"""Tables to which rows can be added: embeddings, and banks of stored adapters."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from polyloom.nn.blocks import TensorSpecs, xavier_std
from polyloom.weights import Shapes

Initializer = Callable[[str, Tensor], object]


class GrowingTable(nn.Module):
    """A set of named parameters with one row per language, task or pair, to which rows can be added.

    Each parameter is a view of the first rows of a larger buffer, which doubles when it is full. Appending a row copies
    only that row (amortised), and the parameter has exactly the rows in use when it is counted, saved or trained.

    Args:
        keyed_by: Meaning of a row: ``language``, ``task``, ``pair``, or ``fixed`` for tables without added rows.
        num_rows: Initial number of rows.
        shapes: Shape of a row, by parameter name.
        init: Initialiser, called with a parameter's name and its new rows.

    Attributes:
        rows_per_key: Rows of one language, task or pair. Default: 1.
    """

    trainable = True
    rows_per_key = 1

    def __init__(self, keyed_by: str, num_rows: int, *, shapes: Shapes, init: Initializer) -> None:
        super().__init__()
        self.keyed_by = keyed_by
        self.init = init
        self.names = tuple(shapes)
        self._reserve: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            table = torch.empty(num_rows, *shape)
            init(name, table)
            self.register_parameter(name, nn.Parameter(table))

    @property
    def num_rows(self) -> int:
        """Number of rows in use."""
        return len(self.get_parameter(self.names[0]))

    @torch.no_grad()
    def append(self, like: int | Tensor | None = None) -> None:
        """Add one row, initialised as `init_last_row` does."""
        for name in self.names:
            parameter = self.get_parameter(name)
            used = len(parameter)
            reserve = self._reserve.get(name)
            # A new buffer is needed if the old one is full, or if the parameter is no view of it any more, as after
            # `model.to(device)` or `load_state_dict(assign=True)`.
            if reserve is None or len(reserve) == used or reserve.data_ptr() != parameter.data_ptr():
                reserve = parameter.new_empty(max(8, 2 * used), *parameter.shape[1:])
                reserve[:used] = parameter
                self._reserve[name] = reserve
            parameter.grad = None  # it has the old shape
            parameter.data = reserve[: used + 1]  # the same Parameter object, so optimizers and references stay valid
        self.init_last_row(like)

    @torch.no_grad()
    def init_last_row(self, like: int | Tensor | None) -> None:
        """Initialise the last row: with `init`, as a copy of row `like`, or as the mean of the rows `like`."""
        for name in self.names:
            parameter = self.get_parameter(name)
            if like is None:
                self.init(name, parameter[-1:])
            else:
                parameter[-1] = parameter[like].mean(0) if isinstance(like, Tensor) else parameter[like]


class GrowingEmbedding(GrowingTable):
    """An embedding table to which rows can be added."""

    def __init__(self, keyed_by: str, num_rows: int, *, size: int, init: Initializer) -> None:
        super().__init__(keyed_by, num_rows, shapes={"weight": (size,)}, init=init)

    def forward(self, rows: Tensor) -> Tensor:
        """Look up rows of any shape."""
        return nn.functional.embedding(rows, self.get_parameter("weight"))


class FixedEmbedding(GrowingEmbedding):
    """A table of fixed vectors, which are not trained: a row is zero until it is set."""

    trainable = False

    def __init__(self, keyed_by: str, num_rows: int, *, size: int) -> None:
        super().__init__(keyed_by, num_rows, size=size, init=lambda _name, table: nn.init.zeros_(table))


class Bank(GrowingTable):
    """A bank of stored weights: one parameter per name, ``[N, S, ...]`` for N keys and S sites.

    Attributes:
        sparse: Whether gradients are sparse: those of the rows that were used. See `sparse_gradients`.
    """

    sparse = False

    def __init__(self, keyed_by: str, num_rows: int, *, num_sites: int, shapes: Shapes, init: Initializer) -> None:
        super().__init__(
            keyed_by, num_rows, shapes={name: (num_sites, *shape) for name, shape in shapes.items()}, init=init
        )
        self.num_sites = num_sites

    def forward(self, rows_KS: Tensor) -> dict[str, Tensor]:
        """Look up the given row of every condition and site: ``{name: [K, S, ...]}``."""
        # With sparse gradients the U rows in use are selected first, each once: the gradient of this selection has U
        # rows, that of an `index_select` on the whole table has all N.
        sparse = self.sparse and torch.is_grad_enabled()
        if sparse:
            rows_U, rows_KS = torch.unique(rows_KS, return_inverse=True)

        # Row n at site s is row n · S + s of the flattened table, so one `index_select` finds all conditions and sites.
        sites_S = torch.arange(self.num_sites, device=rows_KS.device)
        flat = (rows_KS * self.num_sites + sites_S).flatten()
        selected = {}
        for name in self.names:
            table_NS: Tensor = self.get_parameter(name)
            if sparse:
                table_NS = _SelectRows.apply(table_NS, rows_U)  # type: ignore[no-untyped-call]
            tensor = table_NS.flatten(0, 1).index_select(0, flat)
            selected[name] = tensor.view(*rows_KS.shape, *table_NS.shape[2:])
        return selected


class _SelectRows(torch.autograd.Function):
    """Selects rows of a table. The gradient is a sparse tensor of these rows."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return sparse_rows(rows, gradient, ctx.shape), None


def sparse_rows(rows_U: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """Return a sparse tensor with values in some rows, which are sorted and distinct."""
    return torch.sparse_coo_tensor(rows_U[None], values, shape, is_coalesced=True, check_invariants=False)


@contextmanager
def sparse_gradients(banks: Sequence[Bank]) -> Iterator[None]:
    """Give the parameters of banks sparse gradients, so that a step does not cost more the more rows a bank has.

    Optimizers of torch take dense gradients only; `RowAdam` takes both.
    """
    for bank in banks:
        bank.sparse = True
    try:
        yield
    finally:
        for bank in banks:
            bank.sparse = False


class Grid(Bank):
    """A bank with a row for every task and pair, task by task."""

    def __init__(self, num_tasks: int, num_pairs: int, *, num_sites: int, shapes: Shapes, init: Initializer) -> None:
        super().__init__("task", num_tasks * num_pairs, num_sites=num_sites, shapes=shapes, init=init)
        self.num_tasks, self.rows_per_key = num_tasks, num_pairs

    def append(self, like: int | Tensor | None = None) -> None:
        """Add a task: one row for every pair."""
        self.num_tasks += 1
        for pair in range(self.rows_per_key):
            super().append(None if like is None else like * self.rows_per_key + pair)

    @torch.no_grad()
    def append_pair(self, like: int | None = None) -> None:
        """Add a pair: one row for every task. All rows are copied."""
        for name in self.names:
            parameter = self.get_parameter(name)
            old = parameter.view(self.num_tasks, self.rows_per_key, *parameter.shape[1:])
            added = old.new_empty(self.num_tasks, 1, *parameter.shape[1:])
            if like is None:
                self.init(name, added)
            else:
                added[:, 0] = old[:, like]
            parameter.grad = None
            parameter.data = torch.cat([old, added], dim=1).flatten(0, 1)
        self.rows_per_key += 1


def normal_init(std: float, tensors: TensorSpecs | None = None) -> Initializer:
    """Return an initialiser that draws from N(0, std); tensors whose kind has a start value get that value.

    Args:
        std: Standard deviation.
        tensors: Descriptions of a block's tensors, by name.
    """
    return _initializer(lambda table: table.normal_(std=std), tensors or {}, identity=False)


def xavier_init(tensors: TensorSpecs, *, identity: bool = False) -> Initializer:
    """Return an initialiser that draws Xavier-uniform matrices; other tensors get their kind's start value.

    Args:
        tensors: Descriptions of a block's tensors, by name.
        identity: Whether the block has no effect before training.
    """

    def fill(table: Tensor) -> None:
        bound = xavier_std(table.shape) * 3**0.5
        table.uniform_(-bound, bound)

    return _initializer(fill, tensors, identity=identity)


def _initializer(fill: Callable[[Tensor], object], tensors: TensorSpecs, *, identity: bool) -> Initializer:
    @torch.no_grad()
    def init(name: str, table: Tensor) -> None:
        spec = tensors.get(name)
        value = None if spec is None else spec.neutral if identity and spec.neutral is not None else spec.start
        if value is None:
            fill(table)
        else:
            table.fill_(value)

    return init
