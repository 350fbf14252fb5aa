"""Train a recipe, or resume the run in its directory."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyloom.backbones import Backbone
from polyloom.checkpoint import load_checkpoint, read_manifest
from polyloom.conditions import Condition
from polyloom.config import (
    Recipe,
    apply_overrides,
    backbone_from_recipe,
    direction_mistakes,
    load_recipe,
    parse_recipe,
    resolved,
)
from polyloom.data.encoded import EncodedDataset
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import ConfigError, PolyloomError, TrainingError
from polyloom.evaluate.scoring import score_corpora
from polyloom.inference.predictor import Predictor
from polyloom.io.locks import locked
from polyloom.io.yaml import dump_yaml
from polyloom.loading import build_backbone, build_tokenizer, configure_tasks, set_typology
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
from polyloom.training.trainer import Trainer
from polyloom.version import versions
from polyloom.workflows.check import check_model, check_recipe, report_issues
from polyloom.workflows.run import Run

# Settings that may change when a run is resumed, because no step depends on them.
_FREE = (
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
    train_recipe(read_recipe(recipe, overrides or {}), Path(into), on_event=on_event)
    return Run.load(into)


def read_recipe(recipe: str | Path | Mapping[str, Any] | Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """Read a recipe from a file, a dictionary or a recipe, and change settings by their dotted names."""
    if isinstance(recipe, str | Path):
        return load_recipe(recipe, overrides)
    settings = resolved(recipe) if isinstance(recipe, Recipe) else recipe
    return parse_recipe(apply_overrides(settings, overrides))


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
    recipe = _absolute(recipe)
    with process_group.together():  # no process writes before all have checked
        changed = _check_same(recipe, directory)
    issues: list[IssueFound] = []

    def watch(event: Event) -> None:
        if isinstance(event, IssueFound):
            issues.append(event)
        on_event(event)

    try:
        with process_group.together():
            notify = watch if process_group.is_main else lambda _: None
            setup = prepare_training(recipe, process_group=process_group, on_event=notify)
            plans = setup.plans()
    except PolyloomError:
        _note_refusal(directory, issues)
        raise
    with process_group.together():
        if process_group.is_main:
            directory.prepare()
            directory.write_recipe(dump_yaml(resolved(recipe)), own=True)
            directory.note(RunStarted(versions=versions(), corpora=setup.hashes(), changed=changed).to_dict())
            for issue in issues:
                directory.note(issue.to_dict())
    trainer = Trainer(
        setup.model, plans, tokenizer=setup.tokenizer, folder=directory, validate=setup.validate,
        process_group=process_group, on_event=on_event, stop=stop,
        about={"trained_on": setup.trained_on, "tokenizer": setup.tokenizer.identity},
    )  # fmt: skip
    return trainer.run()


def _note_refusal(directory: RunDir, issues: Sequence[IssueFound]) -> None:
    """Write to the log why a run was refused. Without a recipe the directory can be used for another run."""
    if any(issue.refused for issue in issues):
        directory.prepare()
        for issue in issues:
            directory.note(issue.to_dict())


@dataclass
class TrainingSetup:
    """A recipe with its encoded corpora and its model.

    Attributes:
        recipe: The recipe.
        tokenizer: Its tokenizer.
        datasets: Encoded training data by condition.
        model: The model, before training.
        trained_on: Conditions with training data, with those of the run that it continues.
        process_group: The processes of the run, which validate in shares.
    """

    recipe: Recipe
    tokenizer: Tokenizer
    datasets: Mapping[Condition, EncodedDataset]
    model: Model
    trained_on: Sequence[str]
    process_group: ProcessGroup = field(default_factory=ProcessGroup)

    def plans(self) -> list[StagePlan]:
        """Return the stages with their settings and datasets; a continued run skips stages without data."""
        plans = []
        labels = {name: task.labels for name, task in self.model.tasks.items()}
        for stage in self.model.stages():
            settings = self.recipe.stage(stage.name)
            try:
                datasets = training_datasets(self.datasets, method=self.model.method, labels=labels, stage=stage)
            except TrainingError:
                if self.recipe.init_from is None:
                    raise
                continue
            groups = tuple(_alternating(datasets)) if settings.mixture.strategy == "ratio" else ()
            weights = {d.condition.task: self.recipe.tasks[d.condition.task].weight for d in datasets}
            if not any(weights.values()):
                mistakes = [f"tasks.{task}.weight: 0, so stage {stage.name!r} learns nothing." for task in weights]
                raise ConfigError("recipe", mistakes)
            plans.append(StagePlan(stage, settings.optim, settings.train, settings.mixture, datasets, groups, weights))
        return plans

    def validate(self, model: Model, plan: StagePlan) -> dict[Condition, Score]:
        """Compute the scores that select checkpoints of a stage: of labelled tasks, else of raw text.

        Translation is scored by the perplexity of the reference, which needs no search. Each condition is scored by
        one process, and all get the same scores.
        """
        conditions = {Condition.parse(name): corpora for name, corpora in self.recipe.data.validation.items()}
        labelled = {c for c in conditions if not find_task(c.task).raw_text}
        chosen = conditions.keys() - labelled if plan.stage.tasks == "raw-text" or not labelled else labelled
        predictor = Predictor(model, tokenizer=self.tokenizer, max_length=plan.train.max_length)

        def score(condition: Condition) -> Score:
            return score_corpora(predictor, condition, self.recipe.data.resolve(conditions[condition]), losses=True)[0]

        selected = [condition for condition in conditions if condition in chosen]
        if self.process_group.size == 1 or is_sharded(model):
            return {condition: score(condition) for condition in selected}
        scores = self.process_group.share(selected, lambda condition: score(condition).to_dict())
        return {condition: Score.from_dict(stored) for condition, stored in zip(selected, scores, strict=True)}

    def hashes(self) -> dict[str, str]:
        """Return the hash of every training corpus."""
        corpora = (corpus for dataset in self.datasets.values() for corpus in dataset.meta["corpora"])
        return {corpus["corpus"]: corpus["sha256"] for corpus in corpora}


def prepare_training(
    recipe: Recipe, *, process_group: ProcessGroup | None = None, on_event: OnEvent = lambda _: None
) -> TrainingSetup:
    """Encode the corpora of a recipe, collect the labels and build the model."""
    process_group = process_group or ProcessGroup()
    _check_directions(recipe)
    tokenizer = build_tokenizer(recipe)
    datasets = prepare_recipe(recipe, tokenizer=tokenizer, process_group=process_group, on_event=on_event)
    backbone = build_backbone(recipe, tokenizer)
    if recipe.init_from is not None:
        model, before = _continue(recipe, backbone)
    else:
        model, before = _build(recipe, backbone, datasets), []
    configure_tasks(model, recipe, tokenizer)
    trained_on = sorted({*before, *recipe.data.train})
    labels = [(condition, dataset.meta["labels"]) for condition, dataset in datasets.items()]
    report_issues(check_model(model, labels, trained_on), on_event=on_event)
    return TrainingSetup(recipe, tokenizer, datasets, model, trained_on, process_group)


def prepare_recipe(
    recipe: Recipe,
    *,
    tokenizer: Tokenizer | None = None,
    process_group: ProcessGroup | None = None,
    processes: int = 1,
    on_event: OnEvent = lambda _: None,
) -> dict[Condition, EncodedDataset]:
    """Check the corpora of a recipe and encode those for training; encoded ones are read from the cache.

    One process of each host checks. Each dataset is encoded by the process that comes first, of any run on the host,
    with the help of as many `processes`.
    """
    if not recipe.data.train:
        raise ConfigError("recipe", ["data.train: missing. Such as `data: {train: {pos/en: ud:en_ewt/train}}`."])
    tokenizer, datasets = tokenizer or build_tokenizer(recipe), {}
    process_group = process_group or ProcessGroup()
    with process_group.together():  # nothing is encoded for a recipe that is refused
        if process_group.is_local_main:
            check_recipe(recipe, tokenizer, on_event=on_event)
    if recipe.data.prepared is not None:
        corpora_of = {Condition.parse(name): corpora for name, corpora in recipe.data.train.items()}
        return open_published(corpora_of, recipe.data.prepared, tokenizer=tokenizer, rules=recipe.data.filter)
    for name, corpora in recipe.data.train.items():
        condition = Condition.parse(name)
        on_event(DatasetStarted(dataset=name))
        sources = recipe.data.resolve(corpora)
        described = [condition.task, tokenizer.fingerprint, [(corpus.name, corpus.sha256) for corpus in sources]]
        with locked(f"encode {described}"):
            dataset = prepare_dataset(
                condition, sources, tokenizer=tokenizer, rules=recipe.data.filter, processes=processes
            )
        dropped = dataset.meta["dropped"]
        on_event(DatasetPrepared(dataset=name, examples=len(dataset), dropped=dropped, path=str(dataset.path)))
        datasets[condition] = dataset
    return datasets


def _build(recipe: Recipe, backbone: Backbone, datasets: Mapping[Condition, EncodedDataset]) -> Model:
    labels = label_sets(datasets, {name: config.label_names for name, config in recipe.tasks.items()})
    wanted = {Condition.parse(name).task for name in (*recipe.data.validation, *recipe.data.test)}
    missing = [task for task in recipe.tasks if task in wanted and task not in labels]
    if missing:
        raise ConfigError("recipe", [f"data.train: nothing for task {task!r}, which is scored." for task in missing])
    method = recipe.method.with_labelled([c for c in datasets if not find_task(c.task).raw_text])
    tasks = {
        name: replace(config, labels=labels[name] or None) for name, config in recipe.tasks.items() if name in labels
    }
    model = Model(backbone, method, languages=recipe.languages, tasks=tasks, directions=recipe.directions or None)
    set_typology(model, recipe, recipe.languages)
    return model


def _continue(recipe: Recipe, backbone: Backbone) -> tuple[Model, list[str]]:
    """Load the model of the run to continue, and check that it is as the recipe describes."""
    best = RunDir(Path(recipe.init_from or "")).best()
    model, manifest = load_checkpoint(best, backbone), read_manifest(best)
    mistakes = []
    former, method = model.method.config, recipe.method
    if not method.continues(former):
        mistakes.append(f"method: {recipe.init_from} was trained with {former}, not with {method}.")
    for kind, names, known in (
        ("language", recipe.languages, model.method.languages),
        ("task", recipe.tasks, model.method.tasks),
    ):
        mistakes += [f"{kind}s: {recipe.init_from} has no {kind} {name!r}." for name in names if name not in known]
    if mistakes:
        raise ConfigError("init_from", mistakes)
    return model, list(manifest["trained_on"])


def _alternating(datasets: Sequence[TrainDataset]) -> Iterator[tuple[str, str]]:
    """Yield the two datasets of every pair of languages, the source's first (BAD-X)."""
    by_condition: dict[Condition, dict[str, str]] = {}
    for dataset in datasets:
        language = dataset.name.partition("@")[2] or dataset.condition.source
        by_condition.setdefault(dataset.condition, {})[language] = dataset.name
    for condition, names in by_condition.items():
        if condition.target is None or names.keys() != {condition.source, condition.target}:
            raise ConfigError(
                "recipe",
                [f"mixture.strategy: ratio alternates two languages; {condition} has data of {', '.join(names)} only."],
            )
        yield names[condition.source], names[condition.target]


