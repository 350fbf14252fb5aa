"""Training from object storage is training from files, bit for bit, whatever the storage does."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.object_storage import measure, summarize, write_recipe

from polyloom.config import load_recipe
from polyloom.errors import DataError, ObjectChangedError, StorageError
from polyloom.io.remote import RETRY_LIMITS, RemoteFolder
from polyloom.training.published import CATALOGUE
from polyloom.workflows.train import prepare_training, train_recipe
from tests.io.storage_server import Fault, Proxy, call, environment, moto_server
from tests.reliability.script import digests
from tests.reliability.tiny import saved
from tests.shared import polyloom
from tests.tiny_run import tiny_recipe

ROOT = Path(__file__).parents[2]
URL = "s3://corpora/tiny"
SETTINGS = {"steps": 12, "rows_per_batch": 16, "save_every": 2}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """moto's server behind a proxy, with the datasets of a recipe; the recipe, and what training from files gives."""
    folder = tmp_path_factory.mktemp("storage")
    with moto_server(folder) as address, pytest.MonkeyPatch.context() as patch:
        proxy = Proxy(address)
        for name, value in (environment(proxy.url) | {"POLYLOOM_CACHE": str(folder / "cache")}).items():
            patch.setenv(name, value)
        call("PUT", f"{address}/corpora")
        recipe = tiny_recipe(folder / "world", "madx", train=SETTINGS)
        polyloom("data", "prepare", recipe, "--to", URL)
        train_recipe(load_recipe(recipe), folder / "files")
        expected = digests(folder / "files")
        for corpus in (folder / "world").glob("*-train.*"):
            corpus.unlink()
        yield proxy, recipe, expected
        proxy.close()


@pytest.fixture
def proxy(storage, tmp_path, monkeypatch):
    """The proxy; blocks of other tests are forgotten, and no answer of a slow machine is given up."""
    patient = replace(RETRY_LIMITS, total=600.0, request=600.0, stall=600.0)
    monkeypatch.setitem(RemoteFolder.__init__.__kwdefaults__, "limits", patient)
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))
    storage[0].clear()
    yield storage[0]
    storage[0].clear()


def published(recipe, *overrides):
    return load_recipe(recipe, [f"data.prepared={URL}", *overrides])


def test_weights_are_the_same_without_the_corpora(storage, proxy, tmp_path):
    _, recipe, expected = storage
    with pytest.raises(DataError, match="no such file"):
        prepare_training(load_recipe(recipe))
    train_recipe(published(recipe), tmp_path / "run")
    assert digests(tmp_path / "run") == expected
    datasets = len(published(recipe).data.train)
    of_blocks = [request for request in proxy.requests if "/part-" in request.path]
    assert len(of_blocks) == datasets, "small datasets have one block, which is fetched once"
    asked = [request.headers["range"].removeprefix("bytes=").split("-") for request in of_blocks]
    size = sum(dataset.num_bytes for dataset in prepare_training(published(recipe)).datasets.values())
    assert sum(int(last) + 1 - int(first) for first, last in asked) == size, "each byte comes once"


@pytest.mark.nightly  # new processes; what a killed run leaves does not depend on where its data are
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_goes_on_from_object_storage(storage, proxy, tmp_path, processes):
    _, recipe, expected = storage
    path = tmp_path / "published.yaml"
    settings = json.loads(recipe.read_text())
    path.write_text(json.dumps(settings | {"data": settings["data"] | {"prepared": URL}}))
    run, environ = tmp_path / "run", os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.reliability.script", path, run, "7"]
    first = subprocess.run(command, cwd=ROOT, env=environ, check=False)
    assert first.returncode == -signal.SIGKILL
    assert saved(run) == 6
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    launcher = [sys.executable, *(launcher if processes > 1 else ())]
    subprocess.run([*launcher, "-m", "tests.reliability.script", path, run], cwd=ROOT, env=environ, check=True)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert any(event["event"] == "resumed" for event in log)
    drawn = {event["total"]: event["datasets"] for event in log if event["event"] == "step"}
    from_files = [json.loads(line) for line in (recipe.parents[1] / "files" / "log.jsonl").read_text().splitlines()]
    assert drawn == {event["total"]: event["datasets"] for event in from_files if event["event"] == "step"}
    if processes == 1:
        assert json.loads((run / "digests.json").read_text()) == expected | {"size": "1"}


def test_throttling_and_short_answers_change_nothing(storage, proxy, tmp_path):
    _, recipe, expected = storage
    proxy.faults = [Fault("status", times=3), Fault("cut", times=2), Fault("shorten"), Fault("reset", times=2)]
    train_recipe(published(recipe), tmp_path / "run")
    assert digests(tmp_path / "run") == expected
    assert not any(fault.times for fault in proxy.faults)


def test_a_changed_block_ends_training_with_its_name(storage, proxy, tmp_path):
    _, recipe, _ = storage
    setup = prepare_training(published(recipe))
    (condition, dataset), *_ = setup.datasets.items()
    part = f"{str(dataset.path).removeprefix(f'{URL}/')}/part-00000.bin"
    folder = RemoteFolder(URL)
    content = folder.read(part)
    try:
        folder.write(part, bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises((ObjectChangedError, DataError), match=r"part-00000|block 0 is damaged"):
            dataset.rows([0])
    finally:
        folder.write(part, content)
    assert str(condition) in setup.recipe.data.train


def test_other_settings_than_those_it_was_prepared_with_are_refused(storage, proxy):
    _, recipe, _ = storage
    first = next(iter(load_recipe(recipe).data.train))
    corpus = load_recipe(recipe).data.train[first][0]
    with pytest.raises(DataError, match=rf"{URL}: {first}: made in another way: its corpora: .*polyloom data prepare"):
        prepare_training(published(recipe, f"data.train.{first}={corpus}[:10]"))
    with pytest.raises(StorageError, match=f"{CATALOGUE}"):
        prepare_training(load_recipe(recipe, [f"data.prepared={URL}/elsewhere"]))


def test_an_upload_that_was_interrupted_is_resumed(storage, proxy, tmp_path):
    """The manifest of a dataset is the last file of it; what has none is uploaded again."""
    _, recipe, _ = storage
    source = recipe.parents[1] / "cache" / "datasets"
    some = next(path for path in source.iterdir() if path.is_dir())
    folder = RemoteFolder("s3://corpora/second")
    folder.write(f"{some.name}/part-00000.bin", b"half")
    from polyloom.conditions import Condition
    from polyloom.data.encoded import open_dataset
    from polyloom.training.published import publish

    shutil.copytree(some, tmp_path / some.name)
    publish({Condition("mlm", "aa"): open_dataset(tmp_path / some.name)}, "s3://corpora/second")
    again = RemoteFolder("s3://corpora/second")
    assert again.read(f"{some.name}/part-00000.bin") == (some / "part-00000.bin").read_bytes()


@pytest.mark.timing
def test_thirty_milliseconds_of_latency_cost_less_than_a_twentieth(tmp_path):
    recipe = write_recipe(tmp_path, languages=2, lines=4000, rows=96)
    found = summarize(measure(tmp_path, recipe, rounds=3, steps=31))
    print(json.dumps(found, indent=1))
    storage = found["storage 30 ms"]
    assert storage["requests_per_step"] < 1
    assert storage["data_seconds_per_step"] < 0.05 * storage["seconds_per_step"]
    assert storage["least_against_files"] < 1.05
