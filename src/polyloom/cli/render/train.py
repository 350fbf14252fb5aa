"""Show a run in the terminal: trainable parameters, the mixture, progress and validations."""

import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from polyloom.cli.render.plan import number
from polyloom.training.events import (
    CheckpointSaved,
    CheckpointSkipped,
    DatasetStarted,
    Event,
    IssueFound,
    LanguageShares,
    MixtureReady,
    OnEvent,
    Resumed,
    RunFinished,
    StageStarted,
    StepEvent,
    StepSkipped,
    StepTaken,
    Validated,
)

SMOOTHING = 0.95  # of the loss that is shown; the log has the loss of every step
RECENT = 50  # steps that speed is measured over
LISTED = 12  # datasets that the progress names
INTERVAL = 10.0  # seconds between progress lines if stderr is not a terminal
COLLAPSED = 0.01  # share of weights that differs between languages, below which they count as equal


@dataclass
class TrainingProgress:
    """The state of a run, as its events so far describe it."""

    stage: str = ""
    """Name of the stage."""
    step: int = 0
    """Steps taken in the stage."""
    steps: int = 0
    """Number of steps of the stage."""
    total: int = 0
    """Steps taken in all stages."""
    saved: int = 0
    """Value of `total` at the newest checkpoint; 0 if there is none."""
    datasets: Counter[str] = field(default_factory=Counter)
    """Number of examples since this process started, by dataset."""
    activity: str = "loading"
    """What is done before the first step; empty from then on."""
    _loss: float = 0.0
    _weight: float = 0.0
    _recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def update(self, event: Event) -> None:
        """Update the state by an event."""
        match event:
            case DatasetStarted():
                self.activity = f"reading {event.dataset}"
            case Resumed():
                self.total = self.saved = event.total
            case StageStarted():
                self.stage, self.step, self.steps, self.activity = event.stage, event.done, event.steps, ""
                self._loss = self._weight = 0.0
            case StepEvent():
                self.step, self.total = event.step, event.total
                self.datasets.update(event.datasets)
                self._recent.append((event.tokens, sum(event.seconds.values())))
                # A moving average that starts at 0, and the sum of its weights, by which `figures` divides it: so the
                # first steps are not drawn to 0.
                if event.loss is not None:
                    self._loss = SMOOTHING * self._loss + (1 - SMOOTHING) * event.loss
                    self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
            case CheckpointSaved():
                self.saved = event.total

    def figures(self) -> list[str]:
        """Return loss, speed, and time to the end of the stage (without validations)."""
        figures = [f"loss {self._loss / self._weight:.3f} nats"] if self._weight else []
        seconds = sum(seconds for _, seconds in self._recent)
        if seconds:
            left = round((self.steps - self.step) * seconds / len(self._recent))
            speed = sum(tokens for tokens, _ in self._recent) / seconds
            figures += [f"{number(speed)} tokens/s", f"{timedelta(seconds=left)} left"]
        return figures

    def examples(self) -> str:
        """Return the number of examples by dataset, as a line; of many datasets, only their number and their sum."""
        if len(self.datasets) > LISTED:
            return f"{self.datasets.total():,} examples of {len(self.datasets)} datasets"
        counts = " · ".join(f"{dataset} {count:,}" for dataset, count in self.datasets.items())
        return f"examples {counts}" if counts else ""


@contextmanager
def show_progress(progress: TrainingProgress) -> Iterator[OnEvent]:
    """Show events on stderr: as a live display in a terminal, else line by line."""
    if sys.stderr.isatty():
        console = Console(stderr=True, highlight=False, markup=False)
        with Live(console=console, refresh_per_second=4, get_renderable=lambda: _display(progress, console.width)):

            def on_event(event: Event) -> None:
                progress.update(event)
                for message in _messages(event):
                    console.print(message)

            yield on_event
        return

    console = Console(stderr=True, highlight=False, markup=False, width=1000)  # lines of a log are not wrapped
    last = time.monotonic()

    def print_line(event: Event) -> None:
        nonlocal last
        progress.update(event)
        for message in _messages(event):
            console.print(message)
        now, at_end = time.monotonic(), isinstance(event, StepTaken) and progress.step == progress.steps
        if at_end or (now - last >= INTERVAL and isinstance(event, DatasetStarted | StepTaken)):
            last = now
            position = f"{progress.stage}: step {progress.step:,} of {progress.steps:,}"
            console.print(progress.activity or "; ".join([position, *progress.figures(), progress.examples()]))

    yield print_line


