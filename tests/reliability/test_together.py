"""Processes of a run share the work around the steps: each corpus is read once, each condition scored once."""

import hashlib
import os
import signal
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polyloom.config import load_recipe
from polyloom.data.catalog import Corpus
from polyloom.errors import DataError, TrainingError
from polyloom.evaluate.scoring import score_corpora
from polyloom.io import hashes
from polyloom.rundir import RunDir
from polyloom.training import distributed
from polyloom.training.distributed import ProcessGroup
from polyloom.training.prepare import prepare_dataset
from polyloom.workflows import train as workflow
from polyloom.workflows.train import prepare_training, train_recipe
from tests.reliability.forks import read_log, together
from tests.reliability.tiny import tiny_loop, tiny_setup
from tests.tiny_run import tiny_recipe


@pytest.fixture(scope="module")
def recipe(world):
    """Two tasks in two languages: four datasets for training, and four for validation."""
    settings = {"steps": 4, "rows_per_batch": 8, "evaluate_every": 2}
    recipe = load_recipe(tiny_recipe(world, tasks=("pos", "ner"), train=settings))
    prepare_training(recipe)  # imports what it takes, once for all children
    return recipe


@pytest.fixture(autouse=True)
def _attentive(monkeypatch):
    """Processes that wait look at one another more often than in a long run."""
    monkeypatch.setattr(distributed, "_POLL", 0.05)


@pytest.fixture
def clock(monkeypatch):
    """The time of processes that wait: it passes only where they sleep. Beats are sent by the real one, and often."""
    made = Clock()
    monkeypatch.setattr(distributed, "time", made)
    monkeypatch.setattr(distributed, "_BEAT", 0.01)
    return made


class Clock:
    """Most of the time limit passes with every sleep."""

    def __init__(self) -> None:
        self.limits = 0.0

    def monotonic(self) -> float:
        return self.limits * distributed._TIMEOUT.total_seconds()

    def sleep(self, _: float) -> None:
        time.sleep(0.05)
        self.limits += 0.9


