"""Print a plan: the recipe in short, a verdict, a table of all methods."""

from rich import box
from rich.console import Console
from rich.table import Table

from polyloom.workflows.planning import Cost, Plan

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
    return [*lines, "", " ".join([verdict, *_rivals(plan, cost)])]


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _rivals(plan: Plan, cost: Cost) -> list[str]:
    """Compare with the methods that store or generate adapters for this kind of backbone."""
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
