"""Scores that several processes store at once are all kept."""

import multiprocessing
import os
import signal
import time
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np

from polyloom.conditions import Condition
from polyloom.evaluate.matrix import Matrix, Result
from polyloom.evaluate.saved import read_stored, store
from polyloom.metrics.score import ACCURACY, Score
from polyloom.rundir import RunDir
from tests.reliability.forks import ended, fork

LANGUAGES = [f"l{number}" for number in range(8)]
ROUNDS = 5


def scores(language: str) -> Matrix:
    score = Score(ACCURACY, np.ones((300, 2), dtype=np.int64), f"corpus:{language}")
    return Matrix({Condition("pos", language): Result((score,), zero_shot=False)}, run={"checkpoint": "step-1"})


def store_all_rounds(folder: Path, language: str, together: Barrier) -> None:
    for number in range(ROUNDS):
        together.wait()  # all processes store at once
        store(scores(language), folder / str(number), "test")


def test_eight_processes_that_store_at_once_keep_all_eight(tmp_path):
    together = multiprocessing.get_context("fork").Barrier(len(LANGUAGES))
    children = [fork(partial(store_all_rounds, tmp_path, language, together)) for language in LANGUAGES]
    assert [ended(child) for child in children] == [0] * len(LANGUAGES)
    for number in range(ROUNDS):
        kept = read_stored(tmp_path / str(number), "test", checkpoint="step-1")
        assert {condition.source for condition in kept.results} == set(LANGUAGES)


def test_a_killed_process_keeps_nobody_waiting(tmp_path):
    directory = RunDir(tmp_path)

    def hold() -> None:
        with directory.updating(directory.evaluation("test")):
            (tmp_path / "held").touch()
            signal.pause()

    child = fork(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    ended(child)
    store(scores("en"), tmp_path, "test")
    assert read_stored(tmp_path, "test", checkpoint="step-1").results
