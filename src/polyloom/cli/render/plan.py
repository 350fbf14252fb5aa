"""A plan for people: what it is, a verdict, a table, a plot."""

from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.table import Table

from polyloom.cli.plot import log_plot
from polyloom.workflows.planning import GROWTH, Cost, Plan

MAX_WIDTH = 120
CHOSEN = "●"
NEVER = 1_000_000  # languages; there are about 7,000


def render(plan: Plan, console: Console) -> None:
    """Print a plan."""
    width = min(console.width, MAX_WIDTH)
    console.print("\n".join(_introduction(plan)), width=width)
    console.print()
    console.print(_table(plan), width=width)
    console.print()
    console.print("Parameters without task heads. An adapter is one condition's weights in fp32.", width=width)
    for name, reason in plan.methods.items():
        if isinstance(reason, str):
            console.print(f"{name} does not apply: {reason}", width=width)
    if any(cost.extra_parameters for cost in plan.costs().values()):
        console.print()
        console.print(f"Extra parameters from {GROWTH[0]} to {GROWTH[-1]:,} languages (both axes logarithmic)")
        console.print("\n".join(_plot(plan, width)), no_wrap=True, overflow="ignore", crop=False)


def number(value: float) -> str:
    """A count in three digits: 82.9M, 1.59M, 50."""
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
    return [*lines, "", " ".join([verdict, *_rivals(plan, cost)])]


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _rivals(plan: Plan, cost: Cost) -> list[str]:
    """Compare with the stored and the generated alternatives made for this kind of backbone."""
    names = (
        ("lang-adapters", "pair-adapters", "hyper-adapters") if len(plan.backbone.layers) > 1 else ("madx", "hyperx")
    )
    sentences = []
    for name in names:
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
    return sentences


def _break_even(plan: Plan, flat: Cost, steep: Cost) -> int | None:
    """The first number of languages at which the flat one has fewer parameters."""

    def smaller(count: int) -> bool:
        more = count - plan.languages
        return flat.extra_with(more) < steep.extra_with(more)

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


def _plot(plan: Plan, width: int) -> list[str]:
    shown = {name: cost for name, cost in plan.costs().items() if cost.extra_with(GROWTH[0] - plan.languages) > 0}
    marks = _marks(plan, list(shown))
    drawn = {marks[name]: _curve(plan, cost) for name, cost in shown.items()}
    rows = log_plot(
        drawn, [(count, f"{count:,}") for count in GROWTH], width=width - 1, height=16, label=number, solid=CHOSEN
    )
    last = GROWTH[-1] - plan.languages
    entries = [f"{marks[name]} {name} {number(cost.extra_with(last))}" for name, cost in shown.items()]
    size = max(map(len, entries)) + 3
    per_row = max(1, (width - 10) // size)
    lines = [
        "".join(f"{entry:<{size}}" for entry in entries[at : at + per_row]).rstrip()
        for at in range(0, len(entries), per_row)
    ]
    silent = [name for name in plan.costs() if name not in shown]
    note = [f"{'':>10}nothing extra at any number: {', '.join(silent)}"] if silent else []
    return [*rows, f"{'':>10}at {GROWTH[-1]:,} languages:", *(f"{'':>10}{line}" for line in lines), *note]


def _curve(plan: Plan, cost: Cost) -> Callable[[float], float]:
    return lambda count: max(1.0, cost.extra_with(round(count) - plan.languages))


def _marks(plan: Plan, names: list[str]) -> dict[str, str]:
    """A letter for every method, from its name if there is a free one in it."""
    marks: dict[str, str] = {}
    for name in names:
        letters = [letter for letter in name.upper() + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter.isalpha()]
        marks[name] = CHOSEN if name == plan.chosen else next(c for c in letters if c not in marks.values())
    return marks
