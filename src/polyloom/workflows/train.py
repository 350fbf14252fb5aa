"""Train a recipe, or resume the run in its directory."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from polyloom.checkpoint import load_checkpoint, read_manifest
from polyloom.conditions import Condition
from polyloom.config import Recipe, apply_overrides, direction_mistakes, load_recipe, parse_recipe, resolved
from polyloom.config.build import (
    RecipeCorpora,
    build_backbone,
    configure_tasks,
    empty_backbone,
    find_all_corpora,
    set_typology,
)
from polyloom.data.catalog import Corpus
from polyloom.data.encoded import EncodedDataset
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.errors import ConfigError, PolyloomError, TrainingError
from polyloom.evaluate.scoring import score_corpora
from polyloom.inference.predictor import Predictor
from polyloom.io.locks import locked
from polyloom.io.yaml import dump_yaml
from polyloom.methods import build_method
from polyloom.metrics.score import Score
from polyloom.model import Model
from polyloom.nn.empty import empty_modules
from polyloom.rundir import RunDir
from polyloom.tasks import find_task
from polyloom.training.distributed import ProcessGroup, is_sharded
from polyloom.training.events import (
    DatasetPrepared,
    DatasetStarted,
    Event,
    IssueFound,
    OnEvent,
    RunStarted,
    diverged_at,
)
from polyloom.training.plan import StagePlan, TrainDataset
from polyloom.training.prepare import label_sets, prepare_dataset, training_datasets
from polyloom.training.published import open_published
from polyloom.training.stopping import StopSignals
from polyloom.training.trainer import Trainer, Validate
from polyloom.version import versions
from polyloom.workflows.check import check_model, check_recipe, report_issues
from polyloom.workflows.run import Run

# Settings that may change when a run is resumed, because no step depends on them. Dotted names, with all inside.
CHANGEABLE_ON_RESUME = (
    "data.test",
    "data.root",
    "data.prepared",
    "data.allow",
    "train.save_every",
    "train.save_minutes",
    "train.keep_last",
    "train.strategy",
    "train.grad_accum_steps",
    "train.read_ahead",
)


def log_issues(event: Event) -> None:
    """Write an issue of the data to Python's log."""
    if isinstance(event, IssueFound) and not event.refused:
        logging.getLogger("polyloom").warning("%s", event.what)


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    into: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    on_event: OnEvent = log_issues,
) -> Run:
    """Train a recipe, or resume the run in `into`, and load the best checkpoint.

    Args:
        recipe: A YAML file, settings as a dictionary, or a recipe.
        into: Directory of the run.
        overrides: Settings to change, by their dotted names: ``{"optim.lr": 1e-4}``.
        on_event: Called with every event that the log gets. Default: write issues of the data to Python's log, which
            goes to stderr unless it is configured otherwise.
    """
    if isinstance(recipe, str | Path):
        parsed = load_recipe(recipe, overrides or {})
    else:
        settings = resolved(recipe) if isinstance(recipe, Recipe) else recipe
        parsed = parse_recipe(apply_overrides(settings, overrides or {}))
    train_recipe(parsed, Path(into), on_event=on_event)
    return Run.load(into)


def train_recipe(
    recipe: Recipe,
    into: Path,
    *,
    process_group: ProcessGroup | None = None,
    on_event: OnEvent = lambda _: None,
    stop: StopSignals | None = None,
) -> Path:
    """Train a recipe, or resume the run in `into`; return the best checkpoint. For `stop`, see `Trainer`."""
    process_group, directory = process_group or ProcessGroup(), RunDir(into)
    recipe = _with_absolute_paths(recipe)
    with process_group.together():  # no process writes before all have checked
        changed = changed_settings(recipe, directory)

    # Issues of the data are found before there is a log. They are written to it later.
    issues: list[IssueFound] = []

    def watch(event: Event) -> None:
        if isinstance(event, IssueFound):
            issues.append(event)
        on_event(event)

    notify = watch if process_group.is_main else lambda _: None
    try:
        with process_group.together():
            setup = prepare_training(recipe, process_group=process_group, on_event=notify)
    except PolyloomError:
        # The log says why the run was refused. Without a recipe the directory can be used for another run.
        if any(issue.refused for issue in issues):
            directory.prepare()
            for issue in issues:
                directory.note(issue.to_dict())
        raise

    try:
        with process_group.together():
            if process_group.is_main:
                directory.prepare()
                directory.write_recipe(dump_yaml(resolved(recipe)), own=True)
                corpora = [corpus for dataset in setup.datasets.values() for corpus in dataset.meta["corpora"]]
                hashes = {corpus["corpus"]: corpus["sha256"] for corpus in corpora}
                directory.note(RunStarted(versions=versions(), corpora=hashes, changed=changed).to_dict())
                for issue in issues:
                    directory.note(issue.to_dict())
        trainer = Trainer(
            setup.model, setup.plans, tokenizer=setup.tokenizer, folder=directory, validate=setup.validate,
            process_group=process_group, on_event=on_event, stop=stop,
            about={"trained_on": setup.trained_on, "tokenizer": setup.tokenizer.identity},
        )  # fmt: skip
        return trainer.run()
    finally:
        for dataset in setup.datasets.values():
            dataset.close()


