"""Print a planned run: epochs by size of the corpora, resources, and warnings."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from polyloom.cli.render.plan import MAX_WIDTH, number
from polyloom.cli.render.tables import aligned
from polyloom.workflows.planning import DirectionPlan, RunPlan
from polyloom.workflows.planning.schedule import MANY_EPOCHS

_GROUPS = (("above 10M", 10**7), ("1M to 10M", 10**6), ("100k to 1M", 10**5), ("10k to 100k", 10**4), ("below 10k", 0))


def render_run(run: RunPlan, console: Console) -> None:
    """Print a planned run."""
    width = min(console.width, MAX_WIDTH)
    pairs = sum(direction.pairs for direction in run.directions)
    console.print()
    console.print(
        f"The run: {run.steps:,} steps, {len(run.directions)} directions with {number(pairs)} examples.", width=width
    )
    console.print()
    columns = ("pairs", "directions", "examples", "of the batches", "epochs")
    console.print(aligned(columns, list(_groups(run.directions))), width=width)
    for line in (*_needs(run), *_warnings(run)):
        console.print(line, width=width)


def _groups(directions: Sequence[DirectionPlan]) -> Iterator[list[str]]:
    left = list(directions)
    for name, least in _GROUPS:
        group = [direction for direction in left if direction.pairs >= least]
        left = [direction for direction in left if direction.pairs < least]
        if group:
            epochs = sorted(direction.epochs for direction in group)
            few, many = (f"{value:.1f}" if value < 10 else f"{value:.0f}" for value in (epochs[0], epochs[-1]))
            share = 100 * sum(direction.share for direction in group)
            examples = sum(direction.pairs for direction in group)
            spread = few if few == many else f"{few} to {many}"
            yield [name, str(len(group)), number(examples), f"{share:.1f} %", spread]


def _needs(run: RunPlan) -> Iterator[str]:
    hours = "" if run.hours is None else f": {run.hours:,.1f} hours"
    yield f"Tokens: {number(run.tokens)} of sources, as many of targets; {run.flops:.2e} operations{hours}."
    yield (
        f"Disk: {_size(run.dataset_bytes)} of datasets. Memory: {_size(run.model_bytes)} for weights, gradients and "
        f"Adam (activations on top), {_size(run.order_bytes)} in every process for the order of examples."
    )


def _size(value: float) -> str:
    return f"{value / 1e9:,.1f} GB" if value >= 1e9 else f"{value / 1e6:,.1f} MB"


def _warnings(run: RunPlan) -> Iterator[str]:
    if repeated := run.repeated():
        worst = f"{repeated[0].direction}, {repeated[0].epochs:,.0f}"
        yield (
            f"Warning: {len(repeated)} directions have more than {MANY_EPOCHS} epochs (most: {worst}), which improves "
            f"little. Lower mixture.temperature or train.steps, or set "
            f"mixture={{strategy: unimax, max_repeats: {MANY_EPOCHS}}}."
        )
    if thin := run.thin():
        yield (
            f"Warning: {len(thin)} directions have too few examples of a length to fill a draw (worst: "
            f"{thin[0].direction}, {100 * thin[0].full:.0f} % full): batches are smaller than they seem. "
            f"Raise mixture.datasets_per_batch."
        )
