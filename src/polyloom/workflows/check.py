"""Check the data of a recipe: before training, and for `polyloom data check`."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from polyloom.checkpoint import read_manifest
from polyloom.conditions import Condition
from polyloom.config import Recipe
from polyloom.data.catalog import resolve
from polyloom.data.check import Issue, check_corpora, unread_test
from polyloom.data.corpus_stats import CorpusRole, Role
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import ConfigError, DataError
from polyloom.inference.untrained import TrainedParts
from polyloom.io.cache import cache_folder
from polyloom.model import Model
from polyloom.rundir import RunDir
from polyloom.training.events import IssueFound, OnEvent

TOKENIZED = 1000  # examples of a corpus, to find out whether the tokenizer knows its characters


def corpora_of(recipe: Recipe, *, root: Path | None = None) -> Iterator[CorpusRole]:
    """Yield the corpora of a recipe with their roles.

    Args:
        recipe: The recipe.
        root: Data root. Default: that of the recipe.
    """
    for role in get_args(Role):
        for name in getattr(recipe.data, role):
            yield from _corpora(recipe, role, name, root)


def _corpora(recipe: Recipe, role: Role, name: str, root: Path | None) -> Iterator[CorpusRole]:
    condition, own_root = Condition.parse(name), Path(recipe.data.root) if recipe.data.root else None
    for corpus in getattr(recipe.data, role)[name]:
        yield CorpusRole(condition.task, name.partition("/")[2], role, resolve(corpus, root=root or own_root))


def check_recipe(recipe: Recipe, tokenizer: Tokenizer, *, on_event: OnEvent) -> None:
    """Check the corpora of a recipe before they are encoded: report issues, and raise an error for certain mistakes.

    Statistics of corpora are stored beside the encoded datasets. Test corpora that are missing are an issue only:
    training does not need them. Training corpora in object storage were checked when they were prepared.
    """
    uses: list[CorpusRole] = []
    missing: list[Issue] = []
    roles = [role for role in get_args(Role) if role != "train" or recipe.data.prepared is None]
    for role in roles:
        for name in getattr(recipe.data, role):
            try:
                uses += _corpora(recipe, role, name, None)
            except DataError as error:
                if role != "test":
                    raise
                missing.append(unread_test(str(error)))
    report = check_corpora(
        uses, languages=recipe.languages, tokenizer=tokenizer, tokenized=TOKENIZED, known_labels=_known_labels(recipe),
        cache=cache_folder("datasets"), require_tests=False,
    )  # fmt: skip
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
            refused.append(f"{issue.what} If it is meant so: `data: {{allow: [{issue.mistake}]}}`.")
        if issue.severity != "note":
            on_event(IssueFound(severity=issue.severity, what=issue.what, refused=certain))
    if refused:
        raise ConfigError("recipe", refused)


def _known_labels(recipe: Recipe) -> dict[str, list[str]]:
    """Return the labels of the run that the recipe continues, by task."""
    if recipe.init_from is None:
        return {}
    tasks = read_manifest(RunDir(Path(recipe.init_from)).best())["tasks"]
    return {task: labels for task, labels in tasks.items() if isinstance(labels, list)}
