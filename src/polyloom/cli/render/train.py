"""A run for those who wait for it: what learns and from what, then how far it is."""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from polyloom.cli.render.plan import number

Event = Mapping[str, Any]
SMOOTHING = 0.95  # of the loss that is shown; the log has every step's own
RECENT = 50  # steps that speed is measured over
EVERY = 10.0  # seconds between lines where there is no terminal
DEAD = 0.01  # share of weights that is a language's own, below which languages cannot be told apart


@dataclass
class Tally:
    """What the events of a run so far amount to.

    Attributes:
        stage: Name of the stage.
        step: Steps taken in it.
        steps: How many it has.
        total: Steps taken in all stages.
        saved: The newest checkpoint, by `total`; 0 if there is none.
        datasets: Examples seen since this process began, by cell.
        doing: What is done before the first step.
    """

    stage: str = ""
    step: int = 0
    steps: int = 0
    total: int = 0
    saved: int = 0
    datasets: Counter[str] = field(default_factory=Counter)
    doing: str = "loading"
    _loss: float = 0.0
    _weight: float = 0.0
    _recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def take(self, event: Event) -> None:
        """Add an event."""
        kind = event["event"]
        if kind == "preparing":
            self.doing = f"reading {event['cell']}"
        elif kind == "resumed":
            self.total = self.saved = event["total"]
        elif kind == "stage":
            self.stage, self.step, self.steps, self.doing = event["stage"], event["done"], event["steps"], ""
            self._loss = self._weight = 0.0
        elif kind in ("step", "skipped"):
            self._take_step(event)
        elif kind == "saved":
            self.saved = event["total"]

    def _take_step(self, event: Event) -> None:
        self.step, self.total = event["step"], event["total"]
        self.datasets.update(event["datasets"])
        self._recent.append((event["tokens"], sum(event["seconds"].values())))
        if event["loss"] is not None:
            self._loss = SMOOTHING * self._loss + (1 - SMOOTHING) * event["loss"]
            self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)

    def figures(self) -> list[str]:
        """Loss, speed, and time to the end of the stage (without validations)."""
        said = [f"loss {self._loss / self._weight:.3f}"] if self._weight else []
        seconds = sum(seconds for _, seconds in self._recent)
        if seconds:
            left = round((self.steps - self.step) * seconds / len(self._recent))
            speed = sum(tokens for tokens, _ in self._recent) / seconds
            said += [f"{number(speed)} tokens/s", f"{timedelta(seconds=left)} left"]
        return said

    def seen(self) -> str:
        """Examples by cell."""
        return (
            "seen " + " · ".join(f"{dataset} {count:,}" for dataset, count in self.datasets.items())
            if self.datasets
            else ""
        )


@contextmanager
def watching(tally: Tally) -> Iterator[Callable[[Event], None]]:
    """Show events on stderr: as a display that stays in its place, or line by line where that is no terminal."""
    if sys.stderr.isatty():
        console = Console(stderr=True, highlight=False, markup=False)
        with Live(console=console, refresh_per_second=4, get_renderable=lambda: _display(tally, console.width)):

            def on_event(event: Event) -> None:
                tally.take(event)
                for said in _said(event):
                    console.print(said)

            yield on_event
    else:
        yield _lines(tally)


def _lines(tally: Tally) -> Callable[[Event], None]:
    console = Console(stderr=True, highlight=False, markup=False, width=1000)  # a log wraps no lines
    last = time.monotonic()

    def on_event(event: Event) -> None:
        nonlocal last
        tally.take(event)
        for said in _said(event):
            console.print(said)
        now, at_end = time.monotonic(), event["event"] == "step" and tally.step == tally.steps
        if at_end or (now - last >= EVERY and event["event"] in ("preparing", "step")):
            last = now
            console.print(tally.doing or "; ".join([_place(tally), *tally.figures(), tally.seen()]))

    return on_event


def _place(tally: Tally) -> str:
    return f"{tally.stage}: step {tally.step:,} of {tally.steps:,}"


def _display(tally: Tally, width: int) -> RenderableType:
    if tally.doing:
        return Text(tally.doing, style="dim")
    texts = [tally.stage, f"{tally.step:,}/{tally.steps:,}", *tally.figures()]
    room = width - sum(len(text) + 2 for text in texts)
    bar = ProgressBar(total=tally.steps, completed=tally.step, width=min(max(room, 6), 30))
    row = Table.grid(*(Column(no_wrap=True) for _ in range(len(texts) + 1)), padding=(0, 2, 0, 0))
    row.add_row(texts[0], bar, *texts[1:])
    return Group(row, Text(tally.seen(), style="dim", no_wrap=True, overflow="ellipsis"))


def _said(event: Event) -> Iterator[RenderableType]:
    """What is worth a line of its own."""
    match event["event"]:
        case "resumed":
            yield f"Resuming from {event['checkpoint']}."
        case "stage" if event["done"] >= event["steps"]:
            yield f"Stage {event['stage']} is finished already."
        case "stage":
            yield ""
            yield _audit(event["stage"], event["parameter_report"])
            yield from _scales(event["weight_std"])
        case "mixture":
            yield ""
            yield _mixture(event["datasets"])
            yield ""
        case "skipped":
            yield f"Step {event['step']} skipped: its loss or gradient was no number."
        case "validation":
            scores = " · ".join(f"{name} {value:.2f}" for name, value in event["scores"].items())
            best = ", the best so far" if event["best"] else ""
            yield f"Validation at step {event['step']:,}: {scores} (mean {event['mean']:.2f}{best})"
        case "languages":
            yield from _dead(event["before"], event["after"])
        case "done":
            took = timedelta(seconds=round(event["seconds"]))
            yield f"{event['steps']:,} steps, {number(event['tokens'])} tokens, {took}."


def _audit(stage: str, groups: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(f"stage {stage}", right=("learns", "of", "tensors"))
    for group in groups:
        trainable = number(group["trained"]) if group["trained"] else "frozen"
        table.add_row(group["name"], trainable, number(group["total"]), str(group["tensors"]))
    trained, total = (sum(group[key] for group in groups) for key in ("trained", "total"))
    table.add_row("all", number(trained), number(total), f"{100 * trained / total:.1f} %")
    return table


def _scales(weight_std: Mapping[str, float]) -> Iterator[str]:
    if weight_std:
        low, high = min(weight_std, key=weight_std.__getitem__), max(weight_std, key=weight_std.__getitem__)
        smallest, largest = f"{weight_std[low]:.2g} ({low})", f"{weight_std[high]:.2g} ({high})"
        yield f"Standard deviation of the adapters' weights at the start: {smallest} to {largest}."


def _dead(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[str]:
    """Weights that once were a language's own and are no more."""
    for task, share in after.items():
        if share < DEAD <= before.get(task, 0.0):
            yield (
                f"Warning: the weights of {task} are now the same for all languages; {100 * before[task]:.0f} % of "
                "them were a language's own. What makes them has died: lower optim.lr or lengthen optim.warmup_steps."
            )


def _mixture(datasets: Sequence[Sequence[Any]]) -> Table:
    table = _table("dataset", right=("examples", "share", "passes"))
    for dataset, size, share, passes in datasets:
        table.add_row(dataset, f"{size:,}", f"{100 * share:.1f} %", f"{passes:.2f}")
    return table


def _table(left: str, *, right: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(left, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table