def _check_directions(recipe: Recipe) -> None:
    """Check the directions of the training data before it is encoded, if the recipe only names its backbone.

    Parsing checks them if the recipe has the backbone's configuration.
    """
    if recipe.backbone.shape is not None:
        return
    shape = backbone_from_recipe(recipe, device="meta").shape
    try:
        with empty_modules():
            method = build_method(recipe.method, shape=shape, inventory=recipe.inventory())
    except PolyloomError:  # it may need labels, which are not read yet
        return
    if mistakes := direction_mistakes(recipe, method):
        raise ConfigError("recipe", mistakes)


def _absolute(recipe: Recipe) -> Recipe:
    """Make the paths of a recipe absolute."""

    def path(name: str | None) -> str | None:
        return str(Path(name).resolve()) if name and Path(name).is_dir() else name

    backbone = replace(recipe.backbone, name=path(recipe.backbone.name), tokenizer=path(recipe.backbone.tokenizer))
    data = replace(recipe.data, root=path(recipe.data.root))
    return replace(recipe, backbone=backbone, data=data, init_from=path(recipe.init_from))


def _check_same(recipe: Recipe, directory: RunDir) -> dict[str, list[Any]]:
    """Raise an error if the run in the directory was started with another recipe.

    After a run has diverged, settings of the optimizer may change too.

    Returns:
        The settings that changed, as [before, now].
    """
    if not directory.exists():
        return {}
    before, now = _flat(resolved(load_recipe(directory.recipe))), _flat(resolved(recipe))
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    refused = [key for key in changed if not _of_stage(key).startswith(_FREE)]
    if refused and diverged_at(directory.log) > max(directory.steps(), default=-1):
        refused = [key for key in refused if not _of_stage(key).startswith("optim.")]
    if refused:
        raise ConfigError(
            str(directory.path),
            [f"{key}: was {before.get(key)!r} when this run began, now {now.get(key)!r}." for key in refused]
            + ["Take another folder for another run, or set these back to resume this one."],
        )
    return {key: [before.get(key), now.get(key)] for key in changed}


def _of_stage(key: str) -> str:
    """Return the name of a setting without its stage: ``optim.lr`` for ``stages.tasks.optim.lr``."""
    return key.split(".", 2)[2] if key.startswith("stages.") and key.count(".") > 1 else key


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(settings, dict) and settings:
        return {k: v for key, value in settings.items() for k, v in _flat(value, f"{prefix}{key}.").items()}
    return {prefix.rstrip("."): settings}
