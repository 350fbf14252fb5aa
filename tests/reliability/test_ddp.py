"""Two processes with copies are one process with the whole batch, whatever each of them has of it."""

import pytest

from tests.reliability.forks import together
from tests.reliability.tiny import CALM, changed, distance, record, tiny_loop, tiny_setup, weights
from tests.shared import nightly

MIXED = {"mixture": {"datasets_per_batch": 4}, "train": {"rows_per_batch": 4}}
CASES = {
    "hyperx": MIXED,
    "hyperx, in pieces": {"mixture": {"datasets_per_batch": 4}, "train": {"rows_per_batch": 8, "grad_accum_steps": 2}},
    "hyperx, fewer rows than processes": {"mixture": {"datasets_per_batch": 1}, "train": {"rows_per_batch": 1}},
    "madx": MIXED,
    "badx": MIXED,
    "psf": MIXED,  # its noise is each process's own: without
    "full": MIXED,
}


def take(setup, process_group, *, steps=50):
    """All stages; weights, and which tasks this process had in which step."""
    tasks = []
    if "latents" in setup.model.method.groups():
        latents = setup.model.method.latents
        setup.model.method._sample = lambda kind, rows: latents[f"{kind}_mean"](rows)
    for stage in range(len(setup.plans)):
        loop = tiny_loop(setup, stage, process_group=process_group, steps=steps)
        seen = record(loop)
        for step in loop.steps():
            assert not step.skipped
            tasks.append(",".join(sorted({pick.dataset.partition("/")[0] for picks in seen for pick in picks})))
            seen.clear()
    return {"weights": weights(setup), "tasks": tasks}


@pytest.mark.parametrize("case", [case for case in CASES if case != "badx"] + nightly("badx"))
def test_two_processes_are_one(world, tmp_path, case):
    method = case.partition(",")[0]
    setup = tiny_setup(world, method, optim=CALM, **CASES[case])
    (one,) = together(lambda process_group: take(setup, process_group), tmp_path)
    first, second = together(lambda process_group: take(setup, process_group), tmp_path, size=2)
    assert not changed(first["weights"], second["weights"])
    assert distance(one["weights"], first["weights"]) <= 1e-5
    assert changed(one["weights"], weights(setup))
    if CASES[case] is MIXED:
        apart = sum(a != b for a, b in zip(first["tasks"], second["tasks"], strict=True))
        assert apart >= 5, "in some steps the processes have rows of different tasks"
    if "fewer" in case:
        assert set(second["tasks"]) == {""}
