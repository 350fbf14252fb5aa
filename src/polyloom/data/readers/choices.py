"""Read multiple choice: XCOPA, COPA, Social IQa and similar, as JSON lines or from the Hugging Face Hub."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyloom.data.records import Choices
from polyloom.errors import Location
from polyloom.io.files import File, as_file, checked_text, read_json_lines

EXPECTED = '{"premise": "…", "question": "cause", "choice1": "…", "choice2": "…", "label": 0}'
MAX_CHOICES = 20  # each of them takes a row of a batch
_NUMBERED = re.compile(r"choice([1-9])")
_LETTERED = re.compile(r"answer([A-Z])")


def read_choices(source: Path | File) -> Iterator[Choices]:
    """Read JSON lines with choices."""
    path = as_file(source).path
    for at, row in read_json_lines(path):
        yield make_choices(row, at)


def first_label(row: Mapping[str, Any]) -> int:
    """Return the label of the first choice: 1 in the layout of Social IQa, 0 in all others."""
    return int("answerA" in row)


def make_choices(row: Mapping[str, Any], at: Location, *, labelled: bool = True) -> Choices:
    """Make a record of a row, by the names of its columns.

    Args:
        row: ``premise``, ``question``, the choices as ``choice1``, ``choice2``, … or as a list ``choices``, and their
            ``label``, counted from 0. Or as in Social IQa: ``context``, ``question``, ``answerA``, ``answerB``, …, with
            a ``label`` counted from 1.
        at: Where it is from, for messages.
        labelled: Whether the label is read; otherwise it is empty.
    """
    lettered = first_label(row) == 1
    listed = row.get("choices")
    names = [key for key in sorted(row) if (_LETTERED if lettered else _NUMBERED).fullmatch(key)]
    choices = listed if isinstance(listed, list) and not names else [row[name] for name in names]
    premise = "context" if lettered else "premise"
    if not {premise, "question"} <= row.keys() or not 2 <= len(choices) <= MAX_CHOICES:
        raise at.error(f"expected {EXPECTED}, with 2 to {MAX_CHOICES} choices.")
    named = [(premise, row[premise]), ("question", row["question"]), *(("choices", choice) for choice in choices)]
    texts = [checked_text(value, at, name=name).strip() for name, value in named]
    label = ""
    if labelled:
        # The label is a number or its digits, and is stored as a position that is counted from 0.
        value: Any = row.get("label")
        first = first_label(row)
        known = [str(position) for position in range(first, first + len(choices))]
        if isinstance(value, bool) or str(value).strip() not in known:
            raise at.error(f"label {value!r:.40}: it is none of the choices. Expected: {', '.join(known)}.")
        label = str(int(value) - first)
    return Choices(texts[0], texts[1], tuple(texts[2:]), label)
