"""Fresh interpreters: the same seed, whoever starts the processes, and whoever is killed, makes the same bits."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polyloom.config import load_recipe
from polyloom.rundir import RunDir
from polyloom.workflows.train import train_recipe
from tests.reliability.forks import read_log, together
from tests.reliability.script import digests
from tests.shared import free_port
from tests.tiny_run import tiny_recipe

ROOT = Path(__file__).parents[2]
SCRIPT = "tests.reliability.script"


def recipe_of(world, **train):
    settings = {"steps": 12, "rows_per_batch": 4, "dropout": True, "save_every": 3} | train
    return tiny_recipe(world, "hyperx", tasks=("mlm", "pos"), train=settings, optim={"warmup_steps": 2})


def launch(command, recipe, run, *more, **environment):
    """Start fresh processes, wait for their end, and return what they say came out."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | environment
    command = [sys.executable, *command, "-m", SCRIPT, str(recipe), str(run), *more]
    with (run.parent / f"{run.name}.out").open("w+") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=settings, stdout=output, stderr=output, start_new_session=True
        )
        try:
            assert process.wait(timeout=200) == 0, Path(output.name).read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return json.loads((run / "digests.json").read_text())


def in_children(recipe, run, folder):
    def work(process_group):
        train_recipe(load_recipe(recipe), run, process_group=process_group)
        return digests(run) | {"size": str(process_group.size)} if process_group.is_main else {}

    return together(work, folder, size=2)[0]


@pytest.fixture
def expected(world, tmp_path):
    """What two children of this process come to, and fresh interpreters must; another seed comes to another end."""
    other = in_children(recipe_of(world, seed=1), tmp_path / "other", tmp_path / "end")
    made = in_children(recipe_of(world), tmp_path / "children", tmp_path / "end")
    assert made["trained"] != other["trained"]
    assert made["made"] != other["made"]
    return made


@pytest.mark.nightly
def test_torchrun_starts_the_same_run_and_a_killed_worker_does_not_change_it(world, tmp_path, expected):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    run = tmp_path / "torchrun"
    died = launch([*torchrun, "--monitor-interval=0.2"], recipe_of(world), run, "7", PYTHONHASHSEED="1")
    assert died == expected
    assert (run / "died").exists()
    assert [event["total"] for event in read_log(run) if event["event"] == "resumed"] == [6]
    assert RunDir(run).steps()[-1] == 12


@pytest.mark.nightly
def test_accelerate_starts_the_same_run(world, tmp_path, expected):
    accelerate = [
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
        "--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={free_port()}",
    ]  # fmt: skip
    run = tmp_path / "accelerate"
    assert launch(accelerate, recipe_of(world), run, ACCELERATE_USE_CPU="true", PYTHONHASHSEED="2") == expected
