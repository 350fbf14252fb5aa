"""Conditions: what is done in which languages, and the inventory of languages, tasks and directions of a method."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from polyloom.errors import ConditionError, suggest

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """A task in a language, or from one language to another; written ``task/language`` or ``task/source/target``."""

    task: str
    source: str
    target: str | None = None

    def __post_init__(self) -> None:
        for part in (self.task, self.source, self.target):
            if part is not None and not (isinstance(part, str) and _NAME.fullmatch(part)):
                raise ConditionError(
                    f"condition: {part!r} is not a name. Names are letters and digits, joined by '.', '_' or '-'; "
                    "a condition is task/language or task/source/target, such as pos/tr or mt/en/tr."
                )

    @classmethod
    def parse(cls, text: "str | Condition") -> "Condition":
        """Read ``pos/tr`` or ``mt/en/tr``; a condition is returned as it is."""
        if isinstance(text, Condition):
            return text
        parts = str(text).split("/")
        if len(parts) not in (2, 3):
            raise ConditionError(
                f"condition {text!r}: expected task/language or task/source/target, such as pos/tr or mt/en/tr."
            )
        return cls(*parts)

    @property
    def languages(self) -> tuple[str, ...]:
        """Return its languages, each once."""
        return tuple(dict.fromkeys(lang for lang in (self.source, self.target) if lang is not None))

    def __str__(self) -> str:
        return "/".join(part for part in (self.task, self.source, self.target) if part is not None)


def missing_language_error(name: object, *, tasks: Sequence[str], languages: Sequence[str]) -> ConditionError:
    """Make the error for a name without a slash, with examples from what is known."""
    examples = [f"{t}/{name if name in languages else languages[0]}" for t in tasks if name in (*languages, t)]
    return ConditionError(
        f"condition {name!r}: name the task and the language, such as "
        f"{', '.join(examples) or f'{tasks[0]}/{languages[0]}'}."
    )


class Index:
    """Map names to row numbers. New names are appended, so row numbers never change."""

    def __init__(self, kind: str, names: Iterable[str] = ()) -> None:
        self.kind = kind
        self._rows: dict[str, int] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """Append a name and return its row."""
        if name in self._rows:
            raise ConditionError(f"{self.kind} {name!r} exists already.")
        return self._rows.setdefault(name, len(self._rows))

    def row(self, name: str) -> int:
        """Return the row of a name, or raise an error that lists the known names."""
        try:
            return self._rows[name]
        except KeyError:
            raise ConditionError(f"unknown {self.kind} {name!r}. {suggest(name, self._rows)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True)
class Inventory:
    """The languages, tasks and directions that a method is built for. It can be extended, never reordered."""

    languages: tuple[str, ...]
    """Language names."""
    tasks: Mapping[str, int | None]
    """Task names with their number of labels; ``None`` for tasks without a label set."""
    directions: tuple[str, ...] = ()
    """Pairs ``source/target``, for methods that store weights per pair."""
    raw_text: tuple[str, ...] = ()
    """Names of the tasks that are trained on raw text, among `tasks`."""

    @classmethod
    def of(
        cls,
        languages: Iterable[str],
        tasks: Mapping[str, int | None] | Iterable[str],
        directions: Iterable[str] | None = None,
        raw_text: Iterable[str] = (),
    ) -> Self:
        """Build an inventory.

        Args:
            languages: Language names. The first is by convention the source of transfer.
            tasks: Task names, with their number of labels where they have some.
            directions: Pairs; ``en/*`` and ``*/en`` stand for all pairs with English. Default: from the first language
                to every other.
            raw_text: Names of the tasks that are trained on raw text.
        """
        languages = tuple(languages)
        tasks = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(tasks)
        if not languages or not tasks:
            raise ConditionError("inventory: at least one language and one task are needed.")
        for name in (*languages, *tasks):
            Condition("check", name)
        patterns = [f"{languages[0]}/*"] if directions is None else directions
        return cls(languages, tasks, expand_directions(patterns, languages), tuple(t for t in raw_text if t in tasks))


def expand_directions(patterns: Iterable[str], languages: Sequence[str]) -> tuple[str, ...]:
    """Expand ``en/*``, ``*/en`` and ``en/tr`` over the languages; every pair once, in order."""
    pairs: dict[str, None] = {}
    known = {"*", *languages}
    for pattern in patterns:
        source, _, target = pattern.partition("/")
        for name in (source, target):
            if name not in known:
                raise ConditionError(f"direction {pattern!r}: unknown language {name!r}. {suggest(name, languages)}")
        sources = languages if source == "*" else [source]
        targets = languages if target == "*" else [target]
        pairs.update({f"{first}/{second}": None for first in sources for second in targets if first != second})
    return tuple(pairs)


class ConditionIds(NamedTuple):
    """The distinct conditions of a batch as row numbers, and the index of each row's condition among them.

    Methods compute weights once per distinct condition, however many rows have it; `Weights.for_rows` expands them.
    """

    task_K: "Tensor"
    """Row of each condition's task, in the tables that are keyed by task."""
    source_K: "Tensor"
    """Row of its language, or source language."""
    target_K: "Tensor"
    """Row of its target language; that of its language if it has only one."""
    pair_K: "Tensor"
    """Row of its pair of languages, for methods that store weights per pair; else 0."""
    rows_B: "Tensor"
    """For each row of the batch, the index of its condition among the K."""