@dataclass(frozen=True)
class TrainingSetup:
    """A recipe with all that was built from it."""

    recipe: Recipe
    """The recipe."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    datasets: Mapping[Condition, EncodedDataset]
    """Encoded training data by condition."""
    model: Model
    """The model, before training."""
    plans: Sequence[StagePlan]
    """The stages with their settings and datasets."""
    validate: Validate
    """Computes the scores that select checkpoints."""
    trained_on: Sequence[str]
    """Conditions with training data, with those of the run that it continues."""


def prepare_training(
    recipe: Recipe, *, process_group: ProcessGroup | None = None, on_event: OnEvent = lambda _: None
) -> TrainingSetup:
    """Check a recipe, encode its corpora, and build the model and the plans of its stages."""
    process_group = process_group or ProcessGroup()

    # Encoding may take hours, so training data in directions that the method does not store is refused before it.
    # Parsing has done this if the recipe has the backbone's configuration.
    if recipe.backbone.model_config is None:
        shape = empty_backbone(recipe.backbone).shape
        try:
            with empty_modules():
                method = build_method(recipe.method, shape=shape, inventory=recipe.inventory())
        except PolyloomError:
            pass  # it may need labels, which are not read yet
        else:
            if mistakes := direction_mistakes(recipe, method):
                raise ConfigError("recipe", mistakes)

    data = prepare_recipe(recipe, process_group=process_group, on_event=on_event)
    tokenizer, datasets = data.tokenizer, data.datasets
    backbone = build_backbone(recipe.backbone, tokenizer, seed=recipe.train.seed)

    trained_earlier: Sequence[str] = ()
    if recipe.init_from is None:
        # A new model has the labels of the training data. A task without any gets no head, so it cannot be scored.
        labels = label_sets(datasets, {name: config.label_names for name, config in recipe.tasks.items()})
        scored = {Condition.parse(name).task for name in (*recipe.data.validation, *recipe.data.test)}
        if missing := [task for task in recipe.tasks if task in scored and task not in labels]:
            mistakes = [f"data.train: nothing for task {task!r}, which is scored." for task in missing]
            raise ConfigError("recipe", mistakes)
        tasks = {n: replace(task, labels=labels[n] or None) for n, task in recipe.tasks.items() if n in labels}
        config = recipe.method.with_labelled([c for c in datasets if not find_task(c.task).raw_text])
        model = Model(backbone, config, languages=recipe.languages, tasks=tasks, directions=recipe.directions or None)
        set_typology(model, recipe.languages, root=recipe.data.root)
    else:
        # A continued run keeps the model of its checkpoint, which decides method, languages, tasks and labels.
        run = Path(recipe.init_from)
        best = RunDir(run).best()
        model, trained_earlier = load_checkpoint(best, backbone), read_manifest(best)["trained_on"]
        mistakes = []
        if not recipe.method.continues(model.method.config):
            mistakes.append(f"method: {run} was trained with {model.method.config}, not with {recipe.method}.")
        languages, known_tasks = model.method.languages, model.method.tasks
        mistakes += [f"languages: {run} has no language {x!r}." for x in recipe.languages if x not in languages]
        mistakes += [f"tasks: {run} has no task {name!r}." for name in recipe.tasks if name not in known_tasks]
        if mistakes:
            raise ConfigError("init_from", mistakes)

    configure_tasks(
        model, recipe.tasks, tokenizer, pretrained=recipe.backbone.name is not None,
        conditions=(*recipe.data.train, *recipe.data.validation),
    )  # fmt: skip
    trained_on = sorted({*trained_earlier, *recipe.data.train})
    labels_of_data = [(condition, dataset.meta["labels"]) for condition, dataset in datasets.items()]
    report_issues(check_model(model, labels_of_data, trained_on), on_event=on_event)

    plans = _plan_stages(recipe, model, datasets)
    validate = partial(
        validation_scores, corpora=data.corpora.validation, tokenizer=tokenizer, process_group=process_group
    )
    return TrainingSetup(recipe, tokenizer, datasets, model, plans, validate, trained_on)


@dataclass(frozen=True)
class PreparedData:
    """The data of a recipe, ready for training."""

    tokenizer: Tokenizer
    """The recipe's tokenizer."""
    corpora: RecipeCorpora
    """All corpora of the recipe."""
    datasets: Mapping[Condition, EncodedDataset]
    """Encoded training data by condition."""


