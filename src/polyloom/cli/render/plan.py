"""Print a plan: the cost of all methods, a run of translation, the memory of a device."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from polyloom.cli.render.tables import aligned
from polyloom.workflows.planning import Cost, DeviceMemory, DirectionPlan, Plan, RunPlan
from polyloom.workflows.planning.schedule import MANY_EPOCHS

MAX_WIDTH = 120
CHOSEN = "●"
NEVER = 1_000_000  # languages; there are about 7,000
_GROUPS = (("above 10M", 10**7), ("1M to 10M", 10**6), ("100k to 1M", 10**5), ("10k to 100k", 10**4), ("below 10k", 0))
_PARTS = {
    "backbone": "backbone",
    "gathered": "gathered from other devices",
    "learned": "learned, gradients, Adam",
    "generated": "weights of the conditions",
    "activations": "activations",
    "layer": "one layer, recomputed",
    "logits": "logits",
    "total": "total",
}


# -- methods ----------------------------------------------------------------------------------------------------------


def render(plan: Plan, console: Console) -> None:
    """Print the recipe in short, a verdict, and a table of all methods."""
    width = min(console.width, MAX_WIDTH)
    console.print("\n".join(_introduction(plan)), width=width)
    console.print()
    console.print(_table(plan), width=width)
    console.print()
    console.print("Parameters without task heads. An adapter is one condition's weights in fp32.", width=width)
    for name, reason in plan.methods.items():
        if isinstance(reason, str):
            console.print(f"{name} does not apply: {reason}", width=width)


def number(value: float) -> str:
    """Format a count with three digits: 82.9M, 1.59M, 50."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            scaled = value / size
            digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            return f"{scaled:.{digits}f}{unit}"
    return f"{value:.0f}"


def _introduction(plan: Plan) -> list[str]:
    cost = plan.costs()[plan.chosen]
    facts = plan.backbone
    layers = " + ".join(f"{count} {stack}" for stack, count in facts.layers.items())
    share = 100 * cost.extra_parameters / facts.parameters
    lines = [f"Backbone: {facts.name or facts.family}, {number(facts.parameters)} parameters ({layers} layers)."]
    recipe = f"Recipe: {plan.chosen} for {_many(plan.languages, 'language')} and {_many(plan.tasks, 'task')}"
    lines.append(f"{recipe}; methods that store pairs get {_many(plan.directions, 'direction')}.")
    for count, stage in enumerate(cost.stages, start=1):
        data = {"raw-text": "raw text", "labelled": "labelled data", "all": "all data"}[stage.tasks]
        lines.append(f"Stage {count}, {stage.name}, on {data}: trains {', '.join(stage.trains)}.")
    if not cost.extra_parameters:
        return [*lines, "", "It adds no parameters: all languages and tasks share the backbone's."]
    verdict = (
        f"It adds {number(cost.extra_parameters)} parameters, {share:.0f} % of the backbone; "
        f"a further language adds {number(cost.parameters_per_language)}."
    )

    # Compare with the methods that store or generate adapters for this kind of backbone.
    translates = len(facts.layers) > 1  # a stack of encoder layers and one of decoder layers
    sentences = [verdict]
    for name in ("lang-adapters", "pair-adapters", "hyper-adapters") if translates else ("madx", "hyperx"):
        rival = plan.costs().get(name)
        if rival is None or name == plan.chosen or rival.parameters_per_language == cost.parameters_per_language:
            continue
        if cost.parameters_per_language < rival.parameters_per_language:
            start, smaller, larger = _break_even(plan, cost, rival), plan.chosen, name
        else:
            start, smaller, larger = _break_even(plan, rival, cost), name, plan.chosen
        if start is not None:
            when = f"From {start:,} languages on" if start > 1 else "At any number of languages"
            sentences.append(f"{when}, {smaller} is smaller than {larger}.")
    return [*lines, "", " ".join(sentences)]


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _break_even(plan: Plan, slow: Cost, fast: Cost) -> int | None:
    """Find the number of languages from which on `slow`, with fewer parameters per language, is smaller than `fast`."""

    def smaller(count: int) -> bool:
        more = count - plan.languages
        return slow.extra_with(more) < fast.extra_with(more)

    if not smaller(NEVER):
        return None
    low, high = 0, NEVER
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if smaller(middle) else (middle, high)
    return high


