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
from polyloom.config import TaskConfig, resolved
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.cells import Cell
from polyloom.data.mixture import MixtureConfig
from polyloom.data.records import Text
from polyloom.data.typology import Typology, read_typology
from polyloom.errors import ConditionError, PolyloomError, TrainingError, suggest
from polyloom.evaluate.answers import score_corpora
from polyloom.extend import extend
from polyloom.metrics.score import Score, goodness
from polyloom.nn.growing import Bank
from polyloom.runs import Run, give_typology
from polyloom.settings import dump_yaml
from polyloom.tasks import TASKS
from polyloom.tasks.translation import Translation
from polyloom.train.folder import RECIPE, RunFolder
from polyloom.train.grow import fit_newest
from polyloom.train.loop import StagePlan, Step
from polyloom.train.prepare import label_sets, prepare_cell, training_cells
from polyloom.train.settings import OptimConfig, TrainConfig
from polyloom.types import Condition, Stage

Corpora = Mapping[Condition, Sequence[Corpus]]
Tell = Callable[[Mapping[str, Any]], None]
Begin = Literal["likeliest", "mean", "typology", "family", "fresh"]
HELD_OUT = 0.1  # of what is given, to see whether it helps; at most so many sentences:
MOST = 200
BACKBONE = "backbone"  # of a run with new pieces, in its folder


@dataclass(frozen=True)
class Data:
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
class Settings:
    """How a new row is learnt.

    Attributes:
        begin: As the ``likeliest`` donor, the ``mean`` of all languages, the mean of the three nearest by ``typology``,
            the mean of its ``family``, or ``fresh``.
        like: Languages to begin as, or their mean, whatever `begin` says.
        steps: Optimizer steps.
        lr: Learning rate; by default 1e-2 for an embedding, the run's own for stored adapters.
        pieces: How many new pieces letters get that the tokenizer does not know; they learn too.
        rows_per_batch: Sentences of a step.
        seed: Of their order and masks.
    """

    begin: Begin = "likeliest"
    like: tuple[str, ...] = ()
    steps: int = 200
    lr: float | None = None
    pieces: int = 0
    rows_per_batch: int = 32
    seed: int = 0


@dataclass(frozen=True)
class Growth:
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
        pieces: How many pieces are new.
    """

    donors: Sequence[tuple[str, float]]
    like: Sequence[str]
    before: Mapping[str, float]
    after: Mapping[str, float]
    held_out: tuple[float, float]
    seconds: float
    unknown: float
    pieces: int = 0


def add_language(  # noqa: PLR0913 - each has a meaning of its own
    run: Run,
    name: str,
    into: Path,
    *,
    data: Data,
    settings: Settings | None = None,
    typology: Typology | None = None,
    tell: Tell = lambda _: None,
) -> Growth:
    """Fit what a method has of its own for a language, for a new one; write a run that knows it too."""
    settings = settings or Settings()
    if name in run.model.method.languages:
        raise ConditionError(f"language {name!r} is there already.")
    given = {**({"mlm": data.text} if data.text else {}), **data.examples}
    learn, held = _split(_conditions(run, name, given))
    tested = _conditions(run, name, data.test)
    folder, unknown, old = _new(into), unknown_share(run, data.text), run.answering.pieces.vocab_size
    if settings.pieces:
        run = extend(run, _lines(data.text), settings.pieces, into / BACKBONE)
    model = run.model
    torch.manual_seed(settings.seed)
    model.method.add_language(name)
    give_typology(model, run.recipe, [name], typology)
    if not (model.group("rows.language") and all(map(model.method.serves, learn))):
        raise ConditionError(
            f"method {model.method.config.name}: {model.method.summary}. A language has nothing of its own in it that "
            "could be learnt; in hyperx, hyper-adapters, madx and lang-adapters it has."
        )
    donors = suggest_donors(run, name, held)
    if settings.begin in ("typology", "family"):
        typology = typology or read_typology(run.recipe.data.root)
    like = settings.like or begin_as(name, donors, settings.begin, typology)
    _begin(run, name, like, token=next(iter((*like, *(donor for donor, _ in donors))), name))
    stored = any(isinstance(table, Bank) for table in model.method.growing("language"))
    plan = _plan(run, learn, replace(settings, lr=settings.lr or (run.recipe.optim.lr if stored else 1e-2)))
    fitted = _fit(run, plan, held, tested, tell, pieces_from=old if settings.pieces else None)
    if settings.pieces:
        model.backbone.model.save_pretrained(into / BACKBONE)
    _write(run, folder, learn, languages=(*run.recipe.languages, name), tasks=_tasks(run))
    return Growth(donors, like, *fitted, unknown, run.answering.pieces.vocab_size - old)


def add_task(  # noqa: PLR0913 - each has a meaning of its own
    run: Run,
    name: str,
    into: Path,
    *,
    examples: Mapping[str, str],
    test: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    tell: Tell = lambda _: None,
) -> Growth:
    """Fit a new task's row and head to examples in some languages; write a run that knows it too."""
    settings, model = settings or Settings(), run.model
    if name not in TASKS or name in ("mlm", "mt"):
        raise ConditionError(
            f"task {name!r}: none that can be added. {suggest(name, [t for t in TASKS if t not in ('mlm', 'mt')])}"
        )
    if name in model.method.tasks:
        raise ConditionError(f"task {name!r} is there already.")
    learn, held = _split({Condition(name, language): corpus for language, corpus in examples.items()})
    cells = _cells(run, learn)
    folder = _new(into)
    like = settings.like[0] if settings.like else None
    model.add_task(name, label_sets(cells)[name], like=like)
    plan = _plan(run, learn, replace(settings, lr=settings.lr or 3e-3), kind="task", head=name)
    tested = {Condition(name, language): corpus for language, corpus in (test or {}).items()}
    fitted = _fit(run, plan, held, tested, tell)
    tasks = {**run.recipe.tasks, name: TaskConfig()}
    _write(run, folder, learn, tasks=tasks)
    return Growth((), settings.like[:1], *fitted, 0.0)


