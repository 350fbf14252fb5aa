"""Write the report of runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from polyloom.io.atomic import write_text_atomic
from polyloom.report.page import make_report


def write_report(
    runs: Sequence[Path],
    output: Path,
    *,
    split: str = "test",
    num_examples: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the report of one or more runs; the others are compared with the first.

    Args:
        runs: Directories of runs.
        output: The HTML file.
        split: Which scores: ``test`` or ``validation``.
        num_examples: Sentences to show of each task; with 0 no model is loaded.
        progress: Called with a sentence about each step.
    """
    page = make_report(runs, output=output, split=split, num_examples=num_examples, progress=progress)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(output, page)
    return output
