"""Checkpoints of large banks: rows are in files of their own, and a save writes those that changed."""

import itertools
import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyloom import tensor_files
from polyloom.checkpoint import (
    MANIFEST,
    TENSORS,
    PreviousCheckpoint,
    read_manifest,
    read_tensors,
    read_training,
    trained_parameters,
    write_checkpoint,
)
from polyloom.errors import DamagedError, TrainingError
from polyloom.nn.tables import sparse_rows
from polyloom.rundir import RunDir
from polyloom.training.average import average_run
from polyloom.training.changed_rows import ChangedRows
from polyloom.training.config import OptimConfig
from polyloom.training.events import CheckpointSaved
from polyloom.training.optim import Optimizer
from tests.reliability.forks import alone
from tests.reliability.tiny import changed, saved, tiny_fit, tiny_setup
from tests.test_checkpoint import change_manifest, flip

LONG = {"steps": 8, "save_every": 1, "keep_last": 100}
METHOD = {"name": "madx", "train_head": False}


class Bank:
    """A bank of languages in a model, whose rows are updated and saved as in training."""

    def __init__(self, world, folder, *, languages=20, rows_per_file=1):
        setup = tiny_setup(world, METHOD, languages=["aa", "bb", "cc", *(f"l{n}" for n in range(languages - 3))])
        self.model, self.folder, self.changed_rows = setup.model, folder, ChangedRows()
        self.model.set_stage(setup.plans[0].stage)
        self.optimizer = Optimizer(self.model, OptimConfig(lr=1e-2), self.changed_rows)
        self.parameters = {n: p for n, p in trained_parameters(self.model).items() if p in self.optimizer.names}
        self.previous: PreviousCheckpoint | None = None
        self.numbers = itertools.count(1)

    def update(self, *rows):
        """Take a step whose gradient has these rows."""
        for parameter in self.parameters.values():
            values = torch.randn(len(rows), *parameter.shape[1:])
            parameter.grad = sparse_rows(torch.tensor(sorted(rows)), values, parameter.shape)
        self.optimizer.step(1.0)

    def save(self):
        """Write a checkpoint, and check that it is equal to the model and the optimizer."""
        path, state = self.folder / f"step-{next(self.numbers):08d}", self.optimizer.state()
        write_checkpoint(
            path,
            trained_parameters(self.model),
            {},
            training=(state, {}),
            banks=self.changed_rows.banks(self.model),
            previous=self.previous,
        )
        self.previous = PreviousCheckpoint(path)
        self.changed_rows.reset(self.model)
        assert not changed(read_tensors(path), {n: p.detach() for n, p in trained_parameters(self.model).items()})
        assert not changed(by_row(read_training(path)[0]), by_row(state))
        return path


def by_row(state):
    """The state of an optimizer, in the order of the banks' rows."""
    found = {}
    for name, tensor in state.items():
        rows = state.get(f"{name.rpartition('/')[0]}/rows")
        found[name] = tensor if rows is None else tensor[rows.argsort()]
    return found


def written(path):
    """The files of a checkpoint that are in no other."""
    return {str(file.relative_to(path)): file for file in path.rglob("*.*") if file.stat().st_nlink == 1}


def num_bytes(files):
    return sum(file.stat().st_size for name, file in files.items() if name != MANIFEST)


@pytest.fixture
def split(monkeypatch):
    """Small banks are stored as large ones are, with one row in each file."""
    monkeypatch.setattr(tensor_files, "LARGE_BYTES", 0)
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 1)


def test_after_many_saves_with_few_rows_changed_each_checkpoint_is_equal_to_the_model(split, world, tmp_path):
    torch.manual_seed(0)
    bank, known = Bank(world, tmp_path), {}
    for index in range(15):
        for _ in range(index % 3):  # also none
            bank.update(*torch.randperm(20)[: 1 + index % 4].tolist())
        path = bank.save()
        known[path] = (read_tensors(path), by_row(read_training(path)[0]))
    for path, (weights, state) in known.items():
        assert not changed(read_tensors(path), weights), "later saves changed no earlier one"
        assert not changed(by_row(read_training(path)[0]), state)
    *removed, last = known
    for path in removed:
        shutil.rmtree(path)
    assert not changed(read_tensors(last), known[last][0]), "each is complete by itself"
    assert not changed(by_row(read_training(last)[0]), known[last][1])


@pytest.mark.parametrize("rows", [(), (7,), (0, 1, 9)])
def test_a_save_writes_the_rows_that_changed_whatever_number_there_is(split, world, tmp_path, rows):
    sizes = []
    for languages in (10, 40):
        bank = Bank(world, tmp_path / str(languages), languages=languages)
        bank.update(*range(10))
        bank.save()
        if rows:
            bank.update(*rows)
        files = written(bank.save())
        assert {name for name in files if "/" in name} == {
            f"{part}/{number}-{row:06d}.safetensors"
            for part, number, row in itertools.product(("weights", "training"), (0, 1), rows)
        }
        sizes.append(num_bytes(files))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("rows_per_file", [1, 3, 20, 64])
