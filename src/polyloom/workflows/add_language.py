"""Add a language or a task to a trained run by fitting only its new parameters."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from polyloom.checkpoint import backbone_identity, describe_model, trained_parameters, write_checkpoint
from polyloom.conditions import Condition
from polyloom.config import resolved
from polyloom.config.build import set_typology
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.encoded import EncodedDataset
from polyloom.data.mixture import MixtureConfig
from polyloom.data.records import Text
from polyloom.data.typology import Typology, read_typology
from polyloom.errors import ConditionError, PolyloomError, suggest
from polyloom.evaluate.scoring import score_corpora
from polyloom.io.yaml import dump_yaml
from polyloom.loading import LoadedModel
from polyloom.methods.base import Stage
from polyloom.metrics.score import Score, selection_score
from polyloom.rundir import RunDir
from polyloom.tasks import TASKS, TaskConfig
from polyloom.training.added_rows import fit_added_row
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.events import DonorScored, OnEvent, RowAdded, RowStep, StepEvent
from polyloom.training.plan import StagePlan
from polyloom.training.prepare import label_sets, prepare_dataset, training_datasets
from polyloom.training.trainer import State
from polyloom.workflows.add_tokens import add_tokens

Corpora = Mapping[Condition, Sequence[Corpus]]
InitFrom = Literal["best-donor", "mean", "typology", "family", "fresh"]
HELD_OUT = 0.1  # share of the data that is held out to judge donors and select parameters
MAX_HELD_OUT = 200  # sentences


@dataclass(frozen=True)
class NewLanguageData:
    """The data of a new language.

    Attributes:
        text: Corpus of raw text. Default: none.
        examples: Labelled corpora by task. Translations are named by the other language, ``mt/eng``, and used in both
            directions. Default: none.
        test: Corpora likewise, scored before and after. Default: none.
    """

    text: str | None = None
    examples: Mapping[str, str] = field(default_factory=dict)
    test: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AddLanguageConfig:
    """Settings for adding a language.

    Attributes:
        init_from: How the new parameters start: as a copy of the ``best-donor`` (default), as the ``mean`` of all
            languages, of the three nearest by ``typology`` or of its ``family``, or ``fresh``.
        like: Languages whose mean the new parameters start as, instead of `init_from`.
        steps: Optimizer steps. Default: 200.
        lr: Learning rate. Default: 1e-2 for an embedding, the run's own for stored adapters.
        add_tokens: How many tokens to add for characters that the tokenizer does not know; their embeddings are
            trained too. Default: none.
        rows_per_batch: Sentences per step. Default: 32.
        seed: Seed of the order of sentences and of masks.
    """

    init_from: InitFrom = "best-donor"
    like: tuple[str, ...] = ()
    steps: int = 200
    lr: float | None = None
    add_tokens: int = 0
    rows_per_batch: int = 32
    seed: int = 0


@dataclass(frozen=True)
class AddLanguageResult:
    """The result of adding a language or a task.

    Attributes:
        donors: Known languages with the score of their weights on the held-out data, the best first; none if they
            were not needed to choose how the new parameters start.
        like: Languages that the new parameters started as.
        before: Scores of the test corpora before training, by condition.
        after: Scores after training.
        held_out: Score of the held-out data (minus the loss) before and after training.
        seconds: Training time.
        unknown: Share of the text's tokens that the tokenizer did not know.
        added_tokens: How many tokens were added.
    """

    donors: Sequence[tuple[str, float]]
    like: Sequence[str]
    before: Mapping[str, float]
    after: Mapping[str, float]
    held_out: tuple[float, float]
    seconds: float
    unknown: float
    added_tokens: int = 0


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
    given = {**({_raw_text_task(run): data.text} if data.text else {}), **data.examples}
    learn, held = _split(_conditions(run, name, given))
    tested = _conditions(run, name, data.test)
    folder, unknown, old = _new(into), unknown_share(run, data.text), run.predictor.tokenizer.vocab_size
    if settings.add_tokens:
        run = add_tokens(run, _lines(data.text), settings.add_tokens, folder.backbone)
    model = run.model
    torch.manual_seed(settings.seed)
    model.method.add_language(name)
    set_typology(model, [name], root=run.recipe.data.root, typology=typology)
    if not (model.group("rows.language") and all(map(model.method.supports, learn))):
        raise ConditionError(
            f"method {model.method.config.name}: {model.method.summary}. It has no parameters per language that "
            "could be trained; hyperx, hyper-adapters, madx and lang-adapters have."
        )
    known = _possible_donors(run, name, held)
    paired = any(len(condition.languages) > 1 for condition in held)  # its token is that of the best donor
    judged = not settings.like and (paired or settings.init_from in ("best-donor", "fresh"))
    donors = _score_donors(run, name, known, held, on_event) if judged else []
    known = [donor for donor, _ in donors] or known
    if settings.init_from in ("typology", "family"):
        typology = typology or read_typology(run.recipe.data.root)
    like = settings.like or languages_to_start_from(name, known, settings.init_from, typology)
    _initialise(run, name, like, token=next(iter((*like, *known)), name))
    stored = model.method.stores_adapters("language")
    plan = _plan(run, learn, replace(settings, lr=settings.lr or (run.recipe.optim.lr if stored else 1e-2)))
    fitted = _fit(run, plan, held, tested, on_event, first_added_token=old if settings.add_tokens else None)
    if settings.add_tokens:
        model.backbone.model.save_pretrained(folder.backbone)
    _write(run, folder, learn, languages=(*run.recipe.languages, name), tasks=_tasks(run))
    return AddLanguageResult(donors, like, *fitted, unknown, run.predictor.tokenizer.vocab_size - old)


def add_task(  # noqa: PLR0913 - each has a meaning of its own
    run: LoadedModel,
    name: str,
    into: Path,
    *,
    examples: Mapping[str, str],
    test: Mapping[str, str] | None = None,
    settings: AddLanguageConfig | None = None,
    on_event: OnEvent = lambda _: None,
) -> AddLanguageResult:
    """Add a task with its head to a run, trained on examples in some languages; write the new run to `into`."""
    settings, model = settings or AddLanguageConfig(), run.model
    addable = [task for task, known in TASKS.items() if known.addable]
    if name not in addable:
        raise ConditionError(f"task {name!r}: it cannot be added. {suggest(name, addable)}")
    if name in model.method.tasks:
        raise ConditionError(f"task {name!r} is there already.")
    learn, held = _split({Condition(name, language): corpus for language, corpus in examples.items()})
    datasets = _datasets(run, learn)
    folder = _new(into)
    like = settings.like[0] if settings.like else None
    model.add_task(name, label_sets(datasets)[name], like=like)
    plan = _plan(run, learn, replace(settings, lr=settings.lr or 3e-3), kind="task", head=name)
    tested = {Condition(name, language): corpus for language, corpus in (test or {}).items()}
    fitted = _fit(run, plan, held, tested, on_event)
    tasks = {**run.recipe.tasks, name: TASKS[name].Config()}
    _write(run, folder, learn, tasks=tasks)
    return AddLanguageResult((), settings.like[:1], *fitted, 0.0)


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


def _possible_donors(run: LoadedModel, name: str, held: Corpora) -> list[str]:
    """Return the known languages that the newest one could start as."""

    def applies(donor: str) -> bool:
        asked = [Condition(c.task, *(donor if x == name else x for x in c.languages)) for c in held]
        return all(run.model.method.supports(condition) for condition in asked)

    others = {language for condition in held for language in condition.languages}
    return [donor for donor in run.model.method.languages if donor not in others and applies(donor)]


def _score_donors(
    run: LoadedModel, name: str, known: Sequence[str], held: Corpora, on_event: OnEvent
) -> list[tuple[str, float]]:
    """Score the weights of known languages on held-out data of the newest one, the best first."""
    scored = []
    for donor in known:
        _initialise(run, name, [donor], token=donor)
        scored.append((donor, selection_score(_held_scores(run, held))))
        on_event(DonorScored(donor=donor, score=scored[-1][1], done=len(scored), total=len(known)))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


def _initialise(run: LoadedModel, name: str, like: Sequence[str], *, token: str) -> None:
    """Initialise the newest language from others; in translation also use the language token of one of them.

    The language's own token is used only with a pretrained backbone that has it: otherwise its embedding is untrained.
    """
    run.model.method.reinit_language(like[0] if len(like) == 1 else like or None)
    if (run.recipe.backbone.name and run.predictor.tokenizer.language_id(name)) is None:
        for task in run.model.tasks.values():
            task.add_language(name, like=token)


def _tasks(run: LoadedModel) -> dict[str, TaskConfig]:
    """Return the recipe's tasks with the language tokens of added languages."""
    trained = run.model.tasks
    return {name: trained[name].updated(c) if name in trained else c for name, c in run.recipe.tasks.items()}


