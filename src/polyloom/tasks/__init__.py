"""The registry of tasks. Each task is one class with its settings, encoding, head, predictions and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyloom.data.catalog import KINDS
from polyloom.errors import ConfigError, suggest
from polyloom.registry import HINT, Registry
from polyloom.tasks.base import Task, TaskConfig
from polyloom.tasks.chat import Chat
from polyloom.tasks.choice import Choice
from polyloom.tasks.classification import TextClassification
from polyloom.tasks.lm import CausalLm
from polyloom.tasks.mlm import MaskedLm
from polyloom.tasks.multiple_choice import MultipleChoice
from polyloom.tasks.nli import Nli
from polyloom.tasks.parsing import Parsing
from polyloom.tasks.question_answering import QuestionAnswering
from polyloom.tasks.tagging import Ner, Pos
from polyloom.tasks.translation import Translation

TASKS: Registry[type[Task]] = Registry("task")
Labels = Sequence[str] | int | TaskConfig | None

__all__ = ["TASKS", "Labels", "Task", "TaskConfig", "build_task", "find_task", "register_task", "task_config"]


def register_task(task: type[Task]) -> type[Task]:
    """Register a task under its name; usable as a decorator."""
    TASKS.register(task.name, task)
    KINDS[task.name] = task.kind  # for checks of corpora
    return task


for _task in (
    MaskedLm, CausalLm, Chat, Choice, Pos, Ner, Parsing, Nli, TextClassification, MultipleChoice, QuestionAnswering,
    Translation,
):  # fmt: skip
    register_task(_task)


def find_task(name: str) -> type[Task]:
    """Return the task of a name, or raise an error that lists the known tasks."""
    if name not in TASKS:
        raise ConfigError("tasks", [f"tasks.{name}: unknown task. {suggest(name, TASKS)} {HINT}"])
    return TASKS[name]


def task_config(name: str, labels: Labels, settings: Mapping[str, Any] | None = None) -> TaskConfig:
    """Build the settings of a task from its labels, their number, or settings that are complete already.

    Args:
        name: Name of the task. One that is not registered has labels alone.
        labels: The label set in order, or its size; settings are returned as they are.
        settings: Further settings as plain data.
    """
    if isinstance(labels, TaskConfig):
        return labels
    config = TASKS[name].Config() if name in TASKS else TaskConfig()
    return replace(
        config, labels=labels if isinstance(labels, int | None) else tuple(labels) or None, **(settings or {})
    )


def build_task(name: str, labels: Labels, *, width: int) -> Task:
    """Build a task with its head.

    Args:
        name: Name of the task.
        labels: Its label set in order, or its settings.
        width: Width of the hidden states.
    """
    return find_task(name)(task_config(name, labels), width=width)
