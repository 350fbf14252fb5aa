"""A flipped bit in any file of a run or an export: the same answer bit for bit, or an error that names the file."""

import random
import shutil
from pathlib import Path

import pytest

from polyloom.checkpoint import MANIFEST, TENSORS, TRAINING
from polyloom.config import load_recipe
from polyloom.errors import PolyloomError
from polyloom.evaluate.saved import read_stored
from polyloom.report.sources import read_source
from polyloom.rundir import RunDir
from polyloom.tensor_files import join
from polyloom.training.history import History
from polyloom.workflows.run import load
from polyloom.workflows.train import train_recipe
from tests.strangers.conftest import call
from tests.tiny_run import tiny_recipe

DIGEST = 64  # letters
ASKED = ["ba do fi", "gu ko"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flips")
    train = {"steps": 4, "rows_per_batch": 8, "evaluate_every": 2}
    run = train_recipe(load_recipe(tiny_recipe(folder, train=train)), folder / "run").parents[1]
    assert call("evaluate", run, "--tasks", "pos") == 0
    assert call("probe", "weights", run) == 0
    assert call("export", run, "pos/aa", "--backbone", "-o", folder / "export") == 0
    return folder


def predicted(folder):
    """The tags of sentences, and all probabilities."""
    return load(folder).predict([*ASKED], "pos/aa")


def resumed(run):
    def skip(_, error):  # which training says before it uses an older one
        raise error

    saved = RunDir(run).latest(on_skip=skip)
    assert saved is not None
    tensors = {**join(saved.weights), **{f"optimizer.{name}": tensor for name, tensor in saved.optimizer.items()}}
    return saved.path, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, dict(saved.state)


def scored(run):
    return read_stored(run, "test", checkpoint=RunDir(run).best().name).to_dict()


def probed(run):
    source = read_source(run, name="run", split="test")
    if "weights" in source.missing:  # a report shows this sentence
        raise PolyloomError(source.missing["weights"])
    # A flip in the name of the digest leaves a key that nobody reads.
    return {key: value for key, value in source.probes["weights"].items() if len(str(value)) != DIGEST}


# Who reads which file of a run. A new file needs a new line.
READERS = {
    "recipe.yaml": predicted, MANIFEST: predicted, TENSORS: predicted, TRAINING: resumed, "test.json": scored,
    "weights.json": probed, "log.jsonl": lambda run: History.read(RunDir(run).log),
}  # fmt: skip
IGNORED = {".lock", ".evaluations.lock", ".probes.lock"}


@pytest.mark.parametrize("count", [4, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["run", "export"])
def test_no_flipped_bit_changes_an_answer(world, tmp_path, kind, count):
    whole = Path(shutil.copytree(world / kind, tmp_path / kind))
    draw, outcomes = random.Random(kind), {"same": 0, "refused": 0}
    files = [path for path in sorted(whole.rglob("*")) if path.is_file() and path.name not in IGNORED]
    assert len(files) >= 7
    for file in files:
        if file.parent.name == "tensorboard":
            continue
        reader = READERS[file.name] if kind == "run" else predicted
        expected, content = reader(whole), file.read_bytes()
        for position in draw.sample(range(len(content)), min(count, len(content))):  # all of a small file
            damaged = bytearray(content)
            damaged[position] ^= 1 << draw.randrange(8)
            file.write_bytes(damaged)
            try:
                found = reader(whole)
            except PolyloomError as error:
                named = any(str(path) in str(error) for path in (file, file.parent))
                outcomes["refused" if named else f"unclear: {file} {position}: {error}"] = 1 + outcomes["refused"]
            else:
                assert found == expected, f"{file}: byte {position}"
                outcomes["same"] += 1
        file.write_bytes(content)
    print(kind, outcomes)
    assert outcomes.keys() == {"same", "refused"}
    assert outcomes["refused"] > outcomes["same"]
