"""Add a language or a task to a trained run by fitting only its new parameters."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from polyloom.backbones import extend_backbone
from polyloom.checkpoint import backbone_identity, describe_model, trained_parameters, write_checkpoint
from polyloom.conditions import Condition
from polyloom.config import resolved
from polyloom.config.build import set_typology
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.encoded import EncodedDataset
from polyloom.data.mixture import MixtureConfig
from polyloom.data.records import Text
from polyloom.data.tokenization.new_tokens import extend_tokenizer, new_tokens
from polyloom.data.typology import Typology, read_typology
from polyloom.errors import ConditionError, PolyloomError, suggest
from polyloom.evaluate.scoring import score_corpora
from polyloom.io.yaml import dump_yaml
from polyloom.loading import LoadedModel, load_run_checkpoint
from polyloom.methods.base import Stage
from polyloom.metrics.score import selection_score
from polyloom.rundir import RunDir
from polyloom.tasks import TASKS
from polyloom.training.added_rows import fit_added_row
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.events import DonorScored, OnEvent, RowAdded, RowStep, StepEvent
from polyloom.training.plan import StagePlan
from polyloom.training.prepare import label_sets, prepare_dataset, training_datasets
from polyloom.training.trainer import State

Corpora = Mapping[Condition, Sequence[Corpus]]
InitFrom = Literal["best-donor", "mean", "typology", "family", "fresh"]
HELD_OUT = 0.1  # share of the data that is held out to judge donors and select parameters
MAX_HELD_OUT = 200  # sentences


@dataclass(frozen=True)
class NewLanguageData:
    """The data of a new language."""

    text: str | None = None
    """Corpus of raw text."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Labelled corpora by task. Translations are named by the other language, ``mt/eng``, and used in both
    directions."""
    test: Mapping[str, str] = field(default_factory=dict)
    """Corpora likewise, scored before and after."""


@dataclass(frozen=True)
class AddLanguageConfig:
    """Settings for adding a language or a task."""

    init_from: InitFrom = "best-donor"
    """How the new parameters start: as a copy of the ``best-donor``, as the ``mean`` of all languages, of the three
    nearest by ``typology`` or of its ``family``, or ``fresh``."""
    copy_languages: tuple[str, ...] = ()
    """Languages whose mean the new parameters start as, instead of `init_from`."""
    steps: int = 200
    """Optimizer steps."""
    lr: float | None = None
    """Learning rate. Default: 1e-2 for an embedding of a language, 3e-3 for a task, the run's own for stored
    adapters."""
    add_tokens: int = 0
    """How many tokens to add for characters that the tokenizer does not know; their embeddings are trained too."""
    rows_per_batch: int = 32
    """Sentences per step."""
    seed: int = 0
    """Seed of the order of sentences and of masks."""


@dataclass(frozen=True, kw_only=True)
class AddLanguageResult:
    """The result of adding a language or a task."""

    donors: Sequence[tuple[str, float]] = ()
    """Known languages with the score of their weights on the held-out data, the best first; none if they were not
    needed to choose how the new parameters start."""
    copied: Sequence[str] = ()
    """Languages, or the task, that the new parameters started as."""
    before: Mapping[str, float]
    """Scores of the test corpora before training, by condition."""
    after: Mapping[str, float]
    """Scores after training."""
    held_out: tuple[float, float]
    """Score of the held-out data (minus the loss) before and after training."""
    seconds: float
    """Training time."""
    unknown: float = 0.0
    """Share of the text's tokens that the tokenizer did not know."""
    added_tokens: int = 0
    """How many tokens were added."""


