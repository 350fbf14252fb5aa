"""Pair inputs with conditions, make records of them, and say which were too long. Imports no torch, for clients."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polyloom.conditions import Condition
from polyloom.data.records import Record
from polyloom.errors import PolyloomError

if TYPE_CHECKING:
    from polyloom.tasks.base import Task  # imports torch, which a client of a server does without

Names = str | Condition
Input = str | Sequence[str] | Record


def pair_with_conditions(inputs: Input | list[Input], conditions: Names | Sequence[Names]) -> list[tuple[Input, Names]]:
    """Pair each input with its condition; see `Run.predict`. One input becomes a list of one."""
    if not isinstance(inputs, list):
        if not isinstance(conditions, Names):
            raise PolyloomError("predict: one input needs one condition. Give a list of inputs for several.")
        return [(inputs, conditions)]
    named = [conditions] * len(inputs) if isinstance(conditions, Names) else list(conditions)
    if len(named) != len(inputs):
        raise PolyloomError(
            f"predict: {len(inputs)} inputs, but {len(named)} conditions. Give one condition for each input, or a "
            "single one for all. (The words of one sentence are given as a tuple, not as a list.)"
        )
    return list(zip(inputs, named, strict=True))


def make_record(value: Any, task: "Task", condition: Condition) -> Record:
    """Make a record of an input: of a text, of texts as a tuple, or of a record; see `Run.predict`."""
    check_characters(value, condition)
    kind = task.record_kind()
    if not kind.inputs:
        raise PolyloomError(f"{condition}: {task.name} has nothing to predict. run.evaluate() gives its scores.")
    record = kind.from_value(value, condition.languages[-1])
    if record is None:
        raise PolyloomError(f"{condition}: expected {kind.expected}, or a record of its kind, not {show_value(value)}.")
    return record


def check_characters(value: Any, condition: Condition) -> None:
    """Raise an error if a text, or one of several, has half a surrogate pair."""
    texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    try:
        for text in texts:
            if isinstance(text, str):
                text.encode()
    except UnicodeEncodeError:
        raise PolyloomError(
            f"{condition}: {show_value(value)} has half a surrogate pair, which is no character."
        ) from None


def show_value(value: object) -> str:
    """Show the beginning of a value and its type, for an error."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '…'} ({type(value).__name__})"


def describe_long(counts: Mapping[Condition, int] | Mapping[str, int], became: str, *, max_length: int) -> str:
    """Return a sentence about inputs that were too long; an empty text if there were none.

    Args:
        counts: Number of such inputs by condition.
        became: What was done with them: ``cut`` or ``split``.
        max_length: Tokens that the model allows.
    """
    total = sum(counts.values())
    where = ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)
    inputs = "1 input was" if total == 1 else f"{total:,} inputs were"
    return f"{inputs} longer than {max_length} tokens and {became} ({where})." if total else ""
