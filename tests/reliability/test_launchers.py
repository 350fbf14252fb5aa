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
            assert process.wait() == 0, Path(output.name).read_text()
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
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_process_ends_all_without_a_launcher_that_does(world, tmp_path, failing):
    """Also of the process that has the store by which they find one another."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "polyloom", "train", str(recipe_of(world)), "-o", str(tmp_path / "run")]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in (0, 1):
        cache = tmp_path / ("file" if rank == failing else "cache")  # a file has no folders, so this cannot be written
        environment = os.environ | group | {"RANK": str(rank), "POLYLOOM_CACHE": str(cache)}
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    ends = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert "Not a directory" in ends[failing]
    assert f"Another process ended with an error. process {failing}: " in ends[1 - failing]
    assert "Not a directory" in ends[1 - failing]


@pytest.mark.nightly
def test_accelerate_starts_the_same_run(world, tmp_path, expected):
    accelerate = [
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
        "--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={free_port()}",
    ]  # fmt: skip
    run = tmp_path / "accelerate"
    assert launch(accelerate, recipe_of(world), run, ACCELERATE_USE_CPU="true", PYTHONHASHSEED="2") == expected
