"""Several processes as one: started by torchrun, Slurm or anything that sets RANK and WORLD_SIZE."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from polyloom.model import Model
from polyloom.training.config import Strategy

_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, seen from one of them."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: float) -> float:
        """The leader's word, where every process has a value of its own."""
        return float(
            self.all_reduce(torch.tensor(value if self.is_main else 0.0, dtype=torch.float64, device=self.device))
        )

    def barrier(self) -> None:
        """Wait for all."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def init_distributed() -> Iterator[ProcessGroup]:
    """Take one's place among the processes that a launcher started; alone without one."""
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield ProcessGroup(device=device)
        return
    if device != "cpu":
        torch.cuda.set_device(device)
    store, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
    # A launcher that restarts workers may keep its store, and in it the addresses of the dead ones.
    store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "nccl" if device != "cpu" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield ProcessGroup(rank=rank, size=size, device=device)
    finally:
        dist.destroy_process_group()


def parallelize(objective: nn.Module, model: Model, *, process_group: ProcessGroup, strategy: Strategy) -> nn.Module:
    """Make the processes share the work of an objective: copies of the model with mean gradients, or shards of it."""
    if process_group.size == 1:
        return objective
    if strategy == "fsdp":
        if not isinstance(model, FSDPModule):  # a later stage finds it sharded
            for layer in model.backbone.layers:
                fully_shard(layer)
            fully_shard(model)
            register_fsdp_forward_method(model, "losses")
        return objective
    device_ids = None if process_group.device == "cpu" else [torch.device(process_group.device)]
    return DistributedDataParallel(objective, device_ids=device_ids, forward_sync_buffers=False)


@contextmanager
def gathered(model: Model) -> Iterator[None]:
    """Use a model outside of its objective: where it is sharded, what is not in a layer is whole for the while.

    Layers gather themselves, once the model has taken a step. Every process must enter.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        model.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A tensor, gathered if it is sharded. Every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A tensor, sharded as another one is."""
    if isinstance(other, DTensor):
        return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
    return tensor.to(other.device)