def _table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("\n  method", no_wrap=True)
    for column in (
        "\ntotal",
        "\nextra",
        "\ntrained",
        "MB per\nadapter",
        "FLOPs\n/token",
        "per new\nlanguage",
        "per new\ntask",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for name, cost in plan.costs().items():
        chosen = name == plan.chosen
        counts = (cost.total_parameters, cost.extra_parameters, cost.trainable_parameters)
        table.add_row(
            f"{CHOSEN if chosen else ' '} {name}",
            *map(number, counts),
            f"{cost.bytes_per_condition / 1e6:.2f}",
            number(cost.extra_flops_per_token),
            number(cost.parameters_per_language),
            number(cost.parameters_per_task),
            style="bold" if chosen else None,
        )
    return table


# -- a run -------------------------------------------------------------------------------------------------------------


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

    hours = "" if run.hours is None else f": {run.hours:,.1f} hours"
    lines = [f"Tokens: {number(run.tokens)} of sources, as many of targets; {run.flops:.2e} operations{hours}."]
    lines.append(
        f"Disk: {_size(run.dataset_bytes)} of datasets. Memory: {_size(run.model_bytes)} for weights, gradients and "
        f"Adam (activations on top), {_size(run.order_bytes)} in every process for the order of examples."
    )
    if repeated := run.repeated():
        worst = f"{repeated[0].direction}, {repeated[0].epochs:,.0f}"
        lines.append(
            f"Warning: {len(repeated)} directions have more than {MANY_EPOCHS} epochs (most: {worst}), which improves "
            f"little. Lower mixture.temperature or train.steps, or set "
            f"mixture={{strategy: unimax, max_repeats: {MANY_EPOCHS}}}."
        )
    if thin := run.thin():
        lines.append(
            f"Warning: {len(thin)} directions have too few examples of a length to fill a draw (worst: "
            f"{thin[0].direction}, {100 * thin[0].full:.0f} % full): batches are smaller than they seem. "
            f"Raise mixture.datasets_per_batch."
        )
    for line in lines:
        console.print(line, width=width)


def _groups(directions: Sequence[DirectionPlan]) -> Iterator[list[str]]:
    """Yield a row of the table for each size of corpora, the largest first."""
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


def _size(value: float) -> str:
    return f"{value / 1e9:,.1f} GB" if value >= 1e9 else f"{value / 1e6:,.1f} MB"


# -- memory ------------------------------------------------------------------------------------------------------------


def gibibytes(value: int) -> str:
    """Format a number of bytes in GiB."""
    return f"{value / 2**30:,.2f}"


def render_memory(memory: Sequence[DeviceMemory], console: Console) -> None:
    """Print the memory of a device with each setting."""
    width, first = min(console.width, MAX_WIDTH), memory[0]
    micro_batch = f"{first.rows} {'row' if first.rows == 1 else 'rows'} of {first.length:,} tokens"
    console.print()
    console.print(f"Memory per device in GiB, for a micro-batch of {micro_batch} on each.", width=width)
    console.print()
    columns = ["part"]
    for setting in memory:
        name = f"{setting.strategy}, recompute" if setting.gradient_checkpointing else setting.strategy
        columns.append(f"{CHOSEN} {name}" if setting.chosen else name)
    rows = [[label, *(gibibytes(getattr(setting, part)) for setting in memory)] for part, label in _PARTS.items()]
    console.print(aligned(columns, rows), width=width, soft_wrap=True)
    console.print(
        "The total has the larger of the two parts above it, which are not needed at the same time. Memory of the "
        "device's driver and of its allocator comes on top.",
        width=width,
    )