def prepare_recipe(
    recipe: Recipe,
    *,
    process_group: ProcessGroup | None = None,
    processes: int = 1,
    on_event: OnEvent = lambda _: None,
) -> PreparedData:
    """Check the corpora of a recipe and encode those for training; encoded ones are read from the cache.

    One process of each host checks. Each dataset is encoded by the process that comes first, of any run on the host,
    with the help of as many `processes`.
    """
    settings, process_group = recipe.data, process_group or ProcessGroup()
    if not settings.train:
        raise ConfigError("recipe", ["data.train: missing. Such as `data: {train: {pos/en: ud:en_ewt/train}}`."])
    tokenizer, corpora = load_tokenizer(recipe.backbone.tokenizer_name), find_all_corpora(settings)

    # Nothing is encoded for a recipe that is refused.
    with process_group.together():
        if process_group.is_local_main:
            check_recipe(recipe, corpora, tokenizer, on_event=on_event)
    if settings.prepared is not None:
        names = {Condition.parse(condition): sources for condition, sources in settings.train.items()}
        datasets = open_published(names, settings.prepared, tokenizer=tokenizer, rules=settings.filter)
        return PreparedData(tokenizer, corpora, datasets)

    datasets = {}
    for condition, sources in corpora.train.items():
        on_event(DatasetStarted(dataset=str(condition)))
        # Other processes and other runs wait for the first one, then open what it has written.
        described = [condition.task, tokenizer.fingerprint, [(corpus.name, corpus.sha256) for corpus in sources]]
        with locked(f"encode {described}"):
            dataset = prepare_dataset(
                condition, sources, tokenizer=tokenizer, rules=settings.filter, processes=processes
            )
        dropped, path = dataset.meta["dropped"], str(dataset.path)
        on_event(DatasetPrepared(dataset=str(condition), examples=len(dataset), dropped=dropped, path=path))
        datasets[condition] = dataset
    return PreparedData(tokenizer, corpora, datasets)


def _plan_stages(recipe: Recipe, model: Model, datasets: Mapping[Condition, EncodedDataset]) -> list[StagePlan]:
    """Plan the stages with their settings and datasets."""
    plans = []
    labels = {name: task.labels for name, task in model.tasks.items()}
    for stage in model.stages():
        settings = recipe.stage(stage.name)
        try:
            selected = training_datasets(datasets, method=model.method, labels=labels, stage=stage)
        except TrainingError:
            if recipe.init_from is None:
                raise
            continue  # what this stage trains stays as the earlier run left it
        groups = _language_pairs(selected) if settings.mixture.strategy == "ratio" else ()
        weights = {d.condition.task: recipe.tasks[d.condition.task].weight for d in selected}
        if not any(weights.values()):
            mistakes = [f"tasks.{task}.weight: 0, so stage {stage.name!r} learns nothing." for task in weights]
            raise ConfigError("recipe", mistakes)
        plans.append(StagePlan(stage, settings.optim, settings.train, settings.mixture, selected, groups, weights))
    return plans