def add_language(  # noqa: PLR0913 - each has a meaning of its own
    run: LoadedModel,
    name: str,
    into: Path,
    *,
    data: NewLanguageData,
    settings: AddLanguageConfig | None = None,
    typology: Typology | None = None,
    on_event: OnEvent = lambda _: None,
) -> AddLanguageResult:
    """Add a language to a run, and write the new run to `into`.

    Args:
        run: A trained run; its model is changed.
        name: Code of the language.
        into: Directory of the new run.
        data: Data of the language.
        settings: How it is added.
        typology: Features and families of languages. Default: the tables beside the corpora.
        on_event: Called with progress events.
    """
    settings = settings or AddLanguageConfig()
    if name in run.model.method.languages:
        raise ConditionError(f"language {name!r} is there already.")
    text_task = {_raw_text_task(run): data.text} if data.text else {}
    # Missing data is noticed before the model changes.
    training, held_out = _hold_out(_by_condition(run, name, {**text_task, **data.examples}))
    test = {condition: [resolve(corpus)] for condition, corpus in _by_condition(run, name, data.test).items()}
    folder = RunDir(into)
    folder.require_empty()

    unknown, old_size = unknown_share(run, data.text), run.predictor.tokenizer.vocab_size
    if settings.add_tokens:
        run = _add_tokens(run, _lines(data.text), settings.add_tokens, folder.backbone)
    model = run.model
    torch.manual_seed(settings.seed)  # new parameters may be random
    model.method.add_language(name)
    set_typology(model, [name], root=run.recipe.data.root, typology=typology)
    if not (model.group("rows.language") and all(map(model.method.supports, training))):
        raise ConditionError(
            f"method {model.method.config.name}: {model.method.summary}. It has no parameters per language that "
            "could be trained; hyperx, hyper-adapters, madx and lang-adapters have."
        )

    # Possible donors are scored where the best one is needed: to start as a copy of it, to report how far fresh
    # parameters came, and in translation for its language token.
    donors = _possible_donors(run, name, held_out)
    bilingual = any(len(condition.languages) > 1 for condition in held_out)
    scores: list[tuple[str, float]] = []
    if not settings.copy_languages and (bilingual or settings.init_from in ("best-donor", "fresh")):
        for donor in donors:
            _initialise(run, name, [donor], token=donor)
            scores.append((donor, _selection_score(run, held_out)))
            on_event(DonorScored(donor=donor, score=scores[-1][1], done=len(scores), total=len(donors)))
        scores.sort(key=lambda scored: (-scored[1], scored[0]))
        donors = [donor for donor, _ in scores]
    if settings.init_from in ("typology", "family"):
        typology = typology or read_typology(run.recipe.data.root)
    copied = settings.copy_languages or languages_to_start_from(name, donors, settings.init_from, typology)
    _initialise(run, name, copied, token=(*copied, *donors, name)[0])

    # An embedding is a few numbers, so it takes a higher learning rate than stored adapters.
    lr = settings.lr or (run.recipe.optim.lr if model.method.stores_adapters("language") else 1e-2)
    groups = ("rows.language", "backbone.tokens") if settings.add_tokens else ("rows.language",)
    plan = _plan(run, _encode(run, training), groups, lr=lr, settings=settings)
    first_added_token = old_size if settings.add_tokens else None
    result = _fit(run, plan, held_out, test, on_event, first_added_token=first_added_token)

    if settings.add_tokens:
        model.backbone.model.save_pretrained(folder.backbone)
    # The recipe gets the tasks with the language tokens of the added language.
    tasks = {c: model.tasks[c].updated(task) if c in model.tasks else task for c, task in run.recipe.tasks.items()}
    write_extended_run(run, folder, training, languages=(*run.recipe.languages, name), tasks=tasks)
    added_tokens = run.predictor.tokenizer.vocab_size - old_size
    return replace(result, donors=scores, copied=copied, unknown=unknown, added_tokens=added_tokens)


