"""Find conditions whose weights no training data have changed; their predictions are arbitrary."""

import warnings
from collections.abc import Collection, Iterable

from polyloom.conditions import Condition
from polyloom.errors import PolyloomWarning
from polyloom.methods import Method


class TrainedParts:
    """The tasks, pairs and languages of a method that training data have changed.

    Building it takes time in proportion to the number of trained conditions; asking it does not.

    Args:
        method: A trained method.
        trained_on: Conditions with training data.

    Attributes:
        names: Conditions with training data; the others are zero-shot.
    """

    def __init__(self, method: Method, trained_on: Collection[str]) -> None:
        self._method = method
        self.names = frozenset(trained_on)
        trained = [condition for name in trained_on for condition in method.trained_by(Condition.parse(name))]
        self._tasks = {condition.task for condition in trained}
        self._by_language, self._by_pair = (
            any(table.trainable for table in method.growing(kind)) for kind in ("language", "pair")
        )
        self._by_side = "decoder" in method.shape.stacks and method.stores_adapters("language")
        self._language_rows = {row for condition in trained for row in self._rows_of_languages(condition)}
        self._pair_rows = {method.pair_row(condition) for condition in trained} if self._by_pair else set()

    def missing(self, condition: Condition) -> str | None:
        """Return the part of a supported condition that was not trained, such as ``language 'ko'``, or ``None``.

        Zero-shot conditions, whose task and languages were trained in other conditions, have no such part.
        """
        if str(condition) in self.names or not any(stage.trains for stage in self._method.stages()):
            return None  # exported adapters have no stages that train
        if condition.task not in self._tasks:
            return f"task {condition.task!r}"
        if self._by_pair and self._method.pair_row(condition) not in self._pair_rows:
            return f"pair {'/'.join(condition.languages)!r}"
        if self._by_language:
            for language, role in self._rows_of_languages(condition):
                if (language, role) not in self._language_rows:
                    return f"{role}language {language!r}"
        return None

    def warn(self, conditions: Iterable[Condition]) -> None:
        """Warn of every condition that was not trained, once."""
        for condition in conditions:
            if part := self.missing(condition):
                warnings.warn(
                    f"{condition}: the {part} has neither training data nor a donor, so predictions are arbitrary. "
                    "`polyloom add` trains what is missing.",
                    PolyloomWarning,
                    stacklevel=1,  # the same place for all callers: Python shows a message of one place once
                )

    def missing_languages(self) -> list[str]:
        """List the languages without training data, if the method has parameters for each language."""
        trained = {language for language, _ in self._language_rows}
        return [name for name in self._method.languages if name not in trained and self._by_language]

    def _rows_of_languages(self, condition: Condition) -> list[tuple[str, str]]:
        """Return the languages whose parameters a condition uses; a decoder has adapters of its own for each."""
        if self._by_side:
            return [(condition.source, "source "), (condition.target or condition.source, "target ")]
        return [(language, "") for language in condition.languages]
