"""Say how many inputs were longer than a model allows."""

from collections.abc import Mapping

from polyloom.conditions import Condition


def describe_long(counts: Mapping[Condition, int] | Mapping[str, int], became: str, *, max_length: int) -> str:
    """Return a sentence about long inputs; an empty text if there were none.

    Args:
        counts: Number of long inputs by condition.
        became: What was done with them: ``cut`` or ``split``.
        max_length: Tokens that the model allows.
    """
    total = sum(counts.values())
    where = ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)
    inputs = "1 input was" if total == 1 else f"{total:,} inputs were"
    return f"{inputs} longer than {max_length} tokens and {became} ({where})." if total else ""