def _raw_text_task(run: LoadedModel) -> str:
    """Return the task with which the run was trained on raw text."""
    name = next((name for name, task in run.model.tasks.items() if task.raw_text), None)
    if name is None:
        raw = ", ".join(name for name, task in TASKS.items() if task.raw_text)
        known = ", ".join(run.model.tasks)
        raise ConditionError(f"--text: the run was not trained on raw text (task {raw}). Its tasks: {known}.")
    return name


def _conditions(run: LoadedModel, name: str, given: Mapping[str, str]) -> dict[Condition, str]:
    """Return corpora by condition; those of translations in both directions."""
    by_condition: dict[Condition, str] = {}
    for key, corpus in given.items():
        task, _, other = key.partition("/")
        if task not in run.model.tasks:
            raise ConditionError(f"task {task!r}: the run has none. It has {', '.join(run.model.tasks)}.")
        if run.model.tasks[task].bilingual != bool(other):
            raise ConditionError(
                f"{key}={corpus}: write pos=FILE, or of translations mt/eng=FILE, with the other language."
            )
        ways = [(other, name), (name, other)] if other else [(name,)]
        by_condition |= {Condition(task, *way): corpus for way in ways}
    return by_condition


def unknown_share(run: LoadedModel, text: str | None) -> float:
    """Return the share of a text's tokens that are unknown to the tokenizer."""
    if text is None:
        return 0.0
    tokens = [token for ids in run.predictor.tokenizer.text(list(islice(_lines(text), 1000))) for token in ids]
    return run.predictor.tokenizer.unknown_rate(tokens)


