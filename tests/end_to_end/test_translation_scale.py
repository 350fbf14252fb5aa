"""Translation at scale, in small: bounded memory, a plan that the run confirms, kill -9 in mid-corpus, two as one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.corpora import write_corpus
from benchmarks.measure import in_fresh_process
from benchmarks.prepare import prepare_corpus, write_vocabulary

from polyloom.checkpoint import read_tensors
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.catalog import resolve
from polyloom.data.mixture import Mixture
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import ConfigError
from polyloom.rundir import RunDir
from polyloom.training.prepare import prepare_dataset
from polyloom.workflows.planning import Size, plan, plan_run, tokens_per_second
from polyloom.workflows.train import prepare_training, train_recipe
from tests.reliability.forks import read_log
from tests.reliability.tiny import CALM, changed, distance
from tests.shared import DATA, needs_data

PAIRS = 3000
SHAPE = {"d_model": 32} | {
    f"{stack}_{key}": value
    for stack in ("encoder", "decoder")
    for key, value in {"layers": 1, "ffn_dim": 64, "attention_heads": 2}.items()
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Two directions of made-up sentences, and a model that takes a step in milliseconds."""
    folder = tmp_path_factory.mktemp("bitext")
    write_corpus(folder, PAIRS, mean_words=5)
    write_vocabulary(folder, size=400, lines=PAIRS)
    settings = {
        "backbone": {"preset": "transformer-mini", "config": SHAPE, "tokenizer": str(folder / "vocabulary")},
        "method": {"name": "hyper-adapters", "hidden_size": 16, "adapter_size": 8},
        "languages": ["aa", "bb"],
        "tasks": {"mt": {}},
        "directions": ["aa/bb", "bb/aa"],
        "data": {"train": {f"mt/{x}": f"{folder}/text.{{aa,bb}}" for x in ("aa/bb", "bb/aa")}},
        "mixture": {"temperature": 2.0, "datasets_per_batch": 2},
        "optim": {"lr": 3e-3, "warmup_steps": 5},
        "train": {"steps": 60, "tokens_per_batch": 600, "max_length": 64, "label_smoothing": 0.1, "save_every": 8},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(settings))
    return path


