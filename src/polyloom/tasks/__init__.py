"""The tasks: what is learnt and answered, and how it is scored."""

from collections.abc import Sequence

from polyloom.errors import ConfigError, suggest
from polyloom.tasks.base import Task
from polyloom.tasks.mlm import MaskedLm
from polyloom.tasks.nli import Nli
from polyloom.tasks.parsing import Parsing
from polyloom.tasks.tagging import Ner, Pos
from polyloom.tasks.translation import Translation

TASKS: dict[str, type[Task]] = {task.name: task for task in (MaskedLm, Pos, Ner, Parsing, Nli, Translation)}


def build_task(name: str, labels: Sequence[str], *, width: int) -> Task:
    """Build a task with its head."""
    if name not in TASKS:
        raise ConfigError("tasks", [f"tasks.{name}: unknown task. {suggest(name, TASKS)}"])
    return TASKS[name](labels, width=width)
