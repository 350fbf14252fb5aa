"""Read conversations as data sets for fine-tuning have them: ``messages``, or ``prompt`` and ``completion``."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyloom.data.records import Conversation, Message
from polyloom.errors import Location
from polyloom.io.files import File, as_file, checked_text, read_json_lines

EXPECTED = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'
ROLES = ("system", "user", "assistant", "tool")


def read_conversations(source: Path | File) -> Iterator[Conversation]:
    """Read JSON lines with ``messages``, or with ``prompt`` and ``completion``."""
    path = as_file(source).path
    for at, row in read_json_lines(path):
        yield make_conversation(row, at)


def make_conversation(row: Mapping[str, Any], at: Location) -> Conversation:
    """Make a record of a row; its last message must be the assistant's.

    Args:
        row: ``messages``, each with ``role`` and ``content``; or ``prompt`` and ``completion``, which are texts, or
            messages each.
        at: Where it is from, for messages.
    """
    if "messages" in row:
        messages = make_messages(row["messages"], at)
    elif {"prompt", "completion"} <= row.keys():
        listed: list[Any] = []
        for role, part in (("user", row["prompt"]), ("assistant", row["completion"])):
            listed += part if isinstance(part, list) else [{"role": role, "content": part}]
        messages = make_messages(listed, at)
    else:
        raise at.error(f"expected {EXPECTED}, or prompt and completion.")
    if messages[-1].role != "assistant":
        raise at.error(f"the last message is the {messages[-1].role}'s. There is no answer to learn.")
    return Conversation(messages)


def make_messages(value: Any, at: Location) -> tuple[Message, ...]:
    """Make messages of plain data, at least one."""
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise at.error(f"expected {EXPECTED}.")
    messages = []
    for message in value:
        role = message.get("role")
        if role not in ROLES:
            raise at.error(f"a message of the role {role!r:.40}. Known: {', '.join(ROLES)}.")
        messages.append(Message(role, checked_text(message.get("content"), at, name="content")))
    return tuple(messages)
