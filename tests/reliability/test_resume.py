"""Going on after an interruption: the same examples, the same numbers, at the same cost wherever one stood."""

import os
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from polyloom.checkpoint import read_tensors, read_training, write_checkpoint
from polyloom.errors import CheckpointError, TrainingError
from polyloom.rundir import RunDir
from polyloom.tensor_files import join
from polyloom.training.events import StepTaken
from tests.reliability.forks import alone, ended, fork, read_log, together
from tests.reliability.tiny import changed, record, rejoined, saved, tiny_fit, tiny_loop, tiny_setup, weights
from tests.shared import nightly

DROPOUT = {"dropout": True, "steps": 200, "save_every": 7}


def whole_run(setup, run, *, process_group=None):
    """Train to the end; everything that its last checkpoint holds."""
    tiny_fit(setup, run, process_group=process_group).run()
    last = RunDir(run).checkpoint(RunDir(run).steps()[-1])
    optimizer, state = read_training(last)
    return {"weights": read_tensors(last), "optimizer": optimizer, "steps": state["total"], "all": weights(setup)}


def left_at(setup, run, step, *, process_group=None):
    """Train, and be gone in the middle of a step's log entry."""

    def on_event(event):
        if isinstance(event, StepTaken) and event.total == step:
            os._exit(0)

    tiny_fit(setup, run, process_group=process_group, on_event=on_event).run()


@pytest.mark.parametrize(
    ("method", "steps", "cuts", "resumed"),
    [
        *nightly(("hyperx", 200, (5, 39, 170), [35, 168])),
        ("hyperx", 40, (5, 39), [35]),
        ("madx", 40, (5, 39, 70), [35, 68]),  # the last one in the second stage
        ("psf", 40, (5, 30), [28]),
    ],
)
def test_a_run_interrupted_within_a_pass_ends_with_the_same_bits(world, tmp_path, method, steps, cuts, resumed):
    setup = tiny_setup(world, method, train=DROPOUT | {"steps": steps})
    expected = alone(lambda: whole_run(setup, tmp_path / "whole"), tmp_path / "one")
    for step in cuts:  # before the first checkpoint, and between two
        assert ended(fork(partial(left_at, setup, tmp_path / "broken", step))) == 0
    found = alone(lambda: whole_run(setup, tmp_path / "broken"), tmp_path / "other")
    assert found["steps"] == expected["steps"]
    for part in ("weights", "optimizer", "all"):
        assert not changed(expected[part], found[part])
    assert [e["total"] for e in read_log(tmp_path / "broken") if e["event"] == "resumed"][: len(resumed)] == resumed


def test_the_same_holds_for_two_processes(world, tmp_path):
    setup = tiny_setup(world, train=DROPOUT | {"steps": 60})
    expected = together(
        lambda process_group: whole_run(setup, tmp_path / "whole", process_group=process_group),
        tmp_path / "one",
        size=2,
    )
    with pytest.raises(AssertionError, match="children ended"):
        together(
            lambda process_group: left_at(setup, tmp_path / "broken", 39, process_group=process_group),
            tmp_path / "two",
            size=2,
        )
    found = together(
        lambda process_group: whole_run(setup, tmp_path / "broken", process_group=process_group),
        tmp_path / "three",
        size=2,
    )
    for part in ("weights", "optimizer", "all"):
        assert not changed(expected[0][part], found[0][part])
        assert not changed(found[0][part], found[1][part])


def test_the_stream_of_examples_goes_on_with_another_number_of_processes(world, tmp_path):
    setup = tiny_setup(world, train={"steps": 30, "rows_per_batch": 12, "grad_accum_steps": 2})
    stream = []

    def work(process_group, done):
        loop, found = tiny_loop(setup, process_group=process_group), []
        seen, steps = record(loop), loop.steps(done)
        for _ in range(10):
            next(steps)
            found.append(rejoined(seen))
            seen.clear()
        return found

    for done, size in ((0, 1), (10, 2), (20, 1)):
        ranks = together(partial(work, done=done), tmp_path, size=size)
        stream += [sorted(pick for picks in step for pick in picks) for step in zip(*ranks, strict=True)]
    mixture = tiny_loop(setup).mixture
    assert stream == [rejoined([mixture.batch(step)]) for step in range(30)]