def _lines(text: str | None) -> Iterator[str]:
    if text is None:
        raise PolyloomError("--add-tokens: new tokens are found in raw text. Give --text FILE.")
    return (record.text for record in resolve(text).records("text") if isinstance(record, Text))


def _split(given: Mapping[Condition, str]) -> tuple[Corpora, Corpora]:
    """Split corpora into training data and held-out data, by condition."""
    if not given:
        raise PolyloomError("add: no data to train on. Give --text FILE, or --examples.")
    learn: dict[Condition, Sequence[Corpus]] = {}
    held: dict[Condition, Sequence[Corpus]] = {}
    for condition, corpus in given.items():
        count = sum(1 for _ in TASKS[condition.task].records(resolve(corpus), condition))
        out = max(1, min(MAX_HELD_OUT, round(HELD_OUT * count)))
        if count < 2:
            raise PolyloomError(f"{corpus}: {count} sentences; at least two are needed, one of them to check.")
        learn[condition] = [part(resolve(corpus), 0, count - out)]
        held[condition] = [part(resolve(corpus), count - out, count)]
    return learn, held


def part(corpus: Corpus, begin: int, end: int) -> Corpus:
    """Return a range of the sentences of a corpus, which may be a range of another corpus already."""
    whole, first = re.sub(r"\[(\d*:\d*|<=\d+)\]$", "", corpus.name), corpus.start
    return replace(corpus, name=f"{whole}[{first + begin}:{first + end}]", start=first + begin, stop=first + end)


