"""Train the row of a language or a task that was added to a trained model; all other parameters are frozen."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.model import Model
from polyloom.nn.tables import sparse_rows
from polyloom.training.distributed import ProcessGroup
from polyloom.training.events import StepEvent
from polyloom.training.loop import TrainLoop
from polyloom.training.plan import StagePlan


def fit_added_row(  # noqa: PLR0913 - all are needed
    model: Model,
    plan: StagePlan,
    *,
    tokenizer: Tokenizer,
    kind: str,
    first_added_token: int | None = None,
    score: Callable[[], float],
    on_step: Callable[[StepEvent, float | None], None] = lambda *_: None,
) -> tuple[float, float]:
    """Train the last row of all tables of a kind, and the other groups that the plan's stage trains.

    The model ends with the parameters of the highest score. The initial parameters are a candidate, so that the score
    never gets worse.

    Args:
        model: The model, to which the row was added.
        plan: The stage, which trains ``rows.language`` or ``rows.task``.
        tokenizer: The tokenizer.
        kind: Kind of the row: ``language`` or ``task``.
        first_added_token: Id of the first token whose embedding is trained too; no embedding by default.
        score: Function that scores the model; higher is better. It is called before the first step and then every
            `plan.train.evaluate_every` steps.
        on_step: Called after every step, with the score if the model was scored after it.

    Returns:
        The score before and after.
    """
    # An added row is the last one of its table, so it is counted from the end. Tokens are counted from the beginning.
    tables = [table for table in model.method.growing(kind) if table.trainable]
    first_rows = {parameter: -table.rows_per_key for table in tables for parameter in table.parameters()}
    if first_added_token is not None:
        first_rows |= dict.fromkeys(model.group("backbone.tokens"), first_added_token)
    with _masked_gradients(first_rows):
        loop = TrainLoop(model, plan, tokenizer=tokenizer, process_group=ProcessGroup())
        # Views of all that is trained, into which the best values are copied at the end.
        trained = [p.detach()[first_rows[p] :] if p in first_rows else p.detach() for p in loop.optimizer.parameters]
        before = best = score()
        best_tensors = [tensor.clone() for tensor in trained]
        every = plan.train.evaluate_every or plan.steps
        for step in loop.steps():
            current = score() if step.step % every == 0 or step.step == plan.steps else None
            if current is not None and current > best:
                best, best_tensors = current, [tensor.clone() for tensor in trained]
            on_step(step, current)
    for tensor, best_tensor in zip(trained, best_tensors, strict=True):
        tensor.copy_(best_tensor)
    model.set_stage(0)
    model.eval()
    return before, best


@contextmanager
def _masked_gradients(first_rows: Mapping[nn.Parameter, int]) -> Iterator[None]:
    """Set the gradients of all rows before the first one to train to zero; such rows are not updated."""
    hooks = []
    for parameter, first in first_rows.items():
        parameter.requires_grad_(True)  # a hook needs it; the stage decides what is trained
        hooks.append(parameter.register_hook(partial(_mask_before, first)))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _mask_before(first: int, gradient: Tensor) -> Tensor:
    if gradient.is_sparse:  # of a bank, whose first row to train is counted from the end
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        masked = values.masked_fill((rows < len(gradient) + first).view(-1, *[1] * (values.dim() - 1)), 0.0)
        return sparse_rows(rows, masked, gradient.shape)
    masked = torch.zeros_like(gradient)
    masked[first:] = gradient[first:]
    return masked
