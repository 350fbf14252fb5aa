"""A trained run and a new language or task: where to begin, what it gains, who is like it. Nothing else changes."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from polyloom.checkpoint import backbone_identity, describe_model, trained_parameters, write_checkpoint
from polyloom.conditions import Condition
from polyloom.config import resolved
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.encoded import EncodedDataset
from polyloom.data.mixture import MixtureConfig
from polyloom.data.records import Text
from polyloom.data.typology import Typology, read_typology
from polyloom.errors import ConditionError, PolyloomError, TrainingError, suggest
from polyloom.inference.predictor import score_corpora
from polyloom.io.yaml import dump_yaml
from polyloom.methods.base import Stage
from polyloom.metrics.score import Score, selection_score
from polyloom.rundir import RECIPE, RunDir
from polyloom.tasks import TASKS, TaskConfig
from polyloom.train.added_rows import fit_added_row
from polyloom.train.config import OptimConfig, TrainConfig
from polyloom.train.loop import StagePlan, Step
from polyloom.train.prepare import label_sets, prepare_dataset, training_datasets
from polyloom.workflows.add_tokens import extend
from polyloom.workflows.runs import Run, set_typology

Corpora = Mapping[Condition, Sequence[Corpus]]
OnEvent = Callable[[Mapping[str, Any]], None]
InitFrom = Literal["best-donor", "mean", "typology", "family", "fresh"]
HELD_OUT = 0.1  # of what is given, to see whether it helps; at most so many sentences:
MOST = 200
BACKBONE = "backbone"  # of a run with new pieces, in its folder


@dataclass(frozen=True)
class NewLanguageData:
    """What is known of a new language.

    Attributes:
        text: Raw text.
        examples: Labelled corpora by task; translations by the language on the other side: ``mt/eng``, for both ways.
        test: Corpora likewise, scored before and after.
    """

    text: str | None = None
    examples: Mapping[str, str] = field(default_factory=dict)
    test: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AddLanguageConfig:
    """How a new row is learnt.

    Attributes:
        init_from: The ``best-donor``, the ``mean`` of all languages, the mean of the three nearest by ``typology``,
            the mean of its ``family``, or ``fresh``.
        like: Languages to begin as, or their mean, whatever `begin` says.
        steps: Optimizer steps.
        lr: Learning rate; by default 1e-2 for an embedding, the run's own for stored adapters.
        add_tokens: How many new pieces letters get that the tokenizer does not know; they learn too.
        rows_per_batch: Sentences of a step.
        seed: Of their order and masks.
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
    """What came of it.

    Attributes:
        donors: Languages by how well their weights serve the new one's data, the best first.
        like: What it began as.
        before: Scores of the test corpora with the weights that it began with, by condition.
        after: With those learnt.
        held_out: How well what was held out is predicted, before and after: minus its loss, by which donors are judged
            and the best is kept.
        seconds: Time that learning took.
        unknown: Share of pieces of the text that the tokenizer did not know.
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
    run: Run,
    name: str,
    into: Path,
    *,
    data: NewLanguageData,
    settings: AddLanguageConfig | None = None,
    typology: Typology | None = None,
    on_event: OnEvent = lambda _: None,
) -> AddLanguageResult:
    """Fit what a method has of its own for a language, for a new one; write a run that knows it too."""
    settings = settings or AddLanguageConfig()
    if name in run.model.method.languages:
        raise ConditionError(f"language {name!r} is there already.")
    given = {**({_raw_text_task(run): data.text} if data.text else {}), **data.examples}
    learn, held = _split(_conditions(run, name, given))
    tested = _conditions(run, name, data.test)
    folder, unknown, old = _new(into), unknown_share(run, data.text), run.predictor.tokenizer.vocab_size
    if settings.add_tokens:
        run = extend(run, _lines(data.text), settings.add_tokens, into / BACKBONE)
    model = run.model
    torch.manual_seed(settings.seed)
    model.method.add_language(name)
    set_typology(model, run.recipe, [name], typology)
    if not (model.group("rows.language") and all(map(model.method.supports, learn))):
        raise ConditionError(
            f"method {model.method.config.name}: {model.method.summary}. A language has nothing of its own in it that "
            "could be learnt; in hyperx, hyper-adapters, madx and lang-adapters it has."
        )
    donors = suggest_donors(run, name, held)
    if settings.init_from in ("typology", "family"):
        typology = typology or read_typology(run.recipe.data.root)
    like = settings.like or languages_to_start_from(name, donors, settings.init_from, typology)
    _begin(run, name, like, token=next(iter((*like, *(donor for donor, _ in donors))), name))
    stored = model.method.stores_adapters("language")
    plan = _plan(run, learn, replace(settings, lr=settings.lr or (run.recipe.optim.lr if stored else 1e-2)))
    fitted = _fit(run, plan, held, tested, on_event, first_added_token=old if settings.add_tokens else None)
    if settings.add_tokens:
        model.backbone.model.save_pretrained(into / BACKBONE)
    _write(run, folder, learn, languages=(*run.recipe.languages, name), tasks=_tasks(run))
    return AddLanguageResult(donors, like, *fitted, unknown, run.predictor.tokenizer.vocab_size - old)


def add_task(  # noqa: PLR0913 - each has a meaning of its own
    run: Run,
    name: str,
    into: Path,
    *,
    examples: Mapping[str, str],
    test: Mapping[str, str] | None = None,
    settings: AddLanguageConfig | None = None,
    on_event: OnEvent = lambda _: None,
) -> AddLanguageResult:
    """Fit a new task's row and head to examples in some languages; write a run that knows it too."""
    settings, model = settings or AddLanguageConfig(), run.model
    addable = [task for task, known in TASKS.items() if known.addable]
    if name not in addable:
        raise ConditionError(f"task {name!r}: none that can be added. {suggest(name, addable)}")
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
    name: str, donors: Sequence[tuple[str, float]], begin: InitFrom, typology: Typology | None
) -> tuple[str, ...]:
    """The languages whose mean a new one begins as; none for a fresh row."""
    known = tuple(donor for donor, _ in donors)
    if begin in ("typology", "family"):
        if typology is None:
            raise PolyloomError(f"--init-from {begin}: no tables of languages. Name their folder: --typology DIR.")
        apart = {donor: typology.distance(name, donor) for donor in known}
        near = sorted((far, donor) for donor, far in apart.items() if far is not None)
        kin = [donor for donor in known if typology.same_family(name, donor)]
        found = tuple(kin) if begin == "family" else tuple(donor for _, donor in near[:3])
        if not found:
            raise PolyloomError(f"--init-from {begin}: the tables tell nothing about {name} and the run's languages.")
        return found
    return {"best-donor": known[:1], "mean": known, "fresh": ()}[begin]