def add_task(  # noqa: PLR0913 - each has a meaning of its own
    run: LoadedModel,
    name: str,
    into: Path,
    *,
    examples: Mapping[str, str],
    test: Mapping[str, str] | None = None,
    copy_task: str | None = None,
    settings: AddLanguageConfig | None = None,
    on_event: OnEvent = lambda _: None,
) -> AddLanguageResult:
    """Add a task with its head to a run, and write the new run to `into`.

    Args:
        run: A trained run; its model is changed.
        name: Name of the task.
        into: Directory of the new run.
        examples: Training corpora by language.
        test: Corpora by language, scored before and after.
        copy_task: A task that the new parameters start as a copy of. Default: fresh parameters.
        settings: How it is added; of these, those that concern languages are not used.
        on_event: Called with progress events.
    """
    settings, model = settings or AddLanguageConfig(), run.model
    addable = [task for task, known in TASKS.items() if known.addable]
    if name not in addable:
        raise ConditionError(f"task {name!r}: it cannot be added. {suggest(name, addable)}")
    if name in model.method.tasks:
        raise ConditionError(f"task {name!r} is there already.")
    training, held_out = _hold_out({Condition(name, language): corpus for language, corpus in examples.items()})
    tested = {Condition(name, language): [resolve(corpus)] for language, corpus in (test or {}).items()}
    datasets = _encode(run, training)
    folder = RunDir(into)
    folder.require_empty()

    model.add_task(name, label_sets(datasets)[name], like=copy_task)
    plan = _plan(run, datasets, ("rows.task", f"heads.{name}"), lr=settings.lr or 3e-3, settings=settings)
    result = _fit(run, plan, held_out, tested, on_event)
    write_extended_run(run, folder, training, tasks={**run.recipe.tasks, name: TASKS[name].Config()})
    return replace(result, copied=(copy_task,) if copy_task else ())


def languages_to_start_from(
    name: str, known: Sequence[str], init_from: InitFrom, typology: Typology | None
) -> tuple[str, ...]:
    """Return which of the known languages, the best donor first, a new one starts as the mean of."""
    if init_from in ("typology", "family"):
        if typology is None:
            raise PolyloomError(f"--init-from {init_from}: no tables of languages. Name their folder: --typology DIR.")
        distances = {donor: typology.distance(name, donor) for donor in known}
        nearest = sorted((distance, donor) for donor, distance in distances.items() if distance is not None)
        family = [donor for donor in known if typology.same_family(name, donor)]
        chosen = tuple(family) if init_from == "family" else tuple(donor for _, donor in nearest[:3])
        if not chosen:
            raise PolyloomError(f"--init-from {init_from}: the tables have no data on {name} and the run's languages.")
        return chosen
    return {"best-donor": tuple(known[:1]), "mean": tuple(known), "fresh": ()}[init_from]


def _possible_donors(run: LoadedModel, name: str, held_out: Corpora) -> list[str]:
    """Return the known languages that the newest one could start as: in its place, all conditions are supported."""
    others = {language for condition in held_out for language in condition.languages}
    donors = []
    for donor in run.model.method.languages:
        replaced = [Condition(c.task, *(donor if x == name else x for x in c.languages)) for c in held_out]
        if donor not in others and all(map(run.model.method.supports, replaced)):
            donors.append(donor)
    return donors


def _initialise(run: LoadedModel, name: str, like: Sequence[str], *, token: str) -> None:
    """Initialise the newest language from others; in translation also use the language token of one of them.

    The language's own token is used only with a pretrained backbone that has it: otherwise its embedding is untrained.
    """
    run.model.method.reinit_language(like[0] if len(like) == 1 else like or None)
    if (run.recipe.backbone.name and run.predictor.tokenizer.language_id(name)) is None:
        for task in run.model.tasks.values():
            task.add_language(name, like=token)


# -- data -------------------------------------------------------------------------------------------------------------


def _raw_text_task(run: LoadedModel) -> str:
    """Return the task with which the run was trained on raw text."""
    tasks = [name for name, task in run.model.tasks.items() if task.raw_text]
    if not tasks:
        raw = ", ".join(name for name, task in TASKS.items() if task.raw_text)
        known = ", ".join(run.model.tasks)
        raise ConditionError(f"--text: the run was not trained on raw text (task {raw}). Its tasks: {known}.")
    return tasks[0]