def _display(progress: TrainingProgress, width: int) -> RenderableType:
    if progress.activity:
        return Text(progress.activity, style="dim")
    # The bar gets what the texts leave of the line.
    texts = [progress.stage, f"{progress.step:,}/{progress.steps:,}", *progress.figures()]
    room = width - sum(len(text) + 2 for text in texts)
    bar = ProgressBar(total=progress.steps, completed=progress.step, width=min(max(room, 6), 30))
    row = Table.grid(*(Column(no_wrap=True) for _ in range(len(texts) + 1)), padding=(0, 2, 0, 0))
    row.add_row(texts[0], bar, *texts[1:])
    return Group(row, Text(progress.examples(), style="dim", no_wrap=True, overflow="ellipsis"))


def _messages(event: Event) -> Iterator[RenderableType]:
    """Yield the messages about an event; most events have none."""
    match event:
        case CheckpointSkipped():
            yield f"Skipping {event.checkpoint}: {event.reason}"
        case IssueFound() if not event.refused:  # others end the command with an error
            yield f"Warning: {event.what}"
        case Resumed():
            yield f"Resuming from {event.checkpoint}."
        case StageStarted():
            yield from _stage(event)
        case MixtureReady():
            table = _table("dataset", right=("examples", "share", "epochs"))
            for row in event.datasets:
                table.add_row(row.dataset, f"{row.size:,}", f"{100 * row.share:.1f} %", f"{row.epochs:.2f}")
            yield from ("", table, "")
        case StepSkipped():
            yield f"Step {event.step} skipped: its loss or gradient was NaN or infinite."
        case Validated():
            yield _validation(event)
        case LanguageShares():
            # Tasks whose weights depended on the language before, and no longer do.
            for task, share in event.after.items():
                before = event.before.get(task, 0.0)
                if share < COLLAPSED <= before:
                    yield (
                        f"Warning: the weights of {task} are now the same for all languages; {100 * before:.0f} % of "
                        "them differed before. The hypernetwork has collapsed: lower optim.lr or raise "
                        "optim.warmup_steps."
                    )
        case RunFinished():
            yield f"{event.steps:,} steps, {number(event.tokens)} tokens, {timedelta(seconds=round(event.seconds))}."


def _stage(event: StageStarted) -> Iterator[RenderableType]:
    """Yield the parameters of a stage by group, and the scale of the weights that it starts with."""
    if event.done >= event.steps:
        yield f"Stage {event.stage} is already finished."
        return

    groups = event.parameter_report
    table = _table(f"stage {event.stage}", right=("trainable", "of", "tensors"))
    for group in groups:
        trainable = number(group.trained) if group.trained else "frozen"
        table.add_row(group.name, trainable, number(group.total), str(group.tensors))
    trained, total = sum(group.trained for group in groups), sum(group.total for group in groups)
    table.add_row("all", number(trained), number(total), f"{100 * trained / total:.1f} %")
    yield from ("", table)

    if std := event.weight_std:
        low, high = min(std, key=std.__getitem__), max(std, key=std.__getitem__)
        smallest, largest = f"{std[low]:.2g} ({low})", f"{std[high]:.2g} ({high})"
        yield f"Standard deviation of the adapters' weights at the start: {smallest} to {largest}."


def _validation(event: Validated) -> str:
    """Write the scores of a validation, and the one that selects checkpoints, in which perplexities are losses."""
    scores = " · ".join(f"{name} {event.metrics[name]} {_score(value)}" for name, value in event.scores.items())
    losses = [metric == "perplexity" for metric in event.metrics.values()]
    minus_loss = "minus the loss in nats per token" + ("" if all(losses) else " for perplexities")
    meaning = f"mean, {minus_loss}" if any(losses) else "mean"
    best = ", the best so far" if event.best else ""
    score = f"selection score {_score(event.selection_score)} ({meaning}; higher is better){best}"
    return f"Validation at step {event.step:,}: {scores}; {score}"


def _score(value: float | None) -> str:
    return "NaN or infinite" if value is None else f"{value:.2f}"


def _table(left: str, *, right: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(left, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table