def message_of(work):
    """Return the message of the error that some work ends with."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_waiting_takes_as_long_as_the_slowest_process(clock, tmp_path):
    """The slow process stays in its block until the other one has waited for more than four time limits."""

    def work(process_group):
        store = distributed._store()

        def sleep(_):
            """Sleep until the slow process has beaten; when that was done often enough, let it go on."""
            before = store.add(distributed._BEATS, 0)
            if clock.limits > 4:
                store.set(f"process {process_group.rank} has waited", "")
                time.sleep(0.01)
                return
            while store.add(distributed._BEATS, 0) == before and not failed():
                time.sleep(0.001)
            clock.limits += 0.9

        def failed():
            return store.check([distributed._ERROR])

        def take_turns():
            for slow in (1, 0):
                with process_group.together():
                    waited = [f"process {1 - slow} has waited"]
                    while process_group.rank == slow and not (store.check(waited) or failed()):
                        time.sleep(0.001)

        clock.sleep = sleep
        return message_of(take_turns)

    assert together(work, tmp_path, size=2) == ["no error"] * 2


def test_a_killed_process_is_missed(clock, tmp_path):
    def work(process_group):
        def wait():
            with process_group.together():
                if process_group.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

        (tmp_path / "message").write_text(message_of(wait))

    with pytest.raises(AssertionError, match=r"ended with \[0, -9\]"):
        together(work, tmp_path, size=2)
    expected = "TrainingError: 1 of 2 processes have not been heard of for 0:10:00. Were they killed?"
    assert (tmp_path / "message").read_text() == expected


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_process_is_one_in_all(tmp_path, failing):
    def work(process_group):
        def fail():
            with process_group.together(), process_group.together():
                if process_group.rank == failing:
                    raise DataError("a.txt", 3, "not UTF-8.")

        return message_of(fail)

    messages = together(work, tmp_path, size=2)
    assert messages[failing] == "DataError: a.txt:3: not UTF-8."
    other = f"TrainingError: Another process ended with an error. process {failing}: a.txt:3: not UTF-8."
    assert messages[1 - failing] == other


def test_items_are_shared_and_every_process_has_all_results(tmp_path):
    def work(process_group):
        own: list[int] = []

        def double(item):
            if not own:
                process_group.barrier()  # nobody takes a second one before all have one
            own.append(item)
            return {"double": 2 * item, "third": item / 3}

        found = [process_group.share(list(range(7)), double)]
        found += [process_group.share([], double), process_group.share([5], lambda item: item)]
        return found, own

    (first, mine), (second, yours) = together(work, tmp_path, size=2)
    assert first == second == [[{"double": 2 * n, "third": n / 3} for n in range(7)], [], [5]]
    assert mine
    assert yours
    assert sorted(mine + yours) == list(range(7))


# -- preparing ---------------------------------------------------------------------------------------------------------


def counted(monkeypatch):
    """Count the files that are hashed, and the corpora that are read.

    Both take a moment, so that processes that do not wait for each other do the same work. No test needs them to.
    """
    hashed, read = Counter[str](), Counter[str]()
    digest, numbered = hashlib.file_digest, Corpus.numbered

    def count_hashed(file, name):
        hashed[file.name] += 1
        time.sleep(0.01)
        return digest(file, name)

    def count_read(corpus, *rest, **more):
        read[corpus.name] += 1
        time.sleep(0.05)
        return numbered(corpus, *rest, **more)

    monkeypatch.setattr(hashlib, "file_digest", count_hashed)
    monkeypatch.setattr(Corpus, "numbered", count_read)
    return hashed, read


def test_at_the_first_start_each_corpus_is_hashed_checked_and_encoded_once(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "SMALL", 0)
    monkeypatch.setattr(hashes, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10))

    def work(process_group):
        with pytest.MonkeyPatch.context() as patched:
            hashed, read = counted(patched)
            process_group.barrier()
            setup = prepare_training(recipe, process_group=process_group)
        lengths = {str(condition): len(dataset) for condition, dataset in setup.datasets.items()}
        return dict(hashed), dict(read), lengths

    (hashed, read, lengths), (more_hashed, more_read, same_lengths) = together(work, tmp_path, size=2)
    training = [corpus for corpora in recipe.data.train.values() for corpus in corpora]
    others = [c for part in (recipe.data.validation, recipe.data.test) for corpora in part.values() for c in corpora]
    assert Counter(read) + Counter(more_read) == Counter(2 * training + others), "to check, and to encode"
    assert Counter(hashed) + Counter(more_hashed) == Counter(training + others)
    assert lengths == same_lengths == dict.fromkeys(recipe.data.train, 200)


def test_one_process_of_a_host_checks_the_corpora(recipe, tmp_path, monkeypatch):
    def work(process_group):
        with pytest.MonkeyPatch.context() as patched:
            checked = []
            patched.setenv("LOCAL_RANK", str(process_group.rank))
            patched.setattr(workflow, "check_recipe", lambda *_, **__: checked.append(True))
            workflow.prepare_recipe(recipe, process_group=process_group)
        return len(checked)

    assert together(work, tmp_path, size=2) == [1, 0]


def test_an_error_in_preparation_ends_all_processes(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))

    def work(process_group):
        def fail(condition, *rest, **more):
            if process_group.rank == 1 and str(condition) == "ner/aa":
                raise OSError(28, "No space left on device")
            return prepare_dataset(condition, *rest, **more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(workflow, "prepare_dataset", fail)
            return message_of(lambda: train_recipe(recipe, tmp_path / "run", process_group=process_group))

    messages = together(work, tmp_path, size=2)
    assert all("No space left on device" in message for message in messages)
    assert not RunDir(tmp_path / "run").exists()


# -- validation --------------------------------------------------------------------------------------------------------


def train_with(recipe, run, process_group, *, shares):
    """Train, and validate in shares or all in every process; compare the scores with those of one process."""
    own: list[str] = []
    differing: list[dict[str, Any]] = []
    validate = workflow.validation_scores

    def note(predictor, condition, *rest, **more):
        if shares and not own:
            process_group.barrier()  # nobody takes a second condition before all have one
        own.append(str(condition))
        return score_corpora(predictor, condition, *rest, **more)

    def compare(model, plan, *, process_group, **parts):
        one = ProcessGroup()
        scores = validate(model, plan, process_group=process_group if shares else one, **parts)
        alone = score_all(model, plan, process_group=one, **parts)
        expected = {str(c): (s.to_dict(), s.statistics_NP.dtype.str) for c, s in alone.items()}
        found = {str(c): (s.to_dict(), s.statistics_NP.dtype.str) for c, s in scores.items()}
        differing.extend([] if list(expected.items()) == list(found.items()) else [expected, found])
        return scores

    def score_all(model, plan, **parts):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(workflow, "score_corpora", score_corpora)
            return validate(model, plan, **parts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(workflow, "score_corpora", note)
        patched.setattr(workflow, "validation_scores", compare)
        best = train_recipe(recipe, run, process_group=process_group)
    return {"scored": own, "differing": differing, "best": best.name}


def test_scores_and_the_selected_checkpoint_are_those_of_one_process(recipe, tmp_path):
    def work(process_group):
        return [
            train_with(recipe, tmp_path / name, process_group, shares=name == "shares") for name in ("shares", "whole")
        ]

    (shares, whole), (more_shares, same_whole) = together(work, tmp_path, size=2)
    assert shares["differing"] == more_shares["differing"] == []
    logs = [read_log(tmp_path / name) for name in ("shares", "whole")]
    keys = ("total", "scores", "metrics", "selection_score", "best")
    validations = [[[e[key] for key in keys] for e in log if e["event"] == "validation"] for log in logs]
    assert validations[0] == validations[1]
    assert len(validations[0]) == 2
    assert shares["best"] == more_shares["best"] == whole["best"] == same_whole["best"]
    conditions = sorted(recipe.data.validation)
    assert len(conditions) == 4
    assert sorted(shares["scored"] + more_shares["scored"]) == sorted(2 * conditions), "each once per validation"
    assert shares["scored"]
    assert more_shares["scored"]
    assert sorted(whole["scored"]) == sorted(2 * conditions)


def test_an_error_in_validation_ends_all_processes(recipe, tmp_path):
    def work(process_group):
        def fail(predictor, condition, *rest, **more):
            if str(condition) == "ner/bb":
                raise MemoryError("out of memory")
            return score_corpora(predictor, condition, *rest, **more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(workflow, "score_corpora", fail)
            return message_of(lambda: train_recipe(recipe, tmp_path / "run", process_group=process_group))

    messages = sorted(together(work, tmp_path, size=2))
    assert messages[0] == "MemoryError: out of memory"
    assert messages[1].startswith(f"{TrainingError.__name__}: Another process ended with an error. process ")
    assert messages[1].endswith("MemoryError('out of memory')")


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["method.language_adapters.up", "heads.pos.classifier.weight"])
def test_a_process_that_begins_with_other_weights_is_noticed(world, tmp_path, strategy, name):
    """DDP leaves banks as they are; one bit of one row is enough."""
    setup = tiny_setup(world, "madx", train={"strategy": strategy})
    stage = next(i for i, plan in enumerate(setup.plans) if trains(setup, plan, name))

    def work(process_group):
        if process_group.rank == 1:
            with torch.no_grad():
                bits = setup.model.get_parameter(name).view(torch.int32)
                bits[-1] ^= torch.zeros_like(bits[-1]).index_fill_(-1, torch.tensor([0]), 1)
        return message_of(lambda: tiny_loop(setup, stage, process_group=process_group))

    first, second = together(work, tmp_path, size=2)
    assert first == second
    assert first.startswith("TrainingError: Process 1 begins the stage with other weights than process 0: 1 of ")
    assert f"such as {name}." in first


def trains(setup, plan, name):
    setup.model.set_stage(plan.stage)
    return setup.model.get_parameter(name).requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_fingerprints_differ_with_any_bit_and_any_order(dtype):
    torch.manual_seed(0)
    tensor = torch.randn(3, (1 << 19) + 7, dtype=dtype)  # more than one chunk
    own, flat = distributed._fingerprint(tensor), tensor.view(-1)
    assert distributed._fingerprint(tensor.clone()) == own
    for place in (0, 1 << 20, len(flat) - 1):
        changed = flat.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(9.0, dtype=dtype))
        assert distributed._fingerprint(changed) != own
    assert distributed._fingerprint(tensor.flip(0)) != own
    assert distributed._fingerprint(tensor[:0]) == 0
