"""Check the data of a recipe: before training, and for `polyloom data check`."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from polyloom.checkpoint import read_manifest
from polyloom.conditions import Condition
from polyloom.config import Recipe
from polyloom.config.build import RecipeCorpora
from polyloom.data.check import Issue, check_corpora, unread_test
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import ConfigError
from polyloom.inference.untrained import TrainedParts
from polyloom.io.cache import cache_folder
from polyloom.model import Model
from polyloom.rundir import RunDir
from polyloom.training.events import IssueFound, OnEvent

TOKENIZED = 1000  # examples of a corpus, to find out whether the tokenizer knows its characters


def check_recipe(recipe: Recipe, corpora: RecipeCorpora, tokenizer: Tokenizer, *, on_event: OnEvent) -> None:
    """Check the corpora of a recipe before they are encoded: report issues, and raise an error for certain mistakes.

    Args:
        recipe: The recipe.
        corpora: Its corpora. Training corpora in object storage were checked when they were prepared.
        tokenizer: Its tokenizer.
        on_event: Called with every issue.
    """
    # Labels of the run that the recipe continues, by task: its model has no others.
    known_labels = {}
    if recipe.init_from is not None:
        tasks = read_manifest(RunDir(Path(recipe.init_from)).best())["tasks"]
        known_labels = {task: labels for task, labels in tasks.items() if isinstance(labels, list)}

    # Statistics of corpora are stored beside the encoded datasets.
    report = check_corpora(
        corpora.roles(), languages=recipe.languages, tokenizer=tokenizer, tokenized=TOKENIZED,
        known_labels=known_labels, cache=cache_folder("datasets"), require_tests=False,
    )  # fmt: skip
    missing = [unread_test(str(error)) for error in corpora.missing_tests]
    report_issues([*report.issues, *missing], allowed=recipe.data.allow, on_event=on_event)


def check_model(
    model: Model, datasets: Iterable[tuple[Condition, Sequence[str]]], trained_on: Collection[str]
) -> list[Issue]:
    """Find languages that are not trained, and labels of the training data that the model of a continued run lacks."""
    issues = [
        Issue(
            "serious",
            f"language {language!r} has no training data: its parameters stay as they were initialised, and "
            "predictions in it are arbitrary.",
        )
        for language in TrainedParts(model.method, trained_on).missing_languages()
    ]
    for condition, labels in datasets:
        known = model.tasks[condition.task].labels if condition.task in model.tasks else ()
        lacking = [label for label in labels if known and label not in known]
        if lacking:
            what = f"data.train.{condition}: the run that is continued does not have the labels {', '.join(lacking)}. "
            issues.append(Issue("serious", f"{what}They are left out of the loss."))
    return issues


def report_issues(issues: Iterable[Issue], *, allowed: Collection[str] = (), on_event: OnEvent) -> None:
    """Report issues as events, except notes, and raise an error for those that are certain mistakes and not allowed."""
    refused = []
    for issue in issues:
        certain = issue.mistake is not None and issue.mistake not in allowed
        if certain:
            refused.append(f"{issue.what} If this is intentional: `data: {{allow: [{issue.mistake}]}}`.")
        if issue.severity != "note":
            on_event(IssueFound(severity=issue.severity, what=issue.what, refused=certain))
    if refused:
        raise ConfigError("recipe", refused)
