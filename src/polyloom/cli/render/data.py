"""Print corpora, statistics and issues of corpora, and the progress of downloads."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from polyloom.data.catalog import COLLECTIONS, corpus_files, corpus_name, language_of, licence_of, treebanks
from polyloom.data.check import Report

if TYPE_CHECKING:
    from polyloom.data.fetch import Progress as Callback  # imports an HTTP client

MAX_WIDTH = 1000
SYMBOLS = {"serious": "[bold red]✗[/]", "check": "[bold yellow]![/]", "note": "·"}  # in the order of severity


def listed(root: Path, *, collection: str | None, languages: Sequence[str] | None) -> list[dict[str, Any]]:
    """List the corpora that are under the root or in the catalogue, one row each."""
    rows: dict[str, dict[str, Any]] = {}
    for owner in [collection] if collection else COLLECTIONS:
        for item, entry in treebanks(owner).items():
            rows[f"{owner}:{item}"] = _row(owner, item, licence=(entry.licence, "-NC" in entry.licence))
        for file in corpus_files(owner, root=root):
            name = corpus_name(owner, file.item, None)
            row = rows.setdefault(name, _row(owner, file.item, licence=licence_of(file, root)))
            row["here"].append(file.split or "all")
            row["bytes"] += file.path.stat().st_size
            row["fetchable"] = COLLECTIONS[owner].url is not None
    for row in rows.values():
        row["here"].sort(key=["train", "dev", "test", "all"].index)
    selected = [row for row in rows.values() if languages is None or row["language"] in languages]
    return sorted(selected, key=lambda row: (list(COLLECTIONS).index(row["collection"]), row["name"]))


def _row(collection: str, item: str, *, licence: tuple[str, bool]) -> dict[str, Any]:
    return {
        "name": corpus_name(collection, item, None), "collection": collection, "language": language_of(item),
        "task": COLLECTIONS[collection].task, "here": [], "bytes": 0, "fetchable": True, "licence": licence[0],
        "non_commercial": licence[1],
    }  # fmt: skip


def show_collections(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per collection."""
    table = _table("collection", "task", "licence", "from", right=("here", "size"))
    for name, collection in COLLECTIONS.items():
        corpora = [row for row in rows if row["collection"] == name]
        here = [row for row in corpora if row["here"]]
        licences = {row["licence"] for row in corpora} or {collection.licence}
        licence = licences.pop() if len(licences) == 1 else f"{len(licences)} licences"
        forbids = sum(row["non_commercial"] for row in corpora)
        licence += f", {forbids} NC" if forbids and "-NC" not in licence else ""
        count = f"{len(here)} of {len(corpora)}" if treebanks(name) else f"{len(here)}"
        size = _size(sum(row["bytes"] for row in here))
        table.add_row(name, collection.task, licence, "source" if collection.url else "mirror", count, size)
    _print(table)
    _print("\nNC: not for commercial use. List single corpora: polyloom data list ud, or --language yo,yor")


def show_corpora(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per corpus."""
    table = _table("corpus", "task", "here", "licence", right=("size",))
    for row in rows:
        here = ", ".join(row["here"]) or "to fetch"
        licence = row["licence"] + (", NC" if row["non_commercial"] and "-NC" not in row["licence"] else "")
        table.add_row(row["name"], row["task"], here, licence, _size(row["bytes"]) if row["here"] else "")
    if rows:
        _print(table)
    else:
        Console(stderr=True).print("No such corpora, neither under the data root nor in the catalogue.")


def show_report(report: Report) -> None:
    """Print the statistics of corpora and their issues."""
    table = _table("corpus", "use", right=("sentences", "words", "p95", "longest", "labels", "repeated"))
    for facts in report.corpora:
        words = facts.words
        table.add_row(
            escape(facts.name), f"{facts.task} {facts.role}", f"{facts.sentences:,}", f"{words.total:,}",
            f"{words.p95:.0f}", f"{words.longest:,}", str(len(facts.labels) or ""), f"{facts.duplicates:,}",
        )  # fmt: skip
    _print(table)

    # Tokens are counted only where a tokenizer is named.
    table = _table("corpus", right=("tokens", "per word", "p95", "longest", "too long", "unknown"))
    for facts in report.corpora:
        if tokens := facts.tokens:
            table.add_row(
                escape(facts.name), f"{tokens.total:,}", f"{tokens.total / max(1, facts.words.total):.2f}",
                f"{tokens.p95:.0f}", f"{tokens.longest:,}", f"{facts.too_long:,}",
                f"{100 * facts.unknown / max(1, tokens.total):.2f} %",
            )  # fmt: skip
    if table.rows:
        _print("")
        _print(table)

    _print("\nNo issues found." if not report.issues else "")
    for issue in report.issues:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(SYMBOLS[issue.severity], escape(issue.what))
        Console(highlight=False).print(grid)


@contextmanager
def progress_bar() -> Iterator["Callback"]:
    """Show a progress bar per file on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def update(path: str, done: int, total: int | None) -> None:
            if path not in tasks:
                tasks[path] = bar.add_task(path.rpartition("/")[2], total=total)
            bar.update(tasks[path], completed=done, total=total)

        yield update


def _table(*left: str, right: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _print(what: Any) -> None:
    """Print without truncation, however wide the terminal is."""
    console = Console(highlight=False)
    if isinstance(what, Table):
        console.width = max(console.width, Console(width=MAX_WIDTH).measure(what).maximum)
    console.print(what)