def _language_pairs(datasets: Sequence[TrainDataset]) -> tuple[tuple[str, str], ...]:
    """Return the two datasets of every pair of languages, the source's first; BAD-X alternates between them.

    Raw text of both languages trains the adapter of their pair, so its condition has two datasets. What follows ``@``
    in the name of a dataset is the language of its text.
    """
    by_condition: dict[Condition, dict[str, str]] = {}
    for dataset in datasets:
        language = dataset.name.partition("@")[2] or dataset.condition.source
        by_condition.setdefault(dataset.condition, {})[language] = dataset.name
    pairs = []
    for condition, names in by_condition.items():
        if condition.target is None or names.keys() != {condition.source, condition.target}:
            raise ConfigError(
                "recipe",
                [f"mixture.strategy: ratio alternates two languages; {condition} has data of {', '.join(names)} only."],
            )
        pairs.append((names[condition.source], names[condition.target]))
    return tuple(pairs)


def validation_scores(
    model: Model,
    plan: StagePlan,
    *,
    corpora: Mapping[Condition, Sequence[Corpus]],
    tokenizer: Tokenizer,
    process_group: ProcessGroup,
) -> dict[Condition, Score]:
    """Compute the scores that select checkpoints of a stage: of labelled tasks, else of raw text.

    Translation is scored by the perplexity of the reference, which needs no search. Each condition is scored by one
    process, and all get the same scores.
    """
    labelled = {condition for condition in corpora if not find_task(condition.task).raw_text}
    use_labelled = bool(labelled) and plan.stage.tasks != "raw-text"
    # In the order of the recipe: that of a set may differ between processes, which share these conditions.
    selected = [condition for condition in corpora if (condition in labelled) == use_labelled]
    predictor = Predictor(model, tokenizer=tokenizer, max_length=plan.train.max_length)

    def score(condition: Condition) -> Score:
        return score_corpora(predictor, condition, corpora[condition], losses=True)[0]

    # With shards of the model, all processes take part in every forward pass: FSDP gathers weights by collectives.
    if process_group.size == 1 or is_sharded(model):
        return {condition: score(condition) for condition in selected}
    scores = process_group.share(selected, lambda condition: score(condition).to_dict())
    return {condition: Score.from_dict(stored) for condition, stored in zip(selected, scores, strict=True)}


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """Make the paths of a recipe absolute: the run is opened and resumed from other directories later."""

    def path(name: str | None) -> str | None:
        return str(Path(name).resolve()) if name and Path(name).is_dir() else name

    backbone = replace(recipe.backbone, name=path(recipe.backbone.name), tokenizer=path(recipe.backbone.tokenizer))
    data = replace(recipe.data, root=path(recipe.data.root))
    return replace(recipe, backbone=backbone, data=data, init_from=path(recipe.init_from))


def changed_settings(recipe: Recipe, directory: RunDir) -> dict[str, list[Any]]:
    """Return the settings that changed since the run in the directory began, as [before, now].

    Raises:
        ConfigError: One of them may not change. After a run has diverged, settings of the optimizer may.
    """
    if not directory.exists():
        return {}
    before, now = _by_dotted_name(resolved(load_recipe(directory.recipe))), _by_dotted_name(resolved(recipe))
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]

    changeable: tuple[str, ...] = CHANGEABLE_ON_RESUME
    if diverged_at(directory.log) > max(directory.steps(), default=-1):
        changeable = (*changeable, "optim.")
    # `stages.tasks.optim.lr` may change where `optim.lr` may, and `data.test.pos/tr` as a part of `data.test`.
    refused = [key for key in changed if not re.sub(r"^stages\.[^.]+\.", "", key).startswith(changeable)]
    if refused:
        raise ConfigError(
            str(directory.path),
            [f"{key}: was {before.get(key)!r} when this run began, now {now.get(key)!r}." for key in refused]
            + ["Take another folder for another run, or set these back to resume this one."],
        )
    return {key: [before.get(key), now.get(key)] for key in changed}


def _by_dotted_name(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all settings by the dotted names that overrides and messages use: ``stages.tasks.optim.lr``."""
    by_name: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            by_name |= _by_dotted_name(value, f"{prefix}{key}.")
        else:
            by_name[f"{prefix}{key}"] = value
    return by_name