def test_resuming_costs_the_same_at_every_step(world):
    setup = tiny_setup(world)
    tiny_loop(setup, steps=3)  # whatever is made once is made now

    def calls(done):
        count, asked = 0, []

        def profile(_frame, event, _argument):
            nonlocal count
            count += event in ("call", "c_call")

        def asked_for(step):
            asked.append(step)
            return batch(step)

        before = sys.getprofile()
        sys.setprofile(profile)
        loop = tiny_loop(setup, steps=done + 2)
        batch = loop.mixture.batch
        loop.mixture.batch = asked_for  # type: ignore[method-assign]
        list(loop.steps(done))
        sys.setprofile(before)
        assert asked == [done, done + 1], "no batch is made but those of the steps taken"
        return count

    calls(10)
    few, many = calls(10), calls(10**9)
    assert many < 1.2 * few


def test_a_damaged_checkpoint_is_passed_over_whatever_part_of_it_is_damaged(world, tmp_path):
    setup = tiny_setup(world, train={"steps": 8})
    expected = alone(lambda: whole_run(setup, tmp_path / "run"), tmp_path / "one")
    folder = RunDir(tmp_path / "run")
    for name in ("weights.safetensors", "training.safetensors", "polyloom.json"):
        file = folder.checkpoint(8) / name
        content = bytearray(file.read_bytes())
        content[-9] ^= 1 if name.endswith("tensors") else 0x80
        file.write_bytes(content)
        assert saved(tmp_path / "run") == 6, name
        found = alone(lambda: whole_run(setup, tmp_path / "run"), tmp_path / "one")
        for part in ("weights", "optimizer", "all"):
            assert not changed(expected[part], found[part])
        skipped = [event for event in read_log(tmp_path / "run") if event["event"] == "checkpoint-skipped"][-1]
        assert skipped["checkpoint"] == "step-00000008"
        assert str(file) in skipped["reason"], "it says what was skipped and why"
    for step in folder.steps():
        (folder.checkpoint(step) / "polyloom.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        folder.latest()


def test_a_run_does_not_go_on_with_another_backbone(world, tmp_path):
    setup = tiny_setup(world)
    alone(lambda: whole_run(setup, tmp_path / "run"), tmp_path / "one")
    with torch.no_grad():
        setup.model.backbone.model.get_input_embeddings().weight[7, 7] += 1e-3
    with pytest.raises(TrainingError, match="step-00000006: was trained on another backbone"):
        tiny_fit(setup, tmp_path / "run").run()


@pytest.mark.parametrize("damaged", [False, True], ids=["gone", "damaged"])
def test_a_best_checkpoint_that_is_gone_or_damaged_is_not_missed(world, tmp_path, damaged):
    setup = tiny_setup(world)
    fit = tiny_fit(setup, tmp_path / "run")
    fit.run()
    folder = fit.folder
    latest = folder.latest()
    assert latest is not None
    path, manifest, parts, optimizer, state = latest
    stored = join(parts)
    folder.drop(6)
    about = {key: value for key, value in manifest.items() if key not in ("training", "tensors_sha256")}
    gone = dict(state) | {"best_step": 2, "best_score": 50.0, "step": 4, "total": 4}
    folder.drop(4)
    write_checkpoint(folder.checkpoint(4), stored, about, training=(optimizer, gone))
    if damaged:
        write_checkpoint(folder.checkpoint(2), stored, about, training=(optimizer, gone))
        (folder.checkpoint(2) / "weights.safetensors").write_bytes(b"")
    assert replace(fit).run() == path
    skipped = [event for event in read_log(tmp_path / "run") if event["event"] == "checkpoint-skipped"]
    assert [event["checkpoint"] for event in skipped] == ["step-00000002"]
    assert str(folder.checkpoint(2)) in skipped[0]["reason"]


def test_half_a_line_at_the_end_of_the_log_is_cut_off(world, tmp_path):
    setup = tiny_setup(world)
    assert ended(fork(lambda: left_at(setup, tmp_path / "run", 5))) == 0
    before = read_log(tmp_path / "run")
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"event": "step", "lo')
    alone(lambda: whole_run(setup, tmp_path / "run"), tmp_path / "one")
    after = read_log(tmp_path / "run")
    assert after[: len(before)] == before
    assert after[-1]["event"] == "done"
