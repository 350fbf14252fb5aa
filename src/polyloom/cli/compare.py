"""``polyloom compare``: test whether the scores of two runs differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyloom.cli.options import Split
from polyloom.cli.render.tables import Format, aligned, markdown, tabs
from polyloom.io.plain_json import to_json

if TYPE_CHECKING:
    from polyloom.evaluate.comparison import Comparison, Difference


def compare(
    run_a: Annotated[Path, typer.Argument(help="Run that was evaluated.")],
    run_b: Annotated[Path, typer.Argument(help="Run to compare it with.")],
    *,
    split: Annotated[Split, typer.Option(help="Split whose scores are compared.")] = "test",
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = "table",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Compare two runs on the sentences that both were scored on, with a paired bootstrap.

    Example: polyloom compare runs/hyperx runs/madx
    """
    from polyloom.workflows.compare import compare as compare_runs  # noqa: PLC0415 - imports torch

    comparison = compare_runs(run_a, run_b, split=split, seed=seed)
    typer.echo(_render(comparison, form, names=(str(run_a), str(run_b))), nl=False)


def _render(comparison: "Comparison", form: Format, *, names: tuple[str, str]) -> str:
    if form == "json":
        entries = list(map(_entry, comparison.differences))
        result: dict[str, Any] = {"a": names[0], "b": names[1], "differences": entries}
        result |= {"only_a": list(map(str, comparison.only_a)), "only_b": list(map(str, comparison.only_b))}
        return to_json(result, indent=2) + "\n"
    if form == "tsv":
        entries = list(map(_entry, comparison.differences))
        return tabs(list(entries[0]), [list(map(str, entry.values())) for entry in entries])
    columns = ["condition", "metric", "A", "B", "A - B", "95 % interval", "p", "p (Holm)", "verdict"]
    rows = [
        [
            str(row.condition), row.metric, f"{row.a:.2f}", f"{row.b:.2f}", f"{row.a - row.b:+.2f}",
            "[{:+.2f}, {:+.2f}]".format(*row.interval), f"{row.p_value:.4f}", f"{row.corrected:.4f}", row.verdict,
        ]
        for row in comparison.differences
    ]  # fmt: skip
    for (task, metric), (a, b) in comparison.means().items():
        rows.append([f"mean of {task}", metric, f"{a:.2f}", f"{b:.2f}", f"{a - b:+.2f}", "", "", "", ""])
    notes = [
        f"A: {names[0]}",
        f"B: {names[1]}",
        "p: two-sided paired bootstrap over sentences, for each row by itself.",
    ]
    notes.append("p (Holm): corrected for the number of rows. verdict: A compared with B, where p (Holm) < 0.05.")
    for name, conditions in (("A", comparison.only_a), ("B", comparison.only_b)):
        notes += [f"Only {name} was scored on: {', '.join(map(str, conditions))}"] if conditions else []
    return "\n".join([(markdown if form == "markdown" else aligned)(columns, rows), *notes]) + "\n"


def _entry(row: "Difference") -> dict[str, Any]:
    entry = {"condition": str(row.condition), "metric": row.metric, "a": row.a, "b": row.b, "difference": row.a - row.b}
    entry |= {"low": row.interval[0], "high": row.interval[1], "p_value": row.p_value, "corrected": row.corrected}
    return entry | {"verdict": row.verdict}
