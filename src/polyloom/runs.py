"""Runs: from a recipe to a trained model, and back from the folder it lives in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from polyloom.backbones import Backbone
from polyloom.checkpoint import load_checkpoint, read_manifest
from polyloom.config import DataConfig, Recipe, build_backbone, load_recipe, resolved
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.cells import Cell
from polyloom.data.pieces import Pieces, load_pieces
from polyloom.data.typology import Typology, read_typology
from polyloom.errors import CheckpointError, ConditionError, ConfigError, TrainingError
from polyloom.evaluate.answers import Answering, score_corpora
from polyloom.evaluate.matrix import Cell as Scored
from polyloom.evaluate.matrix import Matrix
from polyloom.evaluate.translate import steps, translate_all
from polyloom.methods.hyperx import HyperX
from polyloom.methods.psf import PsfConfig
from polyloom.metrics.score import Score
from polyloom.model import Model
from polyloom.settings import dump_yaml
from polyloom.tasks.translation import Translation, end_of, usual_marks, usual_start
from polyloom.train.distributed import Team
from polyloom.train.fit import Event, Fit
from polyloom.train.folder import RECIPE, RunFolder
from polyloom.train.loop import StagePlan, TrainCell
from polyloom.train.prepare import label_sets, prepare_cell, training_cells
from polyloom.types import Condition

Tell = Callable[[Event], None]
# What may change when a run is resumed, because no step depends on it.
_FREE = ("data.test", "data.root", "train.save_every", "train.keep", "train.strategy", "train.accumulate")


def train_recipe(recipe: Recipe, into: Path, *, team: Team | None = None, tell: Tell = lambda _: None) -> Path:
    """Train what a recipe describes, or go on where the run in `into` was left; returns the checkpoint to use."""
    team, folder = team or Team(), RunFolder(into)
    recipe = _absolute(recipe)
    _check_same(recipe, folder)
    team.wait()  # nobody writes before all have looked
    setup = Setup.of(recipe, tell=tell if team.leads else lambda _: None)
    if team.leads:
        folder.prepare()
        folder.write(RECIPE, dump_yaml(resolved(recipe)))
        folder.note({"event": "begin", "versions": _versions(), "corpora": setup.hashes()})
    team.wait()
    model = setup.model.to(team.device)
    fit = Fit(
        model, setup.plans(), pieces=setup.pieces, folder=folder, validate=setup.validate, team=team, tell=tell,
        about={"trained_on": setup.trained_on, "tokenizer": setup.pieces.fingerprint},
    )  # fmt: skip
    return fit.run()


@dataclass
class Setup:
    """A recipe with its corpora read and its model built."""

    recipe: Recipe
    pieces: Pieces
    cells: Mapping[Condition, Cell]
    model: Model
    trained_on: Sequence[str]

    @classmethod
    def of(cls, recipe: Recipe, *, tell: Tell = lambda _: None) -> "Setup":
        """Read the corpora, find the labels, build the model."""
        pieces = pieces_of(recipe)
        cells = prepare_recipe(recipe, pieces=pieces, tell=tell)
        backbone = backbone_of(recipe, pieces)
        if recipe.start is not None:
            model, before = _continue(recipe, backbone)
        else:
            model, before = _build(recipe, backbone, cells), []
        set_marks(model, recipe, pieces)
        return cls(recipe, pieces, cells, model, sorted({*before, *recipe.data.train}))

    def plans(self) -> list[StagePlan]:
        """The stages of the method, with their settings and cells; a continued run skips those without data."""
        plans = []
        labels = {name: task.labels for name, task in self.model.tasks.items()}
        for stage in self.model.method.stages():
            settings = self.recipe.stage(stage.name)
            try:
                cells = training_cells(self.cells, method=self.model.method, labels=labels, stage=stage)
            except TrainingError:
                if self.recipe.start is None:
                    raise
                continue
            groups = tuple(_alternating(cells)) if settings.mixture.kind == "ratio" else ()
            plans.append(StagePlan(stage, settings.optim, settings.train, settings.mixture, cells, groups))
        return plans

    def validate(self, model: Model, plan: StagePlan) -> dict[Condition, Score]:
        """Scores that select checkpoints of a stage: of labelled tasks, of raw text where there is nothing else.

        Translations are judged by how well the right one is predicted, which takes no search.
        """
        conditions = {Condition.parse(name): corpora for name, corpora in self.recipe.data.validation.items()}
        labelled = {c: corpora for c, corpora in conditions.items() if c.task != "mlm"}
        chosen = conditions.keys() - labelled.keys() if plan.stage.tasks == "mlm" or not labelled else labelled.keys()
        answering = Answering(model, pieces=self.pieces, max_length=plan.train.max_length)
        return {
            condition: score_corpora(
                answering, condition, _corpora(conditions[condition], self.recipe.data), losses=True
            )[0]
            for condition in conditions
            if condition in chosen
        }

    def hashes(self) -> dict[str, str]:
        """Hash of every corpus that is learnt from."""
        every = (c for cell in self.cells.values() for c in cell.meta["corpora"])
        return {corpus["corpus"]: corpus["sha256"] for corpus in every}


@dataclass
class Run:
    """A trained run."""

    path: Path
    recipe: Recipe
    checkpoint: Path
    answering: Answering
    trained_on: Sequence[str]

    @property
    def model(self) -> Model:
        """The model of the best checkpoint."""
        return self.answering.model

    def evaluate(
        self, test: Mapping[str, Sequence[str]], *, pivot: str | None = None, tell: Tell = lambda _: None
    ) -> Matrix:
        """Score conditions on corpora; what the method cannot serve is said, not left out in silence.

        With a `pivot`, translations are made through that language.
        """
        asked = {Condition.parse(name): _corpora(corpora, self.recipe.data) for name, corpora in test.items()}
        refused = {condition: reason for condition in asked if (reason := self._refusal(condition, pivot))}
        served = {condition: corpora for condition, corpora in asked.items() if condition not in refused}
        texts, cells = self._texts(served, pivot, tell), {}
        for condition, corpora in served.items():
            name = str(condition)
            tell({"event": "scoring", "condition": name})
            scores = score_corpora(self.answering, condition, corpora, answers=texts.get(condition))
            cells[condition] = Scored(tuple(scores), zero_shot=name not in self.trained_on)
            tell({"event": "scored", "condition": name, "scores": {s.metric.name: s.value for s in scores}})
        about = {"path": str(self.path), "checkpoint": self.checkpoint.name, "method": self.recipe.method.name}
        return Matrix(cells, refused, about | {"versions": _versions()})

    def _refusal(self, condition: Condition, pivot: str | None) -> str | None:
        """Why a condition cannot be answered."""
        try:
            task = self.model.task(condition.task)
            for step in steps(condition, pivot):
                self.model.method.check_served(step)
                if isinstance(task, Translation):
                    task.tokens(step, self.answering.pieces)
        except ConditionError as error:
            return str(error)
        return None

    def _texts(
        self, asked: Mapping[Condition, Sequence[Corpus]], pivot: str | None, tell: Tell
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
            tell({"event": "translated", "done": done, "total": total})

        return translate_all(self.answering, records, pivot=pivot, tell=count)


def load_run(path: Path, *, device: str | None = None) -> Run:
    """Load the best checkpoint of a run; onto a GPU by default, if there is one."""
    if not (path / RECIPE).exists():
        raise CheckpointError(f"{path}: no run here (no {RECIPE}). Train one: polyloom train RECIPE -o {path}")
    return open_checkpoint(path, load_recipe(path / RECIPE), RunFolder(path).best(), device=device)


def open_checkpoint(
    path: Path, recipe: Recipe, checkpoint: Path, *, device: str | None = None, extended: bool = False
) -> Run:
    """A checkpoint on the backbone that its recipe names; or, `extended`, on one made from that, with more pieces."""
    pieces, manifest = pieces_of(recipe), read_manifest(checkpoint)
    if manifest.get("tokenizer") != pieces.fingerprint and not extended:
        raise CheckpointError(
            f"{checkpoint}: was trained with another tokenizer; with this one it would answer wrongly."
        )
    model = load_checkpoint(checkpoint, backbone_of(recipe, pieces), same_backbone=not extended).eval()
    set_marks(model, recipe, pieces)
    model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    answering = Answering(model, pieces=pieces, max_length=recipe.train.max_length)
    return Run(path, recipe, checkpoint, answering, manifest["trained_on"])


def prepare_recipe(
    recipe: Recipe, *, pieces: Pieces | None = None, tell: Tell = lambda _: None
) -> dict[Condition, Cell]:
    """Encode the corpora that a recipe learns from, unless that was done before."""
    if not recipe.data.train:
        raise ConfigError("recipe", ["data.train: missing. Such as `data: {train: {pos/en: ud:en_ewt/train}}`."])
    pieces, cells = pieces or pieces_of(recipe), {}
    for name, corpora in recipe.data.train.items():
        condition = Condition.parse(name)
        tell({"event": "preparing", "cell": name})
        cell = prepare_cell(condition, _corpora(corpora, recipe.data), pieces=pieces, rules=recipe.data.filter)
        dropped = cell.meta.get("dropped", {})
        tell({"event": "cell", "cell": name, "examples": len(cell), "dropped": dropped, "path": str(cell.path)})
        cells[condition] = cell
    return cells


def _build(recipe: Recipe, backbone: Backbone, cells: Mapping[Condition, Cell]) -> Model:
    labels = label_sets(cells)
    wanted = {Condition.parse(name).task for name in (*recipe.data.validation, *recipe.data.test)}
    missing = [task for task in recipe.tasks if task in wanted and task not in labels]
    if missing:
        raise ConfigError("recipe", [f"data.train: nothing for task {task!r}, which is scored." for task in missing])
    method = recipe.method
    if isinstance(method, PsfConfig) and method.labelled is None:
        method = replace(method, labelled=tuple(str(c) for c in cells if c.task != "mlm"))
    tasks = {name: labels.get(name) or None for name in recipe.tasks if name in labels}
    model = Model(backbone, method, languages=recipe.languages, tasks=tasks, directions=recipe.directions or None)
    give_typology(model, recipe, recipe.languages)
    return model


def give_typology(model: Model, recipe: Recipe, languages: Sequence[str], typology: Typology | None = None) -> None:
    """Let a method that wants features of languages have them, by default from the tables beside the corpora."""
    if not (isinstance(model.method, HyperX) and model.method.config.typology):
        return
    typology = typology or read_typology(recipe.data.root)
    if typology is None:
        raise ConfigError("recipe", ["method.typology: there are no tables of features, in meta/ beside the corpora."])
    model.method.give(typology.vectors(languages, model.method.config.embedding_size))


def _continue(recipe: Recipe, backbone: Backbone) -> tuple[Model, list[str]]:
    """The model of the run to go on from, which must be of the kind that the recipe describes."""
    best = RunFolder(Path(recipe.start or "")).best()
    model, manifest = load_checkpoint(best, backbone), read_manifest(best)
    mistakes = []
    theirs, ours = model.method.config, recipe.method
    if isinstance(theirs, PsfConfig) and isinstance(ours, PsfConfig):
        ours = replace(ours, labelled=theirs.labelled)
    if theirs != ours:
        mistakes.append(f"method: {recipe.start} was trained with {theirs}, not with {ours}.")
    for kind, names, known in (
        ("language", recipe.languages, model.method.languages),
        ("task", recipe.tasks, model.method.tasks),
    ):
        mistakes += [f"{kind}s: {recipe.start} has no {kind} {name!r}." for name in names if name not in known]
    if mistakes:
        raise ConfigError("start", mistakes)
    return model, list(manifest["trained_on"])


def _alternating(cells: Sequence[TrainCell]) -> Iterator[tuple[str, str]]:
    """For every pair of languages its two cells, that of the source first (BAD-X)."""
    by_condition: dict[Condition, dict[str, str]] = {}
    for cell in cells:
        language = cell.name.partition("@")[2] or cell.condition.source
        by_condition.setdefault(cell.condition, {})[language] = cell.name
    for condition, names in by_condition.items():
        if condition.target is None or names.keys() != {condition.source, condition.target}:
            raise ConfigError(
                "recipe",
                [f"mixture.kind: ratio alternates two languages; {condition} has data of {', '.join(names)} only."],
            )
        yield names[condition.source], names[condition.target]


def backbone_of(recipe: Recipe, pieces: Pieces) -> Backbone:
    """The backbone; one that begins with random weights (from a config alone) begins with the same ones every time."""
    torch.manual_seed(recipe.train.seed)
    if recipe.backbone.preset is None:
        backbone = build_backbone(recipe)
        size = int(backbone.model.get_input_embeddings().weight.shape[0])
        if pieces.vocab_size > size:
            mistake = f"the tokenizer has {pieces.vocab_size} pieces, the backbone embeddings for {size}."
            raise ConfigError(
                "recipe", [f"backbone: {mistake} For one from a config: `vocab_size: {pieces.vocab_size}`."]
            )
        if backbone.model.can_generate():
            backbone.model.generation_config.max_length = None  # every row has a limit of its own
        return backbone
    end_id = end_of(pieces)
    special = {
        "bos_token_id": end_id if pieces.bos_id is None else pieces.bos_id,
        "eos_token_id": end_id,
        "decoder_start_token_id": end_id,
    }
    vocabulary = {"vocab_size": pieces.vocab_size, "pad_token_id": pieces.pad_id} | special
    return build_backbone(recipe, vocabulary=vocabulary)


def set_marks(model: Model, recipe: Recipe, pieces: Pieces) -> None:
    """Let translation know the language tokens that the backbone is used to, and find out now which are missing."""
    task = model.tasks.get("mt")
    if not isinstance(task, Translation):
        return
    config = model.backbone.model.config
    usual = "target" if recipe.backbone.name is None else usual_marks(config.model_type, pieces)
    task.marks, task.token_of = recipe.tasks["mt"].marks or usual, recipe.tasks["mt"].token_of
    start_id = getattr(config, "decoder_start_token_id", None)
    task.start_id = usual_start(config.model_type, pieces, marks=task.marks, start_id=start_id)
    for condition in map(Condition.parse, (*recipe.data.train, *recipe.data.validation)):
        if condition.task == task.name:
            task.tokens(condition, pieces)


def _corpora(names: Sequence[str], data: DataConfig) -> list[Corpus]:
    return [resolve(name, root=Path(data.root) if data.root else None) for name in names]


def pieces_of(recipe: Recipe) -> Pieces:
    """The tokenizer of a recipe."""
    name = recipe.backbone.tokenizer or recipe.backbone.name
    if name is None:
        raise ConfigError("recipe", ["backbone.tokenizer: missing; a backbone from a config alone has none."])
    return load_pieces(name)


def _absolute(recipe: Recipe) -> Recipe:
    """The recipe with paths that mean the same wherever one stands."""

    def path(name: str | None) -> str | None:
        return str(Path(name).resolve()) if name and Path(name).is_dir() else name

    backbone = replace(recipe.backbone, name=path(recipe.backbone.name), tokenizer=path(recipe.backbone.tokenizer))
    data = replace(recipe.data, root=path(recipe.data.root))
    return replace(recipe, backbone=backbone, data=data, start=path(recipe.start))


def _check_same(recipe: Recipe, folder: RunFolder) -> None:
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