def begin_as(
    name: str, donors: Sequence[tuple[str, float]], begin: Begin, typology: Typology | None
) -> tuple[str, ...]:
    """The languages whose mean a new one begins as; none for a fresh row."""
    known = tuple(donor for donor, _ in donors)
    if begin in ("typology", "family"):
        if typology is None:
            raise PolyloomError(f"--begin {begin}: no tables of languages. Name their folder: --typology DIR.")
        apart = {donor: typology.distance(name, donor) for donor in known}
        near = sorted((far, donor) for donor, far in apart.items() if far is not None)
        kin = [donor for donor in known if typology.same_family(name, donor)]
        found = tuple(kin) if begin == "family" else tuple(donor for _, donor in near[:3])
        if not found:
            raise PolyloomError(f"--begin {begin}: the tables tell nothing about {name} and the run's languages.")
        return found
    return {"likeliest": known[:1], "mean": known, "fresh": ()}[begin]


def suggest_donors(run: Run, name: str, held: Corpora) -> list[tuple[str, float]]:
    """The languages whose weights serve the data of the newest one best, by the mean of what selects checkpoints."""
    found, others = [], {language for condition in held for language in condition.languages}
    for donor in set(run.model.method.languages) - others:
        asked = [Condition(c.task, *(donor if x == name else x for x in c.languages)) for c in held]
        if all(run.model.method.serves(condition) for condition in asked):
            _begin(run, name, [donor], token=donor)
            found.append((donor, goodness(_held_scores(run, held))))
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def _begin(run: Run, name: str, like: Sequence[str], *, token: str) -> None:
    """Let the newest language begin as others, in translation also with the token of one, if its own says nothing.

    Of a backbone from scratch it says nothing even if the vocabulary has it: nobody has trained its embedding.
    """
    run.model.method.begin_language(like[0] if len(like) == 1 else like or None)
    task, known = run.model.tasks.get("mt"), run.recipe.backbone.name and run.answering.pieces.language_id(name)
    if isinstance(task, Translation) and known is None:
        task.token_of = {**task.token_of, name: task.token_of.get(token, token)}


def _tasks(run: Run) -> dict[str, TaskConfig]:
    """Tasks as the recipe has them, with the tokens of languages that were added."""
    tasks, task = dict(run.recipe.tasks), run.model.tasks.get("mt")
    if isinstance(task, Translation):
        tasks["mt"] = replace(tasks["mt"], token_of=dict(task.token_of))
    return tasks


def _conditions(run: Run, name: str, given: Mapping[str, str]) -> dict[Condition, str]:
    """Corpora of tasks by condition, of translations both ways."""
    found: dict[Condition, str] = {}
    for key, corpus in given.items():
        task, _, other = key.partition("/")
        if task not in run.model.tasks:
            hint = " Raw text is learnt from where the run did (mlm)." if task == "mlm" else ""
            raise ConditionError(f"task {task!r}: the run has none.{hint} It has {', '.join(run.model.tasks)}.")
        if run.model.tasks[task].generates != bool(other):
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
    pieces = [piece for ids in run.answering.pieces.text(list(islice(_lines(text), 1000))) for piece in ids]
    return run.answering.pieces.unknown_rate(pieces)


