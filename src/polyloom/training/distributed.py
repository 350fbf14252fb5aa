"""Train with several processes, started by torchrun, Slurm or any launcher that sets RANK and WORLD_SIZE.

A collective waits for all processes. If one of them does not come, the others wait until the time limit. So what leads
to a collective (skip a step, save, validate, stop) is decided by numbers that all processes share. The collectives of a
step are, in this order: counts of predictions; those of DDP and FSDP in the forward and backward passes; gradients that
both leave out (`average_gradients`); norms of shards; losses together with the flags to save and stop.

Work of very different length (encoding corpora, validation) ends in `ProcessGroup.together` instead. It uses the
key-value store by which the processes met, and waits as long as all of them are alive.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from polyloom.errors import PolyloomError, TrainingError
from polyloom.model import Model
from polyloom.nn.tables import Bank, sparse_rows
from polyloom.training.config import Strategy

_TIMEOUT = timedelta(minutes=10)
_BEAT = 10.0  # seconds between two signs of life of a process
_POLL = 0.5  # seconds at most between two looks at the store of a process that waits
_ERROR, _BEATS = "polyloom/error", "polyloom/beats"  # keys of the store

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, as one of them sees it."""

    rank: int = 0
    """Rank of this process, from 0."""
    size: int = 1
    """Number of processes."""
    device: str = "cpu"
    """Device of this process, such as ``cpu`` or ``cuda:0``."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and messages: rank 0 does."""
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        """Whether this process does what is done once per host; without ``LOCAL_RANK`` every process does it."""
        return self.is_main or os.environ.get("LOCAL_RANK", "0") == "0"

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place, and return it."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: float) -> float:
        """Return rank 0's value in all processes."""
        # The other processes add 0 to a sum.
        term = value if self.is_main else 0.0
        return float(self.all_reduce(torch.tensor(term, dtype=torch.float64, device=self.device)))

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block in all processes and wait until all are done, for hours if need be: collectives time out.

        Raises:
            TrainingError: Another process ended the block with an error, or was killed.
        """
        if self.size == 1:
            yield
            return
        store = _store()
        try:
            with _beating(store):
                yield
            self._wait_for_all(store)
        except BaseException as error:
            if not store.check([_ERROR]):  # the first error is the cause; those of others follow from it
                message = str(error) if isinstance(error, PolyloomError) else repr(error)
                store.set(_ERROR, f"process {self.rank}: {message}")
                time.sleep(3 * _POLL)  # until the others have read it: the store may end with this process
            raise

    def share(self, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
        """Apply a function to items and return all results, in order, in all processes.

        Each process takes the next item that none has taken, until there are none: items may take very different
        times. Results must be plain data, because they are pickled for the other processes.
        """
        if self.size == 1:
            return [work(item) for item in items]
        results: dict[int, Result] = {}
        with self.together():
            store = _store()
            key = self._key(store, "taken")
            while (number := store.add(key, 1) - 1) < len(items):  # `add` is atomic: no item goes to two processes
                results[number] = work(items[number])
        # A collective, but all processes are here: `together` has waited for them.
        by_process: list[dict[int, Result]] = [{} for _ in range(self.size)]
        dist.all_gather_object(by_process, results)
        merged = {number: result for results in by_process for number, result in results.items()}
        return [merged[number] for number in range(len(items))]

    def _key(self, store: Store, name: str) -> str:
        """Return a new key of the store, the same in all processes, since all of them make their keys in one order."""
        return f"polyloom/{name}/{store.add(f'polyloom/{name}-by-{self.rank}', 1)}"

    def _wait_for_all(self, store: Store) -> None:
        """Wait until all processes come here, as long as those that are missing say that they are alive."""
        key = self._key(store, "done")
        store.add(key, 1)
        # A process counts beats while it works, not while it waits here. So a new beat is from one of the processes
        # that are missing.
        pause, last_beats, last_sign = 0.001, -1, time.monotonic()
        while (done := store.add(key, 0)) < self.size:  # adding nothing reads a counter
            if store.check([_ERROR]):
                raise TrainingError(f"Another process ended with an error. {store.get(_ERROR).decode()}")
            if (beats := store.add(_BEATS, 0)) != last_beats:
                last_beats, last_sign = beats, time.monotonic()
            elif time.monotonic() - last_sign > _TIMEOUT.total_seconds():
                missing = f"{self.size - done} of {self.size} processes"
                raise TrainingError(f"{missing} have not been heard of for {_TIMEOUT}. Were they killed?")
            time.sleep(pause)
            pause = min(2 * pause, _POLL)


@contextmanager
def init_distributed() -> Iterator[ProcessGroup]:
    """Join the process group that a launcher set up; a group of one process without a launcher."""
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield ProcessGroup(device=device)
        return
    if device != "cpu":
        torch.cuda.set_device(device)
    store, rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
    # A launcher that restarts workers may keep its store, which has the addresses of the former workers.
    store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "nccl" if device != "cpu" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    try:
        yield ProcessGroup(rank=rank, size=size, device=device)
    finally:
        dist.destroy_process_group()


def _store() -> Store:
    """Return the store by which the processes found one another; it outlives the time limit of collectives."""
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - it has no public name


@contextmanager
def _beating(store: Store) -> Iterator[None]:
    """Count in the store as long as a block runs, so that those who wait for this process know that it is alive."""
    ended = Event()

    def beat() -> None:
        with suppress(RuntimeError):  # the store is gone, which the main thread will notice
            while not ended.wait(_BEAT):
                store.add(_BEATS, 1)

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def parallelize(objective: nn.Module, model: Model, *, process_group: ProcessGroup, strategy: Strategy) -> nn.Module:
    """Move an objective to the device of this process, and distribute it over the processes.

    With ``ddp`` each process has a copy of the model and gradients are averaged, except those of banks, which are
    sparse. With ``fsdp`` each has a shard of the backbone; of the method and the heads it has a shard too if parts of
    the backbone are trained, and otherwise a copy. Of banks it always has a copy: a step uses few of their rows.
    `average_gradients` averages what is left.
    """
    if process_group.size == 1:
        return objective.to(process_group.device)

    if strategy == "fsdp":
        if not isinstance(model, FSDPModule):  # in a later stage it is sharded already
            # Layers gather their shards one after the other, in the forward pass and again in the backward pass. What
            # is used all the time or little of at once is a copy.
            copied = {p for module in model.modules() if isinstance(module, Bank) for p in module.parameters()}
            # A model is sharded once, so all stages count: the present one, and those before and after it.
            trained = {p for stage in model.stages() for group in stage.trains for p in model.group(group)}
            if not any(p.requires_grad or p in trained for p in model.backbone.parameters()):
                copied |= {*model.method.parameters(), *model.heads.parameters()}
            model.method.to(process_group.device)
            model.heads.to(process_group.device)
            for layer in model.backbone.layers:  # moved one by one: the whole backbone may not fit into a device
                fully_shard(layer)
            fully_shard(model, ignored_params=copied)
            register_fsdp_forward_method(model, "losses")
        return objective

    device_ids = None if process_group.device == "cpu" else [torch.device(process_group.device)]
    objective = objective.to(process_group.device)
    banks = {parameter for bank in trained_banks(model) for parameter in bank.parameters()}
    if not any(p.requires_grad and p not in banks for p in objective.parameters()):  # DDP refuses to wrap nothing
        return objective
    # DDP cannot average sparse gradients whose rows differ between processes. It does not wait for ignored ones.
    ignored = [name for name, parameter in objective.named_parameters() if parameter in banks]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(objective, ignored)  # type: ignore[no-untyped-call] # noqa: SLF001
    return DistributedDataParallel(objective, device_ids=device_ids, forward_sync_buffers=False)


def check_same_weights(model: Model) -> None:
    """Raise an error, in all processes, if one of them has other values of trained parameters.

    DDP copies rank 0's parameters to all processes when it wraps a model, but not those of banks, which it ignores. If
    a host has other files or versions, training would go on with different weights in each process, without an error.
    """
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad and not isinstance(p, DTensor)}
    own = {name: (tuple(parameter.shape), _fingerprint(parameter)) for name, parameter in parameters.items()}
    by_process: list[dict[str, tuple[tuple[int, ...], int]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(by_process, own)
    first = by_process[0]
    for rank, other in enumerate(by_process):
        names = [name for name in first | other if first.get(name) != other.get(name)]
        if names:
            raise TrainingError(
                f"Process {rank} begins the stage with other weights than process 0: {len(names)} of {len(first)} "
                f"trained tensors differ, such as {names[0]}. Do all hosts have the same files and the same versions?"
            )


@torch.no_grad()
def _fingerprint(tensor: Tensor) -> int:
    """Return 64 bits of a tensor's content: sums of its bits times fixed random numbers, chunk by chunk."""
    # Odd factors: each is invertible modulo 2⁶⁴, so that no change of a single value leaves the sum as it was.
    bits = tensor.detach().contiguous().flatten().view(_INTEGERS[tensor.dtype.itemsize])
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(1 << 62), 1 << 62, (min(len(bits), 1 << 20),), generator=generator).mul_(2).add_(1)
    factors, total = factors.to(tensor.device), 0
    for chunk in torch.split(bits, len(factors)) if len(bits) else ():
        total = (total * 1_000_003 + int((chunk.long() * factors[: len(chunk)]).sum())) % (1 << 64)
    return total


