"""Tables of rows that can grow: embeddings, and banks of stored adapters."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polyloom.weights import Shapes

Initializer = Callable[[str, Tensor], None]
ZERO = ("bias", "_up")  # `query_up` and the like are LoRA's; a bottleneck's is plain `up`


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


def normal_init(std: float) -> Initializer:
    """Matrices from N(0, std), biases zero, gains one, LoRA's up projections zero."""
    return _initializer(lambda table: table.normal_(std=std))


def xavier_init(*, identity: bool = False) -> Initializer:
    """Matrices Xavier-uniform in their last two dimensions, biases zero, gains one, LoRA's up projections zero.

    With `identity` a bottleneck's up projection is zero too, so that it has no effect yet.
    """

    def fill(table: Tensor) -> None:
        bound = xavier_std(table.shape) * 3**0.5
        table.uniform_(-bound, bound)

    return _initializer(fill, zero=("bias", "up") if identity else ZERO)


def xavier_std(shape: tuple[int, ...]) -> float:
    """Standard deviation of a freshly initialised ``[..., out, in]`` matrix."""
    return float((2.0 / (shape[-1] + shape[-2])) ** 0.5)


def _initializer(fill: Callable[[Tensor], object], *, zero: tuple[str, ...] = ZERO) -> Initializer:
    @torch.no_grad()
    def init(name: str, table: Tensor) -> None:
        if name == "norm_weight":
            table.fill_(1.0)
        elif name.endswith(zero):
            table.zero_()
        else:
            fill(table)

    return init
