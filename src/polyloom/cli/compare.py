"""``polyloom compare``: test whether the scores of two runs differ."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyloom.cli.evaluate import Split
from polyloom.cli.render.tables import Format, aligned, markdown, tabs

if TYPE_CHECKING:
    from polyloom.evaluate.comparison import Comparison, Difference


def compare(
    run_a: Annotated[Path, typer.Argument(help="Run that was evaluated.")],
    run_b: Annotated[Path, typer.Argument(help="Run to compare it with.")],
    *,
    on: Annotated[Split, typer.Option(help="Split whose scores are compared.")] = "test",
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = "table",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Compare two runs on the sentences that both were scored on, with a paired bootstrap.

    Example: polyloom compare runs/hyperx runs/madx
    """
    from polyloom.workflows.compare import compare as compare_runs  # noqa: PLC0415 - imports torch

    compared = compare_runs(run_a, run_b, split=on, seed=seed)
    typer.echo(_render(compared, form, names=(str(run_a), str(run_b))), nl=False)


def _render(compared: "Comparison", form: Format, *, names: tuple[str, str]) -> str:
    if form == "json":
        found = {"a": names[0], "b": names[1], "differences": [_entry(one) for one in compared.differences]}
        found |= {"only_a": list(map(str, compared.only_a)), "only_b": list(map(str, compared.only_b))}
        return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if form == "tsv":
        entries = [_entry(one) for one in compared.differences]
        return tabs(list(entries[0]), [list(map(str, entry.values())) for entry in entries])
    columns = ["condition", "metric", "A", "B", "A - B", "95 % interval", "p", "p (Holm)", "A is"]
    rows = [
        [
            str(one.condition), one.metric, f"{one.a:.2f}", f"{one.b:.2f}", f"{one.a - one.b:+.2f}",
            "[{:+.2f}, {:+.2f}]".format(*one.interval), f"{one.p_value:.4f}", f"{one.corrected:.4f}", one.verdict,
        ]
        for one in compared.differences
    ]  # fmt: skip
    for (task, metric), (a, b) in compared.means().items():
        rows.append([f"mean of {task}", metric, f"{a:.2f}", f"{b:.2f}", f"{a - b:+.2f}", "", "", "", ""])
    notes = [
        f"A: {names[0]}",
        f"B: {names[1]}",
        "p: two-sided paired bootstrap over sentences, for each row by itself.",
    ]
    notes.append("p (Holm): corrected for the number of rows; the verdict uses p < 0.05.")
    for name, conditions in (("A", compared.only_a), ("B", compared.only_b)):
        notes += [f"Only {name} was scored on: {', '.join(map(str, conditions))}"] if conditions else []
    return "\n".join([(markdown if form == "markdown" else aligned)(columns, rows), *notes]) + "\n"


def _entry(one: "Difference") -> dict[str, Any]:
    entry = {"condition": str(one.condition), "metric": one.metric, "a": one.a, "b": one.b, "difference": one.a - one.b}
    entry |= {"low": one.interval[0], "high": one.interval[1], "p": one.p_value, "p_holm": one.corrected}
    return entry | {"verdict": one.verdict}
