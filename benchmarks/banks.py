"""What a training step and a checkpoint of MAD-X cost with a bank of 5,000 languages, against one of 50 (G14).

    python benchmarks/banks.py --json benchmarks/results/banks.json

The backbone has 6 layers, is 384 wide and random; a language has adapters of 24 units and an invertible adapter. Steps
are taken in turn with each bank, on the same rows of one language: their gradient (forward, backward, clipping) and the
update. The peak of memory is that of a process of its own, beside the bytes of weights and state of the optimizer.
Checkpoints are those of a run that saves after every step, each of which changes the row of one language: seconds until
all is on the disk, and bytes of the files that no earlier checkpoint has. The first one has all rows.
"""

# ruff: noqa: S603 - all commands are our own

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from tests.tiny_run import tiny_recipe

from polyloom.config import load_recipe
from polyloom.rundir import RunDir
from polyloom.training.distributed import ProcessGroup
from polyloom.training.loop import TrainLoop
from polyloom.training.trainer import Trainer
from polyloom.workflows.train import TrainingSetup, prepare_training

LANGUAGES = (50, 5000)
WARMUP = 3
STEPS_OF_MEMORY = 4
SAVES = 6


def make_setup(folder: Path, languages: int, *, layers: int, width: int) -> TrainingSetup:
    """Return a run with many languages. Three languages have text; batches have rows of one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_recipe(folder)
    config = transformers.BertConfig.from_pretrained(folder / "backbone")
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    config.update(sizes | {"num_attention_heads": width // 32})
    transformers.utils.logging.disable_progress_bar()
    transformers.BertForMaskedLM(config).save_pretrained(folder / "backbone")
    recipe = json.loads(tiny_recipe(folder, tasks=("mlm",)).read_text())
    recipe["method"] = {"name": "madx", "adapter_size": 24, "train_head": False}
    recipe["languages"] += [f"l{number}" for number in range(languages - len(recipe["languages"]))]
    recipe["mixture"] = {"datasets_per_batch": 1}
    recipe["train"] = {"steps": 1000, "rows_per_batch": 24, "dropout": False}
    (folder / "large.yaml").write_text(json.dumps(recipe))
    return prepare_training(load_recipe(folder / "large.yaml"))


def make_loop(folder: Path, languages: int, **sizes: int) -> TrainLoop:
    """Return the stage of the language adapters."""
    setup = make_setup(folder, languages, **sizes)
    return TrainLoop(setup.model, setup.plans[0], tokenizer=setup.tokenizer, process_group=ProcessGroup())


def measure(folder: Path, sizes: dict[str, int], rounds: int) -> dict[str, Any]:
    """Take steps with every bank in turn."""
    steps = {str(count): make_loop(folder / str(count), count, **sizes).steps() for count in LANGUAGES}
    times: dict[str, dict[str, list[float]]] = {name: {"gradient": [], "update": []} for name in steps}
    for index in range(WARMUP + rounds):
        for name, of in steps.items():
            seconds = next(of).seconds
            if index >= WARMUP:
                times[name]["gradient"].append(seconds["compute"])
                times[name]["update"].append(seconds["update"])
    return times


def peak_memory() -> float:
    """Return the peak of this process's memory in megabytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


def memory(folder: Path, languages: int, sizes: dict[str, int]) -> dict[str, float]:
    """Take a few steps; return megabytes of the method's weights, the optimizer's state, and the whole process."""
    loop = make_loop(folder, languages, **sizes)
    before = peak_memory()
    for _, _ in zip(range(STEPS_OF_MEMORY), loop.steps(), strict=False):
        pass
    bytes_of = {"weights": loop.model.method.parameters(), "state": loop.optimizer.state().values()}
    return {name: sum(t.nbytes for t in tensors) / 1e6 for name, tensors in bytes_of.items()} | {
        "before_training": before, "peak": peak_memory(),
    }  # fmt: skip


class TimedSaves(Trainer):
    """Notes what each checkpoint costs."""

    def _save(self, state: Any, *arguments: Any, **options: Any) -> None:
        started = time.perf_counter()
        super()._save(state, *arguments, **options)
        seconds = time.perf_counter() - started
        files = [file for file in self.folder.checkpoint(state.total).rglob("*.*") if file.stat().st_nlink == 1]
        self.costs = [
            *getattr(self, "costs", []),
            {"seconds": seconds, "megabytes": sum(file.stat().st_size for file in files) / 1e6, "files": len(files)},
        ]


def saves(folder: Path, languages: int, sizes: dict[str, int]) -> list[dict[str, float]]:
    """Train a few steps and save after each; return seconds, megabytes and files that each save wrote."""
    setup = make_setup(folder, languages, **sizes)
    plan = setup.plans[0]
    plan = replace(plan, train=replace(plan.train, steps=SAVES, save_every=1))
    trainer = TimedSaves(setup.model, [plan], setup.tokenizer, RunDir(folder / "run"))
    trainer.run()
    costs: list[dict[str, float]] = trainer.costs
    return costs


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="a small backbone, to see that it runs")
    parser.add_argument("--memory", type=int, metavar="LANGUAGES", help="measure the memory of this process")
    parser.add_argument("--saves", type=int, metavar="LANGUAGES", help="measure the checkpoints of this process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {"layers": 2, "width": 64} if options.quick else {"layers": 6, "width": 384}
    with tempfile.TemporaryDirectory() as folder:
        if options.memory:
            print(json.dumps(memory(Path(folder), options.memory, sizes)))
            return
        if options.saves:
            print(json.dumps(saves(Path(folder), options.saves, sizes)))
            return
        times = measure(Path(folder), sizes, options.rounds)
    found: dict[str, Any] = {"seconds": times}
    few, many = (times[str(count)] for count in LANGUAGES)
    for part in few:
        ratios = [a / b for a, b in zip(many[part], few[part], strict=True)]
        found[f"{part}_{LANGUAGES[1]}_over_{LANGUAGES[0]}"] = statistics.median(ratios)
    steps = [[sum(parts) for parts in zip(*one.values(), strict=True)] for one in (many, few)]
    found["step_over_step"] = statistics.median(a / b for a, b in zip(*steps, strict=True))
    for count in LANGUAGES:
        for name, option in (("megabytes", "--memory"), ("saves", "--saves")):
            command = [sys.executable, __file__, option, str(count), *(["--quick"] if options.quick else [])]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            found[f"{name}_{count}"] = json.loads(run.stdout)
    print(json.dumps({key: value for key, value in found.items() if key != "seconds"}, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