def trained_banks(model: Model) -> list[Bank]:
    """Return the banks of which the present stage trains rows."""
    banks = [module for module in model.modules() if isinstance(module, Bank)]
    return [bank for bank in banks if all(p.requires_grad for p in bank.parameters())]


def average_gradients(
    parameters: Sequence[nn.Parameter], banks: Sequence[Bank], process_group: ProcessGroup, strategy: Strategy
) -> None:
    """Average over all processes the gradients that DDP and FSDP leave to us. All processes must call this.

    DDP averages all but the sparse gradients of banks, in the backward pass. FSDP averages those of shards alone.

    Args:
        parameters: All trained parameters.
        banks: The banks among them.
        process_group: The processes.
        strategy: How the objective was distributed.
    """
    bank_parameters = list(dict.fromkeys(parameter for bank in banks for parameter in bank.parameters()))
    for parameter in bank_parameters:
        if parameter.grad is not None:  # several micro-batches may have used the same row
            parameter.grad = parameter.grad.coalesce()

    if process_group.size > 1 and bank_parameters:
        # Each process may have used other rows of a bank. Tensors of a collective must have the same shape in all
        # processes, so all agree on the rows first: one message with a byte for each row of each parameter.
        used = [torch.zeros(len(p), dtype=torch.uint8, device=p.device) for p in bank_parameters]
        for parameter, flags in zip(bank_parameters, used, strict=True):
            if parameter.grad is not None:
                flags[parameter.grad.indices()[0]] = 1
        flat = torch.cat(used)
        dist.all_reduce(flat, dist.ReduceOp.MAX)
        rows = [flags.nonzero().squeeze(1) for flags in flat.split_with_sizes([len(flags) for flags in used])]

        # Then the gradients of these rows in one dense message, with zeros for rows that this process did not use.
        values = []
        for parameter, union in zip(bank_parameters, rows, strict=True):
            values.append(parameter.new_zeros(len(union), *parameter.shape[1:]))
            if parameter.grad is not None:  # `nonzero` returns rows in order, so a binary search finds each
                values[-1][torch.searchsorted(union, parameter.grad.indices()[0])] = parameter.grad.values()
        _average(values)
        for parameter, union, mean in zip(bank_parameters, rows, values, strict=True):
            parameter.grad = sparse_rows(union, mean, parameter.shape)

    if process_group.size > 1 and strategy == "fsdp":
        # Copied parameters have a gradient in all processes or in none, because every objective uses all of them.
        skipped = set(bank_parameters)
        others = (p for p in parameters if p not in skipped and not isinstance(p, DTensor))
        _average([parameter.grad for parameter in others if parameter.grad is not None])


def _average(tensors: Sequence[Tensor]) -> None:
    """Average tensors over all processes in place, in one message."""
    if tensors:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for tensor, mean in zip(tensors, flat.split_with_sizes([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))


@contextmanager
def unsharded(model: Model) -> Iterator[None]:
    """Unshard a model for use outside of its objective. All processes must enter the context: it gathers shards.

    Only parameters outside of the layers are unsharded here: layers unshard themselves, from the first step on.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        model.reshard()


def is_sharded(model: Model) -> bool:
    """Return whether the processes have shards of a model, so that all take part in every forward pass."""
    return isinstance(model, FSDPModule)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor, gathered from all processes if it is sharded. All processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Move a tensor to the device of another one, and shard it in the same way."""
    if isinstance(other, DTensor):
        return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
    return tensor.to(other.device)