def start(*arguments, launcher=()):
    """Start a command in processes of its own, with one thread each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, "-m", "polyloom", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    _, talk = process.communicate()
    assert process.returncode == 0, talk


def steps_of(run):
    """What the log says of every step, but for the time it took; of a step taken twice, the last."""
    keep = ("loss", "tokens", "datasets", "gradient_norm")
    return {e["total"]: {key: e[key] for key in keep} for e in read_log(run) if e["event"] == "step"}


@pytest.mark.nightly
def test_memory_to_prepare_grows_by_the_hashes_alone(tmp_path, monkeypatch):
    # Allocators that keep what is freed, each its own, say 2 MB more or less from time to time; one says the same.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")
    found = []
    for pairs in (50_000, 150_000):
        folder = tmp_path / str(pairs)
        folder.mkdir()
        write_corpus(folder, pairs, mean_words=3)
        write_vocabulary(folder, size=500, lines=2000)
        found.append(in_fresh_process(prepare_corpus, folder))
    small, large = found
    assert small["rows"] == 50_000
    assert large["rows"] == 150_000
    assert {"duplicate", "ratio"} <= large["dropped"].keys()
    grown = large["memory_peak_mb"] - small["memory_peak_mb"]
    print(f"{grown:.1f} MB of memory more, and {large['bytes_per_row']:.1f} bytes on disk per pair")
    assert grown < 30, "chunks of some megabytes, and a bit for each pair"


@pytest.mark.nightly
def test_a_killed_run_goes_on_in_mid_corpus_as_if_nothing_had_happened(recipe, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    settings = load_recipe(recipe)
    train_recipe(settings, whole)
    process = start("train", recipe, "-o", run)
    log = run / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text().count('"event": "step"') >= 20):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was faster than this test"
    finish(start("train", recipe, "-o", run))
    (resumed,) = (event["total"] for event in read_log(run) if event["event"] == "resumed")
    assert 16 <= resumed < 60
    epochs = prepare_training(settings).plans[0].make_mixture().epochs(resumed)
    assert all(value % 1 for value in epochs.values()), "in the middle of an epoch"
    assert steps_of(run) == steps_of(whole), "the same examples, and the same losses to the last bit"
    one, other = (read_tensors(RunDir(path).checkpoint(60)) for path in (whole, run))
    assert not changed(one, other)


@pytest.mark.nightly
def test_two_processes_are_one(recipe, tmp_path):
    changes = ["train.dropout=false", "train.steps=30", *(f"optim.{key}={value}" for key, value in CALM.items())]
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    together = start("train", recipe, *changes, "-o", tmp_path / "two", launcher=launcher)
    train_recipe(load_recipe(recipe, changes), tmp_path / "one")
    finish(together)
    one, two = (read_tensors(RunDir(tmp_path / name).checkpoint(30)) for name in ("one", "two"))
    start_of = read_tensors(RunDir(tmp_path / "one").checkpoint(24))
    assert distance(one, two) <= 1e-5 < distance(one, start_of)
    ours, theirs = steps_of(tmp_path / "one"), steps_of(tmp_path / "two")
    assert [step["datasets"] for step in ours.values()] == [step["datasets"] for step in theirs.values()]
    assert [step["tokens"] for step in ours.values()] == [step["tokens"] for step in theirs.values()]


def mean_length(dataset):
    return float(dataset.lengths(0, dataset.num_blocks).mean())


def test_a_run_takes_what_was_planned(recipe, tmp_path):
    settings = load_recipe(recipe, ["train.steps=100"])
    setup = prepare_training(settings)
    datasets = {str(condition): dataset for condition, dataset in setup.datasets.items()}
    dataset = datasets["mt/aa/bb"]
    made = plan(settings)
    assert made.backbone.parameters == sum(p.numel() for p in setup.model.backbone.parameters()), "its own vocabulary"
    size = {frozenset(("aa", "bb")): Size(len(dataset), mean_length(dataset))}
    planned = plan_run(settings, made, sizes=size, flops_per_second=1e9)
    train_recipe(settings, tmp_path / "run")
    log = read_log(tmp_path / "run")
    (mixture,) = (event["datasets"] for event in log if event["event"] == "mixture")
    epochs = {name: number for name, _, _, number in mixture}
    for direction in planned.directions:
        assert direction.epochs == pytest.approx(epochs[f"mt/{direction.direction}"], rel=0.1)
    steps = [event for event in log if event["event"] == "step"]
    tokens = sum(step["tokens"] for step in steps)
    assert 0.8 * planned.tokens < tokens < 1.05 * planned.tokens
    examples = sum(sum(step["datasets"].values()) for step in steps)
    assert examples == pytest.approx(sum(d.epochs * d.pairs for d in planned.directions), rel=0.1)
    on_disk = sum(file.stat().st_size for one in datasets.values() for file in Path(one.path).iterdir())
    assert 0.85 * planned.dataset_bytes < on_disk < 1.1 * planned.dataset_bytes
    assert planned.order_bytes == 200 * sum(one.num_blocks for one in datasets.values())
    speed = tokens_per_second(tmp_path / "run", settings)
    timed = plan_run(settings, made, sizes=size, tokens_per_second=speed)
    spent = sum(sum(step["seconds"].values()) for step in steps)
    assert timed.hours == pytest.approx(spent * planned.tokens / tokens / 3600)
    with pytest.raises(ConfigError, match="its speed cannot be used here"):
        tokens_per_second(tmp_path / "run", load_recipe(recipe, ["method.hidden_size=8"]))


@needs_data
@pytest.mark.parametrize("name", ["tatoeba-mt:eng-deu/train[:6000]", "bible:eng-deu/train[:6000]"])
def test_real_lengths_make_about_as_many_batches_as_planned(name, recipe, tmp_path):
    tokenizer = load_tokenizer(recipe.parent / "vocabulary")
    dataset = prepare_dataset(
        Condition("mt", "eng", "deu"), [resolve(name, root=DATA)], tokenizer=tokenizer, folder=tmp_path
    )
    renamed = {"languages": "[eng, deu]", "directions": "[eng/deu]", "data": "{}", "train.tokens_per_batch": "4000"}
    settings = load_recipe(recipe, [f"{key}={value}" for key, value in renamed.items()])
    size = Size(len(dataset), mean_length(dataset))
    planned = plan_run(settings, plan(settings), sizes={frozenset(("eng", "deu")): size})
    mixture = Mixture({"one": dataset}, settings.mixture, seed=0, tokens_per_batch=4000)
    assert mixture.epochs(60)["one"] == pytest.approx(planned.directions[0].epochs, rel=0.15)