def _new(into: Path) -> RunDir:
    directory = RunDir(into)
    directory.require_empty()
    return directory


def _fit(
    run: LoadedModel,
    plan: StagePlan,
    held: Corpora,
    tested: Mapping[Condition, str],
    on_event: OnEvent,
    *,
    first_added_token: int | None = None,
) -> tuple[dict[str, float], dict[str, float], tuple[float, float], float]:
    """Train, and return scores before and after, of the tests and of the held-out data, and the seconds it took."""
    kind = plan.stage.trains[0].removeprefix("rows.")
    corpora = {condition: [resolve(corpus)] for condition, corpus in tested.items()}

    def on_step(step: StepEvent, score: float | None) -> None:
        on_event(RowStep(step=step.step, steps=plan.steps, loss=step.loss, score=score))

    before, started = _scores(run, corpora), time.perf_counter()
    held_out = fit_added_row(
        run.model, plan, tokenizer=run.predictor.tokenizer, kind=kind, first_added_token=first_added_token,
        score=lambda: selection_score(_held_scores(run, held)), on_step=on_step,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    for dataset in plan.datasets:
        dataset.dataset.close()
    return before, _scores(run, corpora), held_out, seconds


def _held_scores(run: LoadedModel, held: Corpora) -> list[Score]:
    return [score_corpora(run.predictor, condition, corpora, losses=True)[0] for condition, corpora in held.items()]


def _scores(run: LoadedModel, tested: Corpora) -> dict[str, float]:
    return {str(c): score_corpora(run.predictor, c, corpora)[0].value for c, corpora in tested.items()}


def _datasets(run: LoadedModel, learn: Corpora) -> dict[Condition, EncodedDataset]:
    tokenizer = run.predictor.tokenizer
    return {condition: prepare_dataset(condition, corpora, tokenizer=tokenizer) for condition, corpora in learn.items()}


def _plan(
    run: LoadedModel, learn: Corpora, settings: AddLanguageConfig, *, kind: str = "language", head: str = ""
) -> StagePlan:
    """Plan one stage that trains the newest row of a kind, and the head of a new task."""
    train = TrainConfig(
        steps=settings.steps, rows_per_batch=settings.rows_per_batch, max_length=run.recipe.train.max_length,
        mlm_candidates=run.recipe.train.mlm_candidates, dropout=False, evaluate_every=max(1, settings.steps // 8),
        seed=settings.seed,
    )  # fmt: skip
    more = [f"heads.{head}"] if head else ["backbone.tokens"] if settings.add_tokens else []
    stage = Stage("add", (f"rows.{kind}", *more))
    labels = {name: task.labels for name, task in run.model.tasks.items()}
    chosen = training_datasets(_datasets(run, learn), method=run.model.method, labels=labels, stage=stage)
    optim = OptimConfig(lr=settings.lr or 1e-2, warmup_steps=min(10, settings.steps // 10))
    return StagePlan(stage, optim, train, MixtureConfig(datasets_per_batch=len(chosen)), chosen)


def _write(run: LoadedModel, folder: RunDir, learn: Corpora, **changed: Any) -> None:
    """Write a run with the extended model as its only checkpoint."""
    trained = {str(condition): tuple(corpus.name for corpus in corpora) for condition, corpora in learn.items()}
    data = replace(run.recipe.data, train={**run.recipe.data.train, **trained})
    folder.prepare()
    text = dump_yaml(resolved(replace(run.recipe, data=data, **changed)))
    folder.write_recipe(text, own=RunDir(run.path).is_own())
    added = RowAdded(run=str(run.path), checkpoint=run.checkpoint.name, trained_on=sorted(trained))
    folder.note(added.to_dict())
    manifest = describe_model(run.model) | {"backbone": backbone_identity(run.model)}
    manifest |= {"trained_on": sorted({*run.trained_on, *trained}), "tokenizer": run.predictor.tokenizer.identity}
    state = asdict(State(total=1, scheduled=[1]))
    write_checkpoint(folder.checkpoint(1), dict(trained_parameters(run.model)), manifest, training=({}, state))