def _by_condition(run: LoadedModel, name: str, corpora: Mapping[str, str]) -> dict[Condition, str]:
    """Return corpora of a language by condition; those of translations in both directions."""
    by_condition: dict[Condition, str] = {}
    for key, corpus in corpora.items():
        task, _, other = key.partition("/")
        if task not in run.model.tasks:
            raise ConditionError(f"task {task!r}: the run has none. It has {', '.join(run.model.tasks)}.")
        if run.model.tasks[task].bilingual != bool(other):
            raise ConditionError(
                f"{key}={corpus}: write pos=FILE, or of translations mt/eng=FILE, with the other language."
            )
        directions = [(other, name), (name, other)] if other else [(name,)]
        by_condition |= {Condition(task, *languages): corpus for languages in directions}
    return by_condition


def _hold_out(corpora: Mapping[Condition, str]) -> tuple[Corpora, Corpora]:
    """Split corpora into training data and held-out data, by condition."""
    if not corpora:
        raise PolyloomError("add: no data to train on. Give --text FILE, or --examples.")
    training: dict[Condition, Sequence[Corpus]] = {}
    held_out: dict[Condition, Sequence[Corpus]] = {}
    for condition, name in corpora.items():
        corpus = resolve(name)
        count = sum(1 for _ in TASKS[condition.task].records(corpus, condition))
        if count < 2:
            raise PolyloomError(f"{name}: {count} sentences; at least two are needed, one of them to check.")
        first = count - max(1, min(MAX_HELD_OUT, round(HELD_OUT * count)))
        training[condition], held_out[condition] = [part(corpus, 0, first)], [part(corpus, first, count)]
    return training, held_out


def part(corpus: Corpus, begin: int, end: int) -> Corpus:
    """Return a range of the sentences of a corpus, which may be a range of another corpus already."""
    whole, first = re.sub(r"\[(\d*:\d*|<=\d+)\]$", "", corpus.name), corpus.start
    return replace(corpus, name=f"{whole}[{first + begin}:{first + end}]", start=first + begin, stop=first + end)


def _encode(run: LoadedModel, corpora: Corpora) -> dict[Condition, EncodedDataset]:
    tokenizer = run.predictor.tokenizer
    return {condition: prepare_dataset(condition, c, tokenizer=tokenizer) for condition, c in corpora.items()}


def _lines(text: str | None) -> Iterator[str]:
    if text is None:
        raise PolyloomError("--add-tokens: new tokens are found in raw text. Give --text FILE.")
    return (record.text for record in resolve(text).records("text") if isinstance(record, Text))


def unknown_share(run: LoadedModel, text: str | None) -> float:
    """Return the share of the tokens of a text's first lines that are unknown to the tokenizer."""
    if text is None:
        return 0.0
    tokens = [token for ids in run.predictor.tokenizer.text(list(islice(_lines(text), 1000))) for token in ids]
    return run.predictor.tokenizer.unknown_rate(tokens)


def _add_tokens(run: LoadedModel, lines: Iterator[str], count: int, into: Path) -> LoadedModel:
    """Add up to `count` tokens for unknown characters; write backbone and tokenizer, and load the run on them.

    Text that the tokenizer knew is tokenized as before, so that its predictions do not change. Only masked language
    modelling has more tokens to choose from.
    """
    settings = run.recipe.backbone
    trained = {group for stage in run.model.method.stages() for group in stage.trains}
    if settings.name is None or "backbone" in trained or settings.dtype != "fp32":
        raise PolyloomError(
            "--add-tokens: the run must have a pretrained backbone in fp32 that it does not train. "
            "Otherwise train anew, with a vocabulary that knows the script (polyloom data vocab)."
        )
    tokens = new_tokens(run.predictor.tokenizer, list(lines), count)
    if not tokens:
        raise PolyloomError("--add-tokens: the tokenizer knows all characters of the text. Leave the option out.")
    size = extend_tokenizer(settings.tokenizer_name, tokens, into)
    extend_backbone(settings.name, size, into, seed=run.recipe.train.seed)
    recipe = replace(run.recipe, backbone=replace(settings, name=str(into.resolve()), tokenizer=None))
    return load_run_checkpoint(run.path, recipe, run.checkpoint, extended=True)


