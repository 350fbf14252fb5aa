"""New rows of a trained model: a language or a task that is added later. Only its row learns, all else stays."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.model import Model
from polyloom.training.distributed import ProcessGroup
from polyloom.training.loop import StagePlan, Step, TrainLoop

Score = Callable[[], float]


def fit_added_row(  # noqa: PLR0913 - each has a meaning of its own
    model: Model,
    plan: StagePlan,
    *,
    tokenizer: Tokenizer,
    kind: str,
    first_added_token: int | None = None,
    score: Score,
    progress: Callable[[Step, float | None], None] = lambda *_: None,
) -> tuple[float, float]:
    """Let the last row of all tables of a kind learn, with what else the plan's stage names.

    What is best by `score` is kept, the beginning included, so that nothing gets worse.

    Args:
        model: With the row added.
        plan: Its stage trains ``rows.language`` or ``rows.task``.
        tokenizer: The tokenizer.
        kind: Of the row: ``language`` or ``task``.
        first_added_token: The first piece of the tokenizer whose embedding learns too; none by default.
        score: Higher is better; asked before the first step and then every `plan.train.evaluate_every`.
        progress: Hears of every step, with the score if one was made.

    Returns:
        The score before and after.
    """
    first_rows = dict.fromkeys(model.group(f"rows.{kind}"), -1)
    if first_added_token is not None:
        first_rows |= dict.fromkeys(model.group("backbone.tokens"), first_added_token)
    with _only_from(first_rows):
        loop = TrainLoop(model, plan, tokenizer=tokenizer, process_group=ProcessGroup())
        learnt = loop.optimizer.parameters
        before = best = score()
        kept = [parameter.detach().clone() for parameter in learnt]
        every = plan.train.evaluate_every or plan.steps
        for step in loop.steps():
            found = score() if step.number % every == 0 or step.number == plan.steps else None
            if found is not None and found > best:
                best, kept = found, [parameter.detach().clone() for parameter in learnt]
            progress(step, found)
    with torch.no_grad():
        for parameter, tensor in zip(learnt, kept, strict=True):
            parameter.copy_(tensor)
    model.set_stage(0)
    model.eval()
    return before, best


@contextmanager
def _only_from(first_rows: Mapping[nn.Parameter, int]) -> Iterator[None]:
    """Let gradients of tables reach their last rows only; a row without a gradient stays as it is."""
    hooks = []
    for parameter, first in first_rows.items():
        parameter.requires_grad_(True)  # a hook needs it; what learns is up to the stage
        hooks.append(parameter.register_hook(partial(_from, first)))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _from(first: int, gradient: Tensor) -> Tensor:
    masked = torch.zeros_like(gradient)
    masked[first:] = gradient[first:]
    return masked
