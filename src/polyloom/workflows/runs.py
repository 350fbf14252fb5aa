"""Runs: from a recipe to a trained model, and back from the folder it lives in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from polyloom.backbones import Backbone
from polyloom.checkpoint import load_checkpoint, read_manifest
from polyloom.conditions import Condition
from polyloom.config import DataConfig, Recipe, backbone_from_recipe, load_recipe, resolved
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.encoded import EncodedDataset
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.data.typology import Typology, read_typology
from polyloom.errors import CheckpointError, ConditionError, ConfigError, TrainingError
from polyloom.evaluate.matrix import Matrix, Result
from polyloom.inference.predictor import Predictor, score_corpora
from polyloom.inference.translate import steps, translate_all
from polyloom.io.yaml import dump_yaml
from polyloom.metrics.score import Score
from polyloom.model import Model
from polyloom.rundir import RECIPE, RunDir
from polyloom.tasks import find_task
from polyloom.tasks.translation import end_of
from polyloom.train.distributed import ProcessGroup
from polyloom.train.loop import StagePlan, TrainDataset
from polyloom.train.prepare import label_sets, prepare_dataset, training_datasets
from polyloom.train.trainer import Event, Trainer

OnEvent = Callable[[Event], None]
# What may change when a run is resumed, because no step depends on it.
_FREE = ("data.test", "data.root", "train.save_every", "train.keep_last", "train.strategy", "train.grad_accum_steps")


def train_recipe(
    recipe: Recipe, into: Path, *, process_group: ProcessGroup | None = None, on_event: OnEvent = lambda _: None
) -> Path:
    """Train what a recipe describes, or go on where the run in `into` was left; returns the checkpoint to use."""
    process_group, folder = process_group or ProcessGroup(), RunDir(into)
    recipe = _absolute(recipe)
    _check_same(recipe, folder)
    process_group.barrier()  # nobody writes before all have looked
    setup = prepare_training(recipe, on_event=on_event if process_group.is_main else lambda _: None)
    if process_group.is_main:
        folder.prepare()
        folder.write(RECIPE, dump_yaml(resolved(recipe)))
        folder.note({"event": "begin", "versions": _versions(), "corpora": setup.hashes()})
    process_group.barrier()
    model = setup.model.to(process_group.device)
    fit = Trainer(
        model, setup.plans(), tokenizer=setup.tokenizer, folder=folder, validate=setup.validate,
        process_group=process_group, on_event=on_event,
        about={"trained_on": setup.trained_on, "tokenizer": setup.tokenizer.fingerprint},
    )  # fmt: skip
    return fit.run()


@dataclass
class TrainingSetup:
    """A recipe with its corpora read and its model built."""

    recipe: Recipe
    tokenizer: Tokenizer
    datasets: Mapping[Condition, EncodedDataset]
    model: Model
    trained_on: Sequence[str]

    def plans(self) -> list[StagePlan]:
        """The stages of the method, with their settings and cells; a continued run skips those without data."""
        plans = []
        labels = {name: task.labels for name, task in self.model.tasks.items()}
        for stage in self.model.method.stages():
            settings = self.recipe.stage(stage.name)
            try:
                datasets = training_datasets(self.datasets, method=self.model.method, labels=labels, stage=stage)
            except TrainingError:
                if self.recipe.init_from is None:
                    raise
                continue
            groups = tuple(_alternating(datasets)) if settings.mixture.strategy == "ratio" else ()
            plans.append(StagePlan(stage, settings.optim, settings.train, settings.mixture, datasets, groups))
        return plans

    def validate(self, model: Model, plan: StagePlan) -> dict[Condition, Score]:
        """Scores that select checkpoints of a stage: of labelled tasks, of raw text where there is nothing else.

        Translations are judged by how well the right one is predicted, which takes no search.
        """
        conditions = {Condition.parse(name): corpora for name, corpora in self.recipe.data.validation.items()}
        labelled = {c for c in conditions if not find_task(c.task).raw_text}
        chosen = conditions.keys() - labelled if plan.stage.tasks == "raw-text" or not labelled else labelled
        predictor = Predictor(model, tokenizer=self.tokenizer, max_length=plan.train.max_length)
        return {
            condition: score_corpora(
                predictor, condition, _corpora(conditions[condition], self.recipe.data), losses=True
            )[0]
            for condition in conditions
            if condition in chosen
        }

    def hashes(self) -> dict[str, str]:
        """Hash of every corpus that is learnt from."""
        every = (c for dataset in self.datasets.values() for c in dataset.meta["corpora"])
        return {corpus["corpus"]: corpus["sha256"] for corpus in every}


def prepare_training(recipe: Recipe, *, on_event: OnEvent = lambda _: None) -> TrainingSetup:
    """Read the corpora of a recipe, collect the labels and build the model."""
    tokenizer = build_tokenizer(recipe)
    datasets = prepare_recipe(recipe, tokenizer=tokenizer, on_event=on_event)
    backbone = build_backbone(recipe, tokenizer)
    if recipe.init_from is not None:
        model, before = _continue(recipe, backbone)
    else:
        model, before = _build(recipe, backbone, datasets), []
    configure_tasks(model, recipe, tokenizer)
    return TrainingSetup(recipe, tokenizer, datasets, model, sorted({*before, *recipe.data.train}))


@dataclass
class Run:
    """A trained run."""

    path: Path
    recipe: Recipe
    checkpoint: Path
    predictor: Predictor
    trained_on: Sequence[str]

    @property
    def model(self) -> Model:
        """The model of the best checkpoint."""
        return self.predictor.model

    def evaluate(
        self, test: Mapping[str, Sequence[str]], *, pivot: str | None = None, on_event: OnEvent = lambda _: None
    ) -> Matrix:
        """Score conditions on corpora; what the method cannot serve is said, not left out in silence.

        With a `pivot`, translations are made through that language.
        """
        asked = {Condition.parse(name): _corpora(corpora, self.recipe.data) for name, corpora in test.items()}
        refused = {condition: reason for condition in asked if (reason := self._refusal(condition, pivot))}
        supported = {condition: corpora for condition, corpora in asked.items() if condition not in refused}
        texts, results = self._texts(supported, pivot, on_event), {}
        for condition, corpora in supported.items():
            name = str(condition)
            on_event({"event": "scoring", "condition": name})
            scores = score_corpora(self.predictor, condition, corpora, answers=texts.get(condition))
            results[condition] = Result(tuple(scores), zero_shot=name not in self.trained_on)
            on_event({"event": "scored", "condition": name, "scores": {s.metric.name: s.value for s in scores}})
        about = {"path": str(self.path), "checkpoint": self.checkpoint.name, "method": self.recipe.method.name}
        return Matrix(results, refused, about | {"versions": _versions()})

    def _refusal(self, condition: Condition, pivot: str | None) -> str | None:
        """Why a condition cannot be answered."""
        try:
            task = self.model.task(condition.task)
            for step in steps(condition, pivot):
                self.model.method.require_supported(step)
                task.check(step, self.predictor.tokenizer)
        except ConditionError as error:
            return str(error)
        return None

    def _texts(
        self, asked: Mapping[Condition, Sequence[Corpus]], pivot: str | None, on_event: OnEvent
    ) -> dict[Condition, list[str]]:
        """What is generated for the conditions whose answers are text, all together."""
        records = {
            condition: [record for corpus in corpora for record in task.records(corpus, condition)]
            for condition, corpora in asked.items()
            if (task := self.model.task(condition.task)).generates
        }
        total = sum(len(steps(condition, pivot)) * len(some) for condition, some in records.items())
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            on_event({"event": "translated", "done": done, "total": total})

        return translate_all(self.predictor, records, pivot=pivot, progress=count)


def load_run(path: Path, *, device: str | None = None) -> Run:
    """Load the best checkpoint of a run; onto a GPU by default, if there is one."""
    if not (path / RECIPE).exists():
        raise CheckpointError(f"{path}: no run here (no {RECIPE}). Train one: polyloom train RECIPE -o {path}")
    return load_run_from_checkpoint(path, load_recipe(path / RECIPE), RunDir(path).best(), device=device)


def load_run_from_checkpoint(
    path: Path, recipe: Recipe, checkpoint: Path, *, device: str | None = None, extended: bool = False
) -> Run:
    """A checkpoint on the backbone that its recipe names; or, `extended`, on one made from that, with more pieces."""
    tokenizer, manifest = build_tokenizer(recipe), read_manifest(checkpoint)
    if manifest.get("tokenizer") != tokenizer.fingerprint and not extended:
        raise CheckpointError(
            f"{checkpoint}: was trained with another tokenizer; with this one it would answer wrongly."
        )
    model = load_checkpoint(checkpoint, build_backbone(recipe, tokenizer), same_backbone=not extended).eval()
    configure_tasks(model, recipe, tokenizer)
    model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    predictor = Predictor(model, tokenizer=tokenizer, max_length=recipe.train.max_length)
    return Run(path, recipe, checkpoint, predictor, manifest["trained_on"])


def prepare_recipe(
    recipe: Recipe, *, tokenizer: Tokenizer | None = None, on_event: OnEvent = lambda _: None
) -> dict[Condition, EncodedDataset]:
    """Encode the corpora that a recipe learns from, unless that was done before."""
    if not recipe.data.train:
        raise ConfigError("recipe", ["data.train: missing. Such as `data: {train: {pos/en: ud:en_ewt/train}}`."])
    tokenizer, datasets = tokenizer or build_tokenizer(recipe), {}
    for name, corpora in recipe.data.train.items():
        condition = Condition.parse(name)
        on_event({"event": "preparing", "dataset": name})
        dataset = prepare_dataset(
            condition, _corpora(corpora, recipe.data), tokenizer=tokenizer, rules=recipe.data.filter
        )
        dropped = dataset.meta.get("dropped", {})
        on_event(
            {
                "event": "dataset",
                "dataset": name,
                "examples": len(dataset),
                "dropped": dropped,
                "path": str(dataset.path),
            }
        )
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


def set_typology(model: Model, recipe: Recipe, languages: Sequence[str], typology: Typology | None = None) -> None:
    """Give typological vectors to a method that takes them, by default from the tables beside the corpora."""
    if (size := model.method.typology_size) is None:
        return
    typology = typology or read_typology(recipe.data.root)
    if typology is None:
        raise ConfigError("recipe", ["method.typology: there are no tables of features, in meta/ beside the corpora."])
    model.method.set_features(typology.vectors(languages, size))


def _continue(recipe: Recipe, backbone: Backbone) -> tuple[Model, list[str]]:
    """The model of the run to go on from, which must be of the kind that the recipe describes."""
    best = RunDir(Path(recipe.init_from or "")).best()
    model, manifest = load_checkpoint(best, backbone), read_manifest(best)
    mistakes = []
    theirs, ours = model.method.config, recipe.method
    if not ours.continues(theirs):
        mistakes.append(f"method: {recipe.init_from} was trained with {theirs}, not with {ours}.")
    for kind, names, known in (
        ("language", recipe.languages, model.method.languages),
        ("task", recipe.tasks, model.method.tasks),
    ):
        mistakes += [f"{kind}s: {recipe.init_from} has no {kind} {name!r}." for name in names if name not in known]
    if mistakes:
        raise ConfigError("init_from", mistakes)
    return model, list(manifest["trained_on"])


def _alternating(datasets: Sequence[TrainDataset]) -> Iterator[tuple[str, str]]:
    """For every pair of languages its two cells, that of the source first (BAD-X)."""
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


def build_backbone(recipe: Recipe, tokenizer: Tokenizer) -> Backbone:
    """The backbone; one that begins with random weights (from a config alone) begins with the same ones every time."""
    torch.manual_seed(recipe.train.seed)
    if recipe.backbone.preset is None:
        backbone = backbone_from_recipe(recipe)
        size = int(backbone.model.get_input_embeddings().weight.shape[0])
        if tokenizer.vocab_size > size:
            mistake = f"the tokenizer has {tokenizer.vocab_size} pieces, the backbone embeddings for {size}."
            raise ConfigError(
                "recipe", [f"backbone: {mistake} For one from a config: `vocab_size: {tokenizer.vocab_size}`."]
            )
        if backbone.model.can_generate():
            backbone.model.generation_config.max_length = None  # every row has a limit of its own
        return backbone
    end_id = end_of(tokenizer)
    special = {
        "bos_token_id": end_id if tokenizer.bos_id is None else tokenizer.bos_id,
        "eos_token_id": end_id,
        "decoder_start_token_id": end_id,
    }
    vocabulary = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id} | special
    return backbone_from_recipe(recipe, vocabulary=vocabulary)


def configure_tasks(model: Model, recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Let tasks choose what depends on the backbone, such as language tokens, and check now that all is there."""
    for name, task in model.tasks.items():
        if name in recipe.tasks:
            pretrained = recipe.backbone.name is not None
            config = model.backbone.model.config
            task.configure(recipe.tasks[name], backbone=config, pretrained=pretrained, tokenizer=tokenizer)
    for condition in map(Condition.parse, (*recipe.data.train, *recipe.data.validation)):
        if condition.task in model.tasks:
            model.tasks[condition.task].check(condition, tokenizer)


