"""Tables of rows that can grow: embeddings, and banks of stored adapters."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polyloom.nn.blocks import TensorSpecs, xavier_std
from polyloom.weights import Shapes

Initializer = Callable[[str, Tensor], None]


class GrowingTable(nn.Module):
    """Named tables with one row per language, task or pair.

    Appending a row costs what the row costs: each parameter is a view of the first rows of a larger reserve, which
    doubles when it is full, so that counting, saving and training see exactly the rows that are in use.

    Args:
        keyed_by: What a row stands for: ``language``, ``task``, ``pair``, or ``fixed``.
        num_rows: How many rows to begin with.
        shapes: Shape of a row, by table name.
        init: Called with a table's name and its new rows.
    """

    trainable = True

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
        """How many rows are in use."""
        return len(self.get_parameter(self.names[0]))

    @torch.no_grad()
    def append(self, like: int | Tensor | None = None) -> None:
        """Add one row, begun as `begin` does."""
        for name in self.names:
            parameter = self.get_parameter(name)
            used = len(parameter)
            reserve = self._reserve.get(name)
            if reserve is None or len(reserve) == used or reserve.data_ptr() != parameter.data_ptr():
                reserve = parameter.new_empty(max(8, 2 * used), *parameter.shape[1:])
                reserve[:used] = parameter
                self._reserve[name] = reserve
            parameter.grad = None
            parameter.data = reserve[: used + 1]
        self.init_last_row(like)

    @torch.no_grad()
    def init_last_row(self, like: int | Tensor | None) -> None:
        """Make the last row a fresh one, a copy of row ``like``, or the mean of the rows ``like`` lists."""
        for name in self.names:
            parameter = self.get_parameter(name)
            if like is None:
                self.init(name, parameter[-1:])
            else:
                parameter[-1] = parameter[like].mean(0) if isinstance(like, Tensor) else parameter[like]


class GrowingEmbedding(GrowingTable):
    """An embedding table that can grow."""

    def __init__(self, keyed_by: str, num_rows: int, *, size: int, init: Initializer) -> None:
        super().__init__(keyed_by, num_rows, shapes={"weight": (size,)}, init=init)

    def forward(self, rows: Tensor) -> Tensor:
        """Look up rows of any shape."""
        return nn.functional.embedding(rows, self.get_parameter("weight"))


class FixedEmbedding(GrowingEmbedding):
    """Vectors that are known, not learnt: a row is zero until it is given."""

    trainable = False

    def __init__(self, keyed_by: str, num_rows: int, *, size: int) -> None:
        super().__init__(keyed_by, num_rows, size=size, init=_zeros)


class Bank(GrowingTable):
    """Stored weights: one tensor per name, ``[N, S, ...]`` for N keys and S sites."""

    def __init__(self, keyed_by: str, num_rows: int, *, num_sites: int, shapes: Shapes, init: Initializer) -> None:
        super().__init__(
            keyed_by, num_rows, shapes={name: (num_sites, *shape) for name, shape in shapes.items()}, init=init
        )
        self.num_sites = num_sites

    def forward(self, rows_KS: Tensor) -> dict[str, Tensor]:
        """Look up, for every condition and site, the row given: ``{name: [K, S, ...]}``."""
        sites_S = torch.arange(self.num_sites, device=rows_KS.device)
        flat = (rows_KS * self.num_sites + sites_S).flatten()
        found = {}
        for name in self.names:
            table_NS = self.get_parameter(name)
            picked = table_NS.flatten(0, 1).index_select(0, flat)
            found[name] = picked.view(*rows_KS.shape, *table_NS.shape[2:])
        return found


def _zeros(_name: str, table: Tensor) -> None:
    nn.init.zeros_(table)


def normal_init(std: float, tensors: TensorSpecs | None = None) -> Initializer:
    """Draw numbers from N(0, std); tensors that their kind starts at a value get that value.

    Args:
        std: Standard deviation.
        tensors: Descriptions of a block's tensors, by name.
    """
    return _initializer(lambda table: table.normal_(std=std), tensors or {}, identity=False)


def xavier_init(tensors: TensorSpecs, *, identity: bool = False) -> Initializer:
    """Draw matrices Xavier-uniform in their last two dimensions; other tensors start at their kind's value.

    Args:
        tensors: Descriptions of a block's tensors, by name.
        identity: Whether the block has no effect at first.
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