def suggest_donors(run: Run, name: str, held: Corpora) -> list[tuple[str, float]]:
    """The languages whose weights serve the data of the newest one best, by the mean of what selects checkpoints."""
    found, others = [], {language for condition in held for language in condition.languages}
    for donor in set(run.model.method.languages) - others:
        asked = [Condition(c.task, *(donor if x == name else x for x in c.languages)) for c in held]
        if all(run.model.method.supports(condition) for condition in asked):
            _begin(run, name, [donor], token=donor)
            found.append((donor, selection_score(_held_scores(run, held))))
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def _begin(run: Run, name: str, like: Sequence[str], *, token: str) -> None:
    """Let the newest language begin as others, in translation also with the token of one, if its own says nothing.

    Of a backbone from scratch it says nothing even if the vocabulary has it: nobody has trained its embedding.
    """
    run.model.method.reinit_language(like[0] if len(like) == 1 else like or None)
    if (run.recipe.backbone.name and run.predictor.tokenizer.language_id(name)) is None:
        for task in run.model.tasks.values():
            task.add_language(name, like=token)


def _tasks(run: Run) -> dict[str, TaskConfig]:
    """Tasks as the recipe has them, with the tokens of languages that were added."""
    learnt = run.model.tasks
    return {name: learnt[name].updated(c) if name in learnt else c for name, c in run.recipe.tasks.items()}


def _raw_text_task(run: Run) -> str:
    """Return the task through which the run learnt raw text."""
    name = next((name for name, task in run.model.tasks.items() if task.raw_text), None)
    if name is None:
        raw = ", ".join(name for name, task in TASKS.items() if task.raw_text)
        known = ", ".join(run.model.tasks)
        raise ConditionError(f"--text: the run did not learn from raw text (task {raw}). Its tasks: {known}.")
    return name


def _conditions(run: Run, name: str, given: Mapping[str, str]) -> dict[Condition, str]:
    """Corpora of tasks by condition, of translations both ways."""
    found: dict[Condition, str] = {}
    for key, corpus in given.items():
        task, _, other = key.partition("/")
        if task not in run.model.tasks:
            raise ConditionError(f"task {task!r}: the run has none. It has {', '.join(run.model.tasks)}.")
        if run.model.tasks[task].bilingual != bool(other):
            raise ConditionError(
                f"{key}={corpus}: write pos=FILE, or of translations mt/eng=FILE, with the other language."
            )
        ways = [(other, name), (name, other)] if other else [(name,)]
        found |= {Condition(task, *way): corpus for way in ways}
    return found


def unknown_share(run: Run, text: str | None) -> float:
    """Share of a text's pieces that the tokenizer does not know: a script that it was not made for."""
    if text is None:
        return 0.0
    tokenizer = [piece for ids in run.predictor.tokenizer.text(list(islice(_lines(text), 1000))) for piece in ids]
    return run.predictor.tokenizer.unknown_rate(tokenizer)


def _lines(text: str | None) -> Iterator[str]:
    if text is None:
        raise PolyloomError("--add-tokens: new pieces are learnt from raw text. Give --text FILE.")
    return (record.text for record in resolve(text).records("text") if isinstance(record, Text))


