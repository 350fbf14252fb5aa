"""A damaged run is refused by the name of the file, and no other checkpoint is used in its place."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from polyloom.checkpoint import MANIFEST, TENSORS, read_manifest, write_checkpoint
from polyloom.cli import main
from polyloom.config import load_recipe
from polyloom.errors import AccessError, CheckpointError, DamagedError, PolyloomError
from polyloom.evaluate.matrix import Matrix
from polyloom.io import access
from polyloom.io.sealed import seal
from polyloom.rundir import RunDir
from polyloom.workflows.run import Run, load
from polyloom.workflows.train import train_recipe
from tests.tiny_run import tiny_recipe

COMMANDS = {
    "predict": ("predict", "RUN", "pos/aa"),
    "evaluate": ("evaluate", "RUN"),
    "export": ("export", "RUN", "pos/aa", "-o", "NEW"),
    "report": ("report", "RUN", "-o", "NEW"),
    "compare": ("compare", "RUN", "RUN"),
    "probe": ("probe", "weights", "RUN"),
    "add": ("add", "language", "RUN", "dd", "--text", "TEXT", "-o", "NEW"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    train = {"steps": 4, "rows_per_batch": 8, "evaluate_every": 2, "keep_last": 2}
    train_recipe(load_recipe(tiny_recipe(folder, train=train)), folder / "run")
    return folder


@pytest.fixture
def run(world, tmp_path):
    return Path(shutil.copytree(world / "run", tmp_path / "run"))


@pytest.fixture
def command(world, run, tmp_path, monkeypatch, capsys):
    """Run a command on the run, and return its exit code, stdout and stderr."""

    def call(*arguments):
        places = {"RUN": run, "NEW": tmp_path / "new", "TEXT": world / "aa-train.txt"}
        monkeypatch.setattr(sys, "argv", ["polyloom", *(str(places.get(one, one)) for one in arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ba do fi\n")))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def newest(run):
    return RunDir(run).checkpoint(RunDir(run).steps()[-1])


def flip(file, position=-40):
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_damaged_newest_checkpoint_is_refused_and_no_older_one_is_served(run, command, tmp_path, name):
    flip(newest(run) / MANIFEST)
    code, out, said = command(*COMMANDS[name])
    assert (code, out) == (1, "")
    assert f"polyloom: {newest(run) / MANIFEST}: damaged" in said
    assert "--checkpoint of predict, evaluate and export. There are: step-00000002, step-00000004." in said
    assert not (tmp_path / "new").exists()


def test_damaged_weights_are_refused_with_the_other_checkpoints(run):
    best = RunDir(run).best()
    flip(best / TENSORS)
    with pytest.raises(DamagedError, match=f"^{best / TENSORS}: does not match.*There are: step-00000002"):
        Run.load(run)


def test_a_best_checkpoint_that_is_gone_is_refused(run):
    best, (other,) = RunDir(run).best(), {2, 4} - {int(RunDir(run).best().name[-8:])}
    if best == newest(run):  # then the newest says so of the other one
        manifest = read_manifest(newest(run))
        shutil.rmtree(best)
        state = dict(manifest["training"]["state"]) | {"best_step": other}
        write_checkpoint(best, {}, manifest, training=({}, state))
        best = RunDir(run).checkpoint(other)
    shutil.rmtree(best)
    with pytest.raises(DamagedError, match=f"^{best / MANIFEST}: not a readable checkpoint"):
        RunDir(run).best()


def test_another_checkpoint_is_used_where_it_is_chosen(run, command, tmp_path):
    healthy = load(run, checkpoint="step-00000002").predict("ba do fi", "pos/aa")
    flip(newest(run) / MANIFEST)
    chosen = ("--checkpoint", "step-00000002")
    code, out, _ = command(*COMMANDS["predict"], "--format", "jsonl", *chosen)
    assert code == 0
    assert json.loads(out)["labels"] == list(healthy.labels)
    assert command(*COMMANDS["export"], *chosen)[0] == 0
    assert load(tmp_path / "new").predict("ba do fi", "pos/aa") == healthy
    assert load(run, checkpoint="step-00000002").checkpoint.name == "step-00000002"
    with pytest.raises(CheckpointError, match=r"no checkpoint 'step-2' here. Did you mean 'step-00000002'\?"):
        load(run, checkpoint="step-2")
    with pytest.raises(CheckpointError, match="not a run, so it has no checkpoint 'step-00000002'"):
        load(tmp_path / "new", checkpoint="step-00000002")


def test_scores_of_a_chosen_checkpoint_do_not_replace_those_of_the_best(run, command):
    best = RunDir(run).best().name
    (other,) = {"step-00000002", "step-00000004"} - {best}
    assert command("evaluate", "RUN", "--tasks", "pos", "--languages", "aa")[0] == 0
    code, _, said = command("evaluate", "RUN", "--tasks", "pos", "--languages", "aa", "--checkpoint", other)
    assert code == 0
    assert f"test-{other}.json" in said
    kept = {name: Matrix.read(RunDir(run).evaluation(name)).run["checkpoint"] for name in ("test", f"test-{other}")}
    assert kept == {"test": best, f"test-{other}": other}


def test_a_flipped_bit_in_the_recipe_is_an_error_or_changes_nothing(run):
    directory = RunDir(run)
    expected, content = load_recipe(directory.recipe), directory.recipe.read_bytes()
    refused: list[str] = []
    positions = [*range(90), *range(90, len(content), 11)]  # the first line, and every eleventh byte behind it
    for position in positions:
        directory.recipe.write_bytes(content)
        flip(directory.recipe, position)
        try:
            directory.require()
            found = load_recipe(directory.recipe)
        except PolyloomError as error:
            refused.append(str(error))
        else:
            assert found == expected
    assert len(refused) >= len(positions) - len("# sha256: ")
    assert all(str(directory.recipe) in message for message in refused)


def test_a_recipe_that_was_changed_on_purpose_is_read_without_its_first_line(run, world, monkeypatch):
    monkeypatch.setattr(access, "_allowed", [])
    directory = RunDir(run)
    text = directory.recipe.read_text().replace("max_length: null", "max_length: 32")
    assert "max_length: 32" in text
    directory.recipe.write_text(text)
    with pytest.raises(DamagedError, match="If you changed it on purpose, delete that line"):
        Run.load(run)
    directory.recipe.write_text(text.partition("\n")[2])
    with pytest.raises(AccessError, match="--allow-path"):  # anybody could have changed it
        Run.load(run)
    assert load(run, allow=[world]).recipe.train.max_length == 32


def test_damaged_scores_are_refused(run, command):
    assert command("evaluate", "RUN", "--tasks", "pos", "--languages", "aa")[0] == 0
    file = RunDir(run).evaluation("test")
    flip(file, file.read_bytes().index(b'"statistics"') + 40)
    code, _, said = command("compare", "RUN", "RUN")
    assert code == 1
    assert f"polyloom: {file}: damaged" in said


def test_training_that_resumes_says_what_it_skipped_and_why(world, run, command):
    flip(newest(run) / TENSORS)
    code, _, said = command("train", world / "hyperx.yaml", "-o", "RUN")
    assert code == 0
    assert f"Skipping step-00000004: {newest(run) / TENSORS}: does not match its manifest" in said
    assert "Resuming from step-00000002" in said
    assert Run.load(run).predict("ba do fi", "pos/aa")


def test_a_run_of_a_newer_version_says_so(run):
    manifest = read_manifest(newest(run))
    (newest(run) / MANIFEST).write_text(seal(json.dumps(dict(manifest) | {"format": 7, "polyloom": "3.0"})))
    with pytest.raises(CheckpointError, match=r"of format 7, written by Polyloom 3\.0.*Update Polyloom"):
        RunDir(run).best()
