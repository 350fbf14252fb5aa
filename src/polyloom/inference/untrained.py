"""Find conditions whose weights no training data have changed; their predictions are arbitrary."""

import warnings
from collections.abc import Collection, Iterable

from polyloom.conditions import Condition
from polyloom.errors import PolyloomWarning
from polyloom.methods import Method


def warn_untrained(conditions: Iterable[Condition], method: Method, trained_on: Collection[str]) -> None:
    """Warn of every condition that was not trained, once."""
    for condition in conditions:
        if part := untrained_part(condition, method, trained_on):
            warnings.warn(
                f"{condition}: the {part} has neither training data nor a donor, so predictions are arbitrary. "
                "`polyloom add` trains what is missing.",
                PolyloomWarning,
                stacklevel=1,  # the same place for all callers: Python shows a message of one place once
            )


def untrained_part(condition: Condition, method: Method, trained_on: Collection[str]) -> str | None:
    """Return the part of a condition that was not trained, such as ``language 'ko'``; ``None`` if all parts were.

    Zero-shot conditions, whose task and languages were trained in other conditions, have no such part.

    Args:
        condition: A condition that the method supports.
        method: A trained method.
        trained_on: Conditions with training data.
    """
    if str(condition) in trained_on or not any(stage.trains for stage in method.stages()):  # such as exported adapters
        return None
    trained = _trained(method, trained_on)
    if condition.task not in {known.task for known in trained}:
        return f"task {condition.task!r}"
    if _has_rows(method, "pair") and method.pair_row(condition) not in {method.pair_row(known) for known in trained}:
        return f"pair {'/'.join(condition.languages)!r}"
    if _has_rows(method, "language"):
        rows = {row for known in trained for row in _language_rows(known, method)}
        for language, role in _language_rows(condition, method):
            if (language, role) not in rows:
                return f"{role}language {language!r}"
    return None


def untrained_languages(method: Method, trained_on: Collection[str]) -> list[str]:
    """List the languages without training data, if the method has parameters for each language."""
    known = {language for condition in _trained(method, trained_on) for language in condition.languages}
    return [language for language in method.languages if language not in known and _has_rows(method, "language")]


def _trained(method: Method, trained_on: Collection[str]) -> list[Condition]:
    return [condition for name in trained_on for condition in method.trained_by(Condition.parse(name))]


def _has_rows(method: Method, kind: str) -> bool:
    return any(table.trainable for table in method.growing(kind))


def _language_rows(condition: Condition, method: Method) -> list[tuple[str, str]]:
    """Return the languages whose parameters a condition uses; a decoder has adapters of its own for each."""
    if "decoder" in method.shape.stacks and method.stores_adapters("language"):
        return [(condition.source, "source "), (condition.target or condition.source, "target ")]
    return [(language, "") for language in condition.languages]