def _split(given: Mapping[Condition, str]) -> tuple[Corpora, Corpora]:
    """What is learnt from, and what is held out, by condition."""
    if not given:
        raise PolyloomError("add: nothing to learn from. Give --text FILE, or --examples.")
    learn: dict[Condition, Sequence[Corpus]] = {}
    held: dict[Condition, Sequence[Corpus]] = {}
    for condition, corpus in given.items():
        count = sum(1 for _ in TASKS[condition.task].records(resolve(corpus), condition))
        out = max(1, min(MOST, round(HELD_OUT * count)))
        if count < 2:
            raise PolyloomError(f"{corpus}: {count} sentences; at least two are needed, one of them to check.")
        learn[condition] = [part(resolve(corpus), 0, count - out)]
        held[condition] = [part(resolve(corpus), count - out, count)]
    return learn, held


def part(corpus: Corpus, begin: int, end: int) -> Corpus:
    """Some sentences of a corpus, which may be a part itself."""
    whole, first = re.sub(r"\[\d*:\d*\]$", "", corpus.name), corpus.start
    return replace(corpus, name=f"{whole}[{first + begin}:{first + end}]", start=first + begin, stop=first + end)


def _new(into: Path) -> RunDir:
    folder = RunDir(into)
    if folder.steps():
        raise TrainingError(f"{into}: there is a run already. Choose another folder.")
    return folder


def _fit(
    run: Run,
    plan: StagePlan,
    held: Corpora,
    tested: Mapping[Condition, str],
    on_event: OnEvent,
    *,
    first_added_token: int | None = None,
) -> tuple[dict[str, float], dict[str, float], tuple[float, float], float]:
    """Scores before and after, of tests and of what is held out, and how long it took."""
    kind = plan.stage.trains[0].removeprefix("rows.")
    corpora = {condition: [resolve(corpus)] for condition, corpus in tested.items()}

    def heard(step: Step, score: float | None) -> None:
        on_event({"event": "step", "step": step.number, "of": plan.steps, "loss": step.loss, "score": score})

    before, started = _scores(run, corpora), time.perf_counter()
    held_out = fit_added_row(
        run.model, plan, tokenizer=run.predictor.tokenizer, kind=kind, first_added_token=first_added_token,
        score=lambda: selection_score(_held_scores(run, held)), progress=heard,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    return before, _scores(run, corpora), held_out, seconds


def _held_scores(run: Run, held: Corpora) -> list[Score]:
    return [score_corpora(run.predictor, condition, corpora, losses=True)[0] for condition, corpora in held.items()]


def _scores(run: Run, tested: Corpora) -> dict[str, float]:
    return {str(c): score_corpora(run.predictor, c, corpora)[0].value for c, corpora in tested.items()}


def _datasets(run: Run, learn: Corpora) -> dict[Condition, EncodedDataset]:
    tokenizer = run.predictor.tokenizer
    return {condition: prepare_dataset(condition, corpora, tokenizer=tokenizer) for condition, corpora in learn.items()}


def _plan(
    run: Run, learn: Corpora, settings: AddLanguageConfig, *, kind: str = "language", head: str = ""
) -> StagePlan:
    """One stage in which the newest row of a kind learns, and a head if it is new too."""
    train = TrainConfig(
        steps=settings.steps, rows_per_batch=settings.rows_per_batch, max_length=run.recipe.train.max_length,
        mlm_candidates=run.recipe.train.mlm_candidates, dropout=False, evaluate_every=max(1, settings.steps // 8),
        seed=settings.seed,
    )  # fmt: skip
    more = [f"heads.{head}"] if head else ["backbone.tokens"] if settings.add_tokens else []
    stage = Stage("grow", (f"rows.{kind}", *more))
    labels = {name: task.labels for name, task in run.model.tasks.items()}
    chosen = training_datasets(_datasets(run, learn), method=run.model.method, labels=labels, stage=stage)
    optim = OptimConfig(lr=settings.lr or 1e-2, warmup_steps=min(10, settings.steps // 10))
    return StagePlan(stage, optim, train, MixtureConfig(datasets_per_batch=len(chosen)), chosen)


def _write(run: Run, folder: RunDir, learn: Corpora, **changed: Any) -> None:
    """A run with the grown model as its only checkpoint."""
    learnt = {str(condition): tuple(corpus.name for corpus in corpora) for condition, corpora in learn.items()}
    data = replace(run.recipe.data, train={**run.recipe.data.train, **learnt})
    folder.prepare()
    folder.write(RECIPE, dump_yaml(resolved(replace(run.recipe, data=data, **changed))))
    folder.note({"event": "grown", "from": str(run.path), "checkpoint": run.checkpoint.name, "learnt": sorted(learnt)})
    manifest = describe_model(run.model) | {"backbone": backbone_identity(run.model)}
    manifest |= {"trained_on": sorted({*run.trained_on, *learnt}), "tokenizer": run.predictor.tokenizer.fingerprint}
    state = {"stage": 0, "step": 0, "total": 1, "best_step": None, "best_score": None, "seconds": 0.0, "num_tokens": 0}
    write_checkpoint(folder.checkpoint(1), dict(trained_parameters(run.model)), manifest, training=({}, state))