def _lines(text: str | None) -> Iterator[str]:
    if text is None:
        raise PolyloomError("--pieces: new pieces are learnt from raw text. Give --text FILE.")
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


def _new(into: Path) -> RunFolder:
    folder = RunFolder(into)
    if folder.steps():
        raise TrainingError(f"{into}: there is a run already. Choose another folder.")
    return folder


def _fit(
    run: Run,
    plan: StagePlan,
    held: Corpora,
    tested: Mapping[Condition, str],
    tell: Tell,
    *,
    pieces_from: int | None = None,
) -> tuple[dict[str, float], dict[str, float], tuple[float, float], float]:
    """Scores before and after, of tests and of what is held out, and how long it took."""
    kind = plan.stage.trains[0].removeprefix("rows.")
    corpora = {condition: [resolve(corpus)] for condition, corpus in tested.items()}

    def heard(step: Step, score: float | None) -> None:
        tell({"event": "step", "step": step.number, "of": plan.steps, "loss": step.loss, "score": score})

    before, started = _scores(run, corpora), time.perf_counter()
    held_out = fit_newest(
        run.model, plan, pieces=run.answering.pieces, kind=kind, pieces_from=pieces_from,
        score=lambda: goodness(_held_scores(run, held)), tell=heard,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    return before, _scores(run, corpora), held_out, seconds


def _held_scores(run: Run, held: Corpora) -> list[Score]:
    return [score_corpora(run.answering, condition, corpora, losses=True)[0] for condition, corpora in held.items()]


def _scores(run: Run, tested: Corpora) -> dict[str, float]:
    return {str(c): score_corpora(run.answering, c, corpora)[0].value for c, corpora in tested.items()}


def _cells(run: Run, learn: Corpora) -> dict[Condition, Cell]:
    pieces = run.answering.pieces
    return {condition: prepare_cell(condition, corpora, pieces=pieces) for condition, corpora in learn.items()}


def _plan(run: Run, learn: Corpora, settings: Settings, *, kind: str = "language", head: str = "") -> StagePlan:
    """One stage in which the newest row of a kind learns, and a head if it is new too."""
    train = TrainConfig(
        steps=settings.steps, rows_per_batch=settings.rows_per_batch, max_length=run.recipe.train.max_length,
        vocabulary=run.recipe.train.vocabulary, dropout=False, evaluate_every=max(1, settings.steps // 8),
        seed=settings.seed,
    )  # fmt: skip
    more = [f"heads.{head}"] if head else ["backbone.pieces"] if settings.pieces else []
    stage = Stage("grow", (f"rows.{kind}", *more))
    labels = {name: task.labels for name, task in run.model.tasks.items()}
    chosen = training_cells(_cells(run, learn), method=run.model.method, labels=labels, stage=stage)
    optim = OptimConfig(lr=settings.lr or 1e-2, warmup_steps=min(10, settings.steps // 10))
    return StagePlan(stage, optim, train, MixtureConfig(cells_per_batch=len(chosen)), chosen)


def _write(run: Run, folder: RunFolder, learn: Corpora, **changed: Any) -> None:
    """A run with the grown model as its only checkpoint."""
    learnt = {str(condition): tuple(corpus.name for corpus in corpora) for condition, corpora in learn.items()}
    data = replace(run.recipe.data, train={**run.recipe.data.train, **learnt})
    folder.prepare()
    folder.write(RECIPE, dump_yaml(resolved(replace(run.recipe, data=data, **changed))))
    folder.note({"event": "grown", "from": str(run.path), "checkpoint": run.checkpoint.name, "learnt": sorted(learnt)})
    manifest = describe_model(run.model) | {"backbone": backbone_identity(run.model)}
    manifest |= {"trained_on": sorted({*run.trained_on, *learnt}), "tokenizer": run.answering.pieces.fingerprint}
    state = {"stage": 0, "step": 0, "total": 1, "best_step": None, "best_score": None, "seconds": 0.0, "num_tokens": 0}
    write_checkpoint(folder.checkpoint(1), dict(trained_parameters(run.model)), manifest, training=({}, state))
