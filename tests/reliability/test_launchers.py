"""Fresh interpreters: the same seed, whoever starts the processes, and whoever is killed, makes the same bits."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from polyloom.config import load_recipe
from polyloom.rundir import RunDir
from polyloom.workflows.train import train_recipe
from tests.reliability.forks import read_log, together
from tests.reliability.script import digests
from tests.tiny_run import tiny_recipe

ROOT = Path(__file__).parents[2]
SCRIPT = "tests.reliability.script"


def recipe_of(world, **train):
    settings = {"steps": 12, "rows_per_batch": 4, "dropout": True, "save_every": 3} | train
    return tiny_recipe(world, "hyperx", tasks=("mlm", "pos"), train=settings, optim={"warmup_steps": 2})


def launch(command, recipe, run, *more, **environment):
    """Start fresh processes, wait for their end, and return what they say came out."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | environment
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


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def in_children(recipe, run, folder):
    def work(process_group):
        train_recipe(load_recipe(recipe), run, process_group=process_group)
        return digests(run) | {"size": str(process_group.size)} if process_group.is_main else {}

    return together(work, folder, size=2)[0]


def test_launchers_start_the_same_run_and_a_killed_worker_does_not_change_it(world, tmp_path):
    """Six interpreters, of which one is killed: what was trained, and what is generated, is the same in all."""
    other = in_children(recipe_of(world, seed=1), tmp_path / "other", tmp_path / "end")
    recipe = recipe_of(world)
    expected = in_children(recipe, tmp_path / "children", tmp_path / "end")
    assert expected["trained"] != other["trained"]
    assert expected["made"] != other["made"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    died = launch([*torchrun, "--monitor-interval=0.2"], recipe, tmp_path / "torchrun", "7", PYTHONHASHSEED="1")
    accelerate = [
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
        "--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={free_port()}",
    ]  # fmt: skip
    launched = launch(accelerate, recipe, tmp_path / "accelerate", ACCELERATE_USE_CPU="true", PYTHONHASHSEED="2")
    assert died == launched == expected
    assert (tmp_path / "torchrun" / "died").exists()
    assert [event["total"] for event in read_log(tmp_path / "torchrun") if event["event"] == "resumed"] == [6]
    assert RunDir(tmp_path / "torchrun").steps()[-1] == 12