def test_any_number_of_rows_in_a_file_stores_the_same(split, world, tmp_path, monkeypatch, rows_per_file):
    torch.manual_seed(0)
    monkeypatch.setattr(tensor_files.StoredBank, "rows_per_file", lambda *_: rows_per_file)
    bank = Bank(world, tmp_path)
    for rows in ([3], [19, 0], [5, 3], []):
        if rows:
            bank.update(*rows)
        path = bank.save()
    expected = 2 * -(-20 // rows_per_file) + -(-3 // rows_per_file)  # languages, invertible adapters, tasks
    assert len(list((path / "weights").iterdir())) == expected


def outside(change):
    """Change a parameter in another way than by the optimizer."""

    @torch.no_grad()
    def work(bank):
        change(bank.model, bank.model.method.get_submodule("language_adapters"))

    return work


OTHER_CHANGES: dict[str, Callable[[Any], object]] = {
    "a write": outside(lambda _, bank: bank.get_parameter("up")[4].add_(1)),
    "a write, then a step": lambda bank: (OTHER_CHANGES["a write"](bank), bank.update(6)),
    "a step, then a write": lambda bank: (bank.update(6), OTHER_CHANGES["a write"](bank)),
    "a loaded model": outside(lambda model, _: [p.copy_(torch.randn_like(p)) for p in model.method.parameters()]),
    "other memory": outside(lambda _, bank: setattr(bank.get_parameter("up"), "data", torch.randn(20, 2, 4, 32))),
    "another type": outside(lambda model, _: model.method.half()),
    "another language": outside(lambda model, _: model.method.add_language("new")),
    "another parameter": outside(
        lambda _, bank: setattr(bank, "up", torch.nn.Parameter(torch.randn_like(bank.get_parameter("up"))))
    ),
}


@pytest.mark.parametrize("what", OTHER_CHANGES)
def test_changes_that_no_optimizer_made_are_noticed(split, world, tmp_path, what):
    bank = Bank(world, tmp_path)
    bank.update(1, 2)
    before = read_tensors(bank.save())
    OTHER_CHANGES[what](bank)
    assert changed(read_tensors(bank.save()), before), "it is equal to the model, which save checks"
    bank.save()


def test_a_row_without_state_has_none_in_a_checkpoint_of_another_optimizer(split, world, tmp_path):
    """Files with the state of a former stage are not those of this one."""
    bank = Bank(world, tmp_path)
    bank.update(1, 2)
    path = bank.save()
    bank.optimizer = Optimizer(bank.model, OptimConfig(lr=1e-2), bank.changed_rows)
    bank.previous = PreviousCheckpoint(path, same_optimizer=False)
    bank.update(2, 3)
    bank.save()


@pytest.mark.parametrize("how", ["no links", "no earlier checkpoint", "an earlier checkpoint with files missing"])
def test_what_cannot_be_linked_is_written(split, world, tmp_path, monkeypatch, how):
    def refuse(*_):
        raise OSError("Operation not permitted")

    bank = Bank(world, tmp_path)
    bank.update(1)
    path = bank.save()
    if how == "no links":
        monkeypatch.setattr(os, "link", refuse)
    elif how == "no earlier checkpoint":
        shutil.rmtree(path)
    else:
        (path / "weights" / "0-000007.safetensors").unlink()
    bank.update(3)
    files = written(bank.save())
    assert "weights/0-000007.safetensors" in files
    assert len(files) < 10 or how != "an earlier checkpoint with files missing"


# -- damage ------------------------------------------------------------------------------------------------------------


def test_damage_to_any_file_of_rows_is_refused_by_its_name(split, world, tmp_path):
    bank = Bank(world, tmp_path, languages=4)
    bank.update(1, 3)
    path = bank.save()
    for read, folder in ((read_tensors, "weights"), (read_training, "training")):
        files = sorted((path / folder).iterdir())
        assert len(files) == (11 if folder == "weights" else 4), "weights of 4 + 4 + 3 rows, state of 2 + 2"
        for file in files:
            before = flip(file, -3)
            with pytest.raises(DamagedError, match=f"^{file}: does not match its manifest"):
                read(path)
            file.unlink()
            with pytest.raises(DamagedError, match=f"^{file}: not a readable checkpoint"):
                read(path)
            file.write_bytes(before)
        first, other = (file.read_bytes() for file in files[:2])
        files[0].write_bytes(other)
        with pytest.raises(DamagedError, match=f"^{files[0]}: does not match its manifest"):
            read(path)
        files[0].write_bytes(first)
        read(path)


@pytest.mark.parametrize("listed", [7, {"a": 1}, [7], [{}], [{"sha256": 7}], [{"sha256": [7]}], [{"sha256": ["x"]}]])
def test_a_manifest_that_lists_no_files_as_this_version_does_is_refused(split, world, tmp_path, listed):
    path = Bank(world, tmp_path, languages=4).save()
    change_manifest(path, banks=listed)
    with pytest.raises(DamagedError):
        read_tensors(path)


def test_rows_that_do_not_belong_together_are_refused(split, world, tmp_path):
    path = Bank(world, tmp_path, languages=4).save()
    file = path / "weights" / "0-000002.safetensors"
    name, tensor = next(iter(load_file(file).items()))
    for wrong in (tensor[..., :1].contiguous(), tensor.half(), torch.tensor(1.0)):
        digest = tensor_files.save_tensors({name: wrong}, file)
        entries = read_manifest(path)["banks"]
        entries[0]["sha256"][2] = digest
        change_manifest(path, banks=entries)
        with pytest.raises(DamagedError, match=f"^{file}: {name} does not continue the tensor"):
            read_tensors(path)


# -- runs --------------------------------------------------------------------------------------------------------------


def trained(setup, run, full_at=None):
    """Train to the end; what every checkpoint holds, and how many files each save wrote."""
    files, write = [], save_file

    def refuse(tensors, file):
        if file.parent.name == "training":
            raise OSError("No space left on device")
        write(tensors, file)

    def on_event(event):
        if isinstance(event, CheckpointSaved):
            files.append(len(written(RunDir(run).checkpoint(event.total))))
            if event.total == full_at:
                setattr(tensor_files, "save_file", refuse)  # noqa: B010 - another type, to mypy

    message = ""
    try:
        tiny_fit(setup, run, on_event=on_event).run()
    except TrainingError as error:
        message = str(error)
    folder = RunDir(run)
    content: dict[str, torch.Tensor] = {}
    for path in map(folder.checkpoint, folder.steps()):
        tensors = {**read_tensors(path), **by_row(read_training(path)[0])}
        content |= {f"{path.name}/{name}": tensor for name, tensor in tensors.items()}
    return {"content": content, "files": files, "message": message}


def setup_of(world, **train):
    mixture = {"strategy": "round-robin", "temperature": 1.0, "datasets_per_batch": 1}
    languages = ["aa", "bb", "cc", *(f"l{n}" for n in range(30))]
    return tiny_setup(world, METHOD, languages=languages, train=LONG | train, mixture=mixture)


def test_a_run_stores_in_files_of_rows_what_it_stores_in_one_file(world, tmp_path, monkeypatch):
    """All stages, every checkpoint, with files that a killed process and a resumed one wrote."""
    setup = setup_of(world)
    plain = alone(lambda: trained(setup, tmp_path / "plain"), tmp_path / "end")
    monkeypatch.setattr(tensor_files, "LARGE_BYTES", 0)
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 1)
    split = alone(lambda: trained(setup, tmp_path / "split"), tmp_path / "end")
    assert not changed(plain["content"], split["content"])
    assert set(plain["files"]) == {3}
    assert split["files"][0] > 60, "the first save writes all rows"
    assert max(split["files"][1:8]) <= 3 + 3 * 2, "then those of the language of the step"
    shutil.rmtree(tmp_path / "split" / "checkpoints" / "step-00000008")
    for step in (*range(1, 5), *range(9, 17)):
        RunDir(tmp_path / "split").drop(step)
    resumed = alone(lambda: trained(setup, tmp_path / "split"), tmp_path / "end")["content"]
    assert len(resumed) > 50
    assert not changed(resumed, {name: plain["content"][name] for name in resumed})


