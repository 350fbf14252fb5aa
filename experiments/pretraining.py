"""Report how a backbone was pretrained: tokens of every corpus, and its masked loss before and after."""

from collections import Counter
from math import log
from pathlib import Path

from experiments.read import row
from experiments.run import commit, portable, steps_of, training_summary
from experiments.study import Settings
from polyloom.cli.render.tables import markdown

STUDY = "pretraining"  # folder of the raw results


def report(run: Path) -> Settings:
    """Report a finished pretraining."""
    from polyloom.config import load_recipe, resolved  # noqa: PLC0415 - slow imports
    from polyloom.rundir import RunDir  # noqa: PLC0415
    from polyloom.workflows.train import prepare_training  # noqa: PLC0415

    recipe = load_recipe(RunDir(run).recipe)
    setup = prepare_training(recipe)
    (plan,) = setup.plans
    before = {str(condition): score.value for condition, score in setup.validate(setup.model, plan).items()}
    tokens: Counter[str] = Counter()
    for step in steps_of(run):
        rows = sum(step["datasets"].values())
        tokens.update({name: step["tokens"] * count // rows for name, count in step["datasets"].items()})
    about = {"study": STUDY, "seed": recipe.train.seed, "commit": commit(), "recipe": portable(resolved(recipe))}
    return about | {"training": training_summary(run), "tokens": dict(tokens), "before": before}


def pretraining_table(backbone: str) -> str:
    """Show the tokens and the masked loss of every corpus of a pretraining, in nats, and their sum and means."""
    (run,) = row(STUDY, backbone).runs
    before, after, tokens = run["before"], run["training"]["validation"][-1], run["tokens"]
    lines = [
        [name.removeprefix("mlm/"), f"{tokens[name]:,}", f"{log(before[name]):.2f}", f"{log(after[name]):.2f}"]
        for name in sorted(before)
    ]
    means = [sum(map(log, scores.values())) / len(scores) for scores in (before, after)]
    lines.append([f"all {len(before)}", f"{sum(tokens.values()):,}", *(f"{mean:.2f}" for mean in means)])
    return markdown(("corpus", "tokens", "before", "after"), lines)