# -- training ---------------------------------------------------------------------------------------------------------


def _plan(
    run: LoadedModel,
    datasets: Mapping[Condition, EncodedDataset],
    groups: tuple[str, ...],
    *,
    lr: float,
    settings: AddLanguageConfig,
) -> StagePlan:
    """Plan one stage, which trains some groups of parameters; each batch has rows of every dataset."""
    stage = Stage("add", groups)
    labels = {name: task.labels for name, task in run.model.tasks.items()}
    selected = training_datasets(datasets, method=run.model.method, labels=labels, stage=stage)
    train = TrainConfig(
        steps=settings.steps, rows_per_batch=settings.rows_per_batch, max_length=run.recipe.train.max_length,
        mlm_candidates=run.recipe.train.mlm_candidates, dropout=False, evaluate_every=max(1, settings.steps // 8),
        seed=settings.seed,
    )  # fmt: skip
    optim = OptimConfig(lr=lr, warmup_steps=min(10, settings.steps // 10))
    return StagePlan(stage, optim, train, MixtureConfig(datasets_per_batch=len(selected)), selected)


def _fit(
    run: LoadedModel,
    plan: StagePlan,
    held_out: Corpora,
    test: Corpora,
    on_event: OnEvent,
    *,
    first_added_token: int | None = None,
) -> AddLanguageResult:
    """Train the newest row, and score the test data and the held-out data before and after."""

    def test_scores() -> dict[str, float]:
        return {str(c): score_corpora(run.predictor, c, corpora)[0].value for c, corpora in test.items()}

    def on_step(step: StepEvent, score: float | None) -> None:
        on_event(RowStep(step=step.step, steps=plan.steps, loss=step.loss, score=score))

    before, started = test_scores(), time.perf_counter()
    held_out_scores = fit_added_row(
        run.model, plan, tokenizer=run.predictor.tokenizer, kind=plan.stage.trains[0].removeprefix("rows."),
        first_added_token=first_added_token, score=lambda: _selection_score(run, held_out), on_step=on_step,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    return AddLanguageResult(before=before, after=test_scores(), held_out=held_out_scores, seconds=seconds)


def _selection_score(run: LoadedModel, held_out: Corpora) -> float:
    return selection_score([score_corpora(run.predictor, c, part, losses=True)[0] for c, part in held_out.items()])


def write_extended_run(run: LoadedModel, folder: RunDir, training: Corpora, **changed: Any) -> None:
    """Write a run with the extended model as its only checkpoint.

    Args:
        run: The run with its extended model.
        folder: The new directory.
        training: The corpora that the new parameters were trained on.
        **changed: Sections of the recipe that changed.
    """
    trained = {str(condition): tuple(corpus.name for corpus in corpora) for condition, corpora in training.items()}
    data = replace(run.recipe.data, train={**run.recipe.data.train, **trained})
    folder.prepare()
    text = dump_yaml(resolved(replace(run.recipe, data=data, **changed)))
    folder.write_recipe(text, own=RunDir(run.path).is_own())
    folder.note(RowAdded(run=str(run.path), checkpoint=run.checkpoint.name, trained_on=sorted(trained)).to_dict())
    manifest = describe_model(run.model) | {"backbone": backbone_identity(run.model)}
    manifest |= {"trained_on": sorted({*run.trained_on, *trained}), "tokenizer": run.predictor.tokenizer.identity}
    state = asdict(State(total=1, scheduled=[1]))
    write_checkpoint(folder.checkpoint(1), dict(trained_parameters(run.model)), manifest, training=({}, state))