def test_on_a_full_disk_earlier_checkpoints_stay(split, world, tmp_path):
    setup = setup_of(world, steps=5)
    whole = alone(lambda: trained(setup, tmp_path / "whole"), tmp_path / "end")
    found = alone(lambda: trained(setup, tmp_path / "run", full_at=3), tmp_path / "end")
    assert "the checkpoint of step 4 cannot be written (No space left on device)" in found["message"]
    assert saved(tmp_path / "run") == 3
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    found = alone(lambda: trained(setup, tmp_path / "run"), tmp_path / "end")
    assert not changed(found["content"], whole["content"])


def test_the_mean_of_checkpoints_is_a_checkpoint_of_one_file(split, world, tmp_path):
    setup = setup_of(world, steps=4)
    alone(lambda: trained(setup, tmp_path / "run"), tmp_path / "end")
    folder = RunDir(tmp_path / "run")
    folder.write_recipe("{}\n", own=True)
    mean = average_run(folder.path, tmp_path / "mean", last=2)
    parts = [read_tensors(folder.checkpoint(step)) for step in folder.steps()[-2:]]
    expected = {name: ((parts[0][name].double() + parts[1][name].double()) / 2).float() for name in parts[0]}
    assert not changed(read_tensors(mean), expected)
    assert sorted(path.name for path in mean.iterdir()) == [MANIFEST, "training.safetensors", TENSORS]
    assert ["banks" in read_manifest(path) for path in (mean, folder.checkpoint(4))] == [False, True]