def _corpora(names: Sequence[str], data: DataConfig) -> list[Corpus]:
    return [resolve(name, root=Path(data.root) if data.root else None) for name in names]


def build_tokenizer(recipe: Recipe) -> Tokenizer:
    """The tokenizer of a recipe."""
    name = recipe.backbone.tokenizer or recipe.backbone.name
    if name is None:
        raise ConfigError("recipe", ["backbone.tokenizer: missing; a backbone from a config alone has none."])
    return load_tokenizer(name)


def _absolute(recipe: Recipe) -> Recipe:
    """The recipe with paths that mean the same wherever one stands."""

    def path(name: str | None) -> str | None:
        return str(Path(name).resolve()) if name and Path(name).is_dir() else name

    backbone = replace(recipe.backbone, name=path(recipe.backbone.name), tokenizer=path(recipe.backbone.tokenizer))
    data = replace(recipe.data, root=path(recipe.data.root))
    return replace(recipe, backbone=backbone, data=data, init_from=path(recipe.init_from))


def _check_same(recipe: Recipe, folder: RunDir) -> None:
    """A run goes on with the recipe that it was begun with."""
    stored = folder.path / RECIPE
    if not stored.exists():
        return
    before, now = _flat(resolved(load_recipe(stored))), _flat(resolved(recipe))
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    changed = [key for key in changed if not key.startswith(_FREE)]
    if changed:
        raise ConfigError(
            str(folder.path),
            [f"{key}: was {before.get(key)!r} when this run began, now {now.get(key)!r}." for key in changed]
            + ["Take another folder for another run, or set these back to resume this one."],
        )


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(settings, dict) and settings:
        return {k: v for key, value in settings.items() for k, v in _flat(value, f"{prefix}{key}.").items()}
    return {prefix.rstrip("."): settings}


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("polyloom", "torch", "transformers")}
