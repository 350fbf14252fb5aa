"""Runs of a tiny model: what a recipe says is what is done."""

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyloom.backbones import load_backbone
from polyloom.checkpoint import read_tensors
from polyloom.cli.render.train import COLLAPSED, _messages
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.catalog import resolve
from polyloom.data.encoded import EncodedDataset, part_name
from polyloom.data.records import Tagged
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import ConditionError, ConfigError, PolyloomWarning, TrainingError
from polyloom.rundir import RunDir
from polyloom.training.config import OptimConfig
from polyloom.training.distributed import ProcessGroup
from polyloom.training.events import LanguageShares, read_log
from polyloom.training.loop import TrainLoop
from polyloom.training.parameter_report import language_shares
from polyloom.training.prepare import prepare_dataset
from polyloom.workflows.run import Run
from polyloom.workflows.train import prepare_recipe, prepare_training, train_recipe
from tests.tiny_run import tiny_recipe


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path))


def train(folder: Path, name: str = "run", method: str = "hyperx", **sections) -> Path:
    recipe = load_recipe(tiny_recipe(folder, method, **sections))
    return train_recipe(recipe, folder / name)


def same(a: Path, b: Path) -> bool:
    one, other = read_tensors(a), read_tensors(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [event for event in lines if event["event"] == kind]


def test_a_run_by_epochs_sees_every_example_so_often(tmp_path):
    data = {"train": {"pos/aa": str(tmp_path / "aa-train.conllu"), "pos/bb": str(tmp_path / "bb-train.conllu[:50]")}}
    once = {"steps": None, "epochs": 2, "rows_per_batch": 25}
    mixture = {"temperature": 1.0, "datasets_per_batch": 1}
    train(tmp_path, tasks=("pos",), data=data, train=once, mixture=mixture)
    steps = events(tmp_path / "run", "step")
    assert len(steps) == 20  # 2 × (200 + 50) / 25
    assert sum(step["datasets"].get("pos/aa", 0) for step in steps) == pytest.approx(400, abs=25)
    train(tmp_path, "one", tasks=("pos",), data=data, train=once | {"epochs": 1}, mixture=mixture)
    assert len(events(tmp_path / "one", "step")) == 10


def test_contradicting_languages_are_told_apart_and_a_relative_is_served_zero_shot(tmp_path):
    train(tmp_path, tasks=("mlm", "pos"), train={"steps": 150})
    run = Run.load(tmp_path / "run")
    matrix = run.evaluate(run.recipe.data.test)
    for language in ("aa", "bb"):
        dataset = matrix.results[Condition("pos", language)]
        assert dataset.scores[0].value > 95
        assert not dataset.zero_shot
    assert matrix.results[Condition("pos", "cc")].zero_shot


def test_validation_changes_nothing_but_what_is_selected(tmp_path):
    quiet = train(tmp_path, "a", train={"steps": 12, "save_every": 4, "dropout": True})
    watched = train(tmp_path, "b", train={"steps": 12, "save_every": 4, "dropout": True, "evaluate_every": 1})
    assert same(RunDir(tmp_path / "a").checkpoint(12), RunDir(tmp_path / "b").checkpoint(12))
    assert quiet.name == "step-00000012"
    best = max(events(tmp_path / "b", "validation"), key=lambda event: (event["selection_score"], -event["total"]))
    assert watched.name == f"step-{best['total']:08d}"


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [({"gradient_checkpointing": True}, 1e-6), ({"grad_accum_steps": 3}, 1e-5), ({"rows_per_batch": 16}, None)],
)
def test_how_a_step_is_computed_does_not_matter_but_what_is_read_does(tmp_path, change, tolerance):
    plain = read_tensors(train(tmp_path, "a", train={"steps": 5}))
    other = read_tensors(train(tmp_path, "b", train={"steps": 5} | change))
    difference = max(float((plain[name] - other[name]).abs().max()) for name in plain)
    assert difference > 1e-4 if tolerance is None else difference <= tolerance


@pytest.mark.nightly
def test_bf16_learns_as_fp32_does(tmp_path):
    losses = {}
    for precision in ("fp32", "bf16"):
        train(tmp_path, precision, train={"steps": 60, "precision": precision})
        losses[precision] = [event["loss"] for event in events(tmp_path / precision, "step")]
    assert losses["bf16"] != losses["fp32"]
    assert np.mean(losses["bf16"][-10:]) == pytest.approx(np.mean(losses["fp32"][-10:]), rel=0.15)


def test_batches_by_tokens_keep_to_their_budget(tmp_path):
    recipe = load_recipe(tiny_recipe(tmp_path, train={"steps": 20, "rows_per_batch": None, "tokens_per_batch": 64}))
    setup = prepare_training(recipe)
    loop = TrainLoop(setup.model, setup.plans[0], tokenizer=setup.tokenizer, process_group=ProcessGroup())
    for index in range(20):
        (batch,), datasets, _ = loop.batches(index)
        assert batch.num_tokens <= 64
        assert len(datasets) <= 4
    assert len(list(loop.steps(17))) == 3


def test_filled_rows_are_the_text_that_follows_a_line_without_padding(tmp_path):
    settings = {"steps": 4, "pack_sequences": True, "max_length": 24, "rows_per_batch": 6}
    sections: dict[str, Any] = {"tasks": ("mlm", "pos"), "mixture": {"datasets_per_batch": 1}}
    setup = prepare_training(load_recipe(tiny_recipe(tmp_path, **sections, train=settings)))
    loop = TrainLoop(setup.model, setup.plans[0], tokenizer=setup.tokenizer, process_group=ProcessGroup())
    dataset = next(dataset for dataset in loop.datasets.values() if dataset.condition.task == "mlm")
    lines = [np.asarray(row["tokens"]).tolist() for row in dataset.dataset.rows(range(len(dataset.dataset)))]
    running = [piece for line in lines + lines for piece in line]
    starts = np.cumsum([0, *map(len, lines)])
    for index in (0, 7, len(lines) - 1):
        (example,) = dataset.examples([index], [0], setup.model.tasks["mlm"], packed_length=22)
        assert example.row["tokens"].tolist() == running[starts[index] : starts[index] + 22]
    (long,) = dataset.examples([3], [0], setup.model.tasks["mlm"], packed_length=2)
    assert long.row["tokens"].tolist() == lines[3], "cut at random by the task, as without filling"
    for index in range(4):
        for batch in loop.batches(index).micro_batches:
            padded = int((batch.inputs["attention_mask"] == 0).sum())
            raw = "mlm" in batch.by_task
            assert padded == 0 if raw else batch.num_tokens < 6 * 24, "labelled rows stay as they are"
    train(tmp_path, **sections, train=settings)
    with pytest.raises(TrainingError, match="pack_sequences"):
        train(tmp_path, "b", **sections, train=settings | {"rows_per_batch": None, "tokens_per_batch": 99})


def test_masked_pieces_can_be_chosen_among_those_of_their_corpus_alone(tmp_path):
    losses = {}
    for vocabulary in ("full", "corpus"):
        settings = {"steps": 1, "mlm_candidates": vocabulary}
        recipe = load_recipe(tiny_recipe(tmp_path, tasks=("mlm", "pos"), train=settings))
        setup = prepare_training(recipe)
        loop = TrainLoop(setup.model.eval(), setup.plans[0], tokenizer=setup.tokenizer, process_group=ProcessGroup())
        (batch,) = loop.batches(0).micro_batches
        data = batch.by_task["mlm"]
        if vocabulary == "corpus":
            present = {int(p) for c in loop.datasets.values() if c.condition.task == "mlm" for p in c.token_types}
            assert data.targets["candidates_V"].tolist() == sorted(present), "all cells of this batch together"
            assert len(present) < setup.tokenizer.vocab_size
        losses[vocabulary] = float(setup.model.losses(batch)["mlm"].detach())
    assert losses["corpus"] < losses["full"] - 1, "fewer pieces to choose from"


def test_weights_that_no_longer_depend_on_the_language_are_noticed(tmp_path):
    train(tmp_path, train={"steps": 3})
    (shares,) = language_events(tmp_path / "run")
    assert shares.before.keys() == {"mlm", "pos"}
    assert min(shares.after.values()) > COLLAPSED
    assert not list(_messages(shares))
    model: Any = Run.load(tmp_path / "run").model
    torch.nn.init.zeros_(model.method.hypernetwork.trunk[0].weight)
    collapsed = replace(shares, after=language_shares(model))
    assert max(collapsed.after.values()) < 1e-6
    assert "lower optim.lr" in str(next(iter(_messages(collapsed))))
    train(tmp_path, "one", "multilingual", train={"steps": 3})
    assert not [message for event in language_events(tmp_path / "one") for message in _messages(event)], "by design"


def language_events(run: Path) -> list[LanguageShares]:
    return [event for event in read_log(RunDir(run).log) if isinstance(event, LanguageShares)]


def test_every_record_of_a_corpus_is_an_example(tmp_path):
    """More of them than are encoded at a time."""
    file = tmp_path / "many.txt"
    file.write_text("".join(f"ba do {'fi ' * (i % 5)}\n" for i in range(2345)))
    tokenizer = load_tokenizer(tiny_recipe(tmp_path).parent / "backbone")
    assert len(prepare_dataset(Condition("mlm", "aa"), [resolve(str(file))], tokenizer=tokenizer)) == 2345


def test_what_a_killed_preparation_left_is_removed_by_the_next_one(tmp_path):
    (tmp_path / "a.txt").write_text("ba do\n")
    tokenizer = load_tokenizer(tiny_recipe(tmp_path).parent / "backbone")
    left = tmp_path / "datasets" / ".mlm-0123.partial-0123456789abcdef"
    left.mkdir(parents=True)
    (left / part_name(0)).write_bytes(b"half")
    assert len(prepare_dataset(Condition("mlm", "aa"), [resolve(str(tmp_path / "a.txt"))], tokenizer=tokenizer)) == 1
    assert not left.exists()


def test_labels_mean_the_same_in_every_cell_whatever_the_order_of_their_coming(tmp_path):
    setup = prepare_training(load_recipe(tiny_recipe(tmp_path, tasks=("pos",))))
    loop = TrainLoop(setup.model, setup.plans[0], tokenizer=setup.tokenizer, process_group=ProcessGroup())
    labels = setup.model.tasks["pos"].labels
    orders = {tuple(dataset.meta["labels"]) for dataset in setup.datasets.values()}
    assert len(orders) > 1, "cells whose labels came in the same order show nothing"
    for name, corpora in setup.recipe.data.train.items():
        dataset = loop.datasets[name]
        records = [record for record in resolve(corpora[0]).records("tags") if isinstance(record, Tagged)]
        for example, record in zip(
            dataset.examples(range(50), range(50), setup.model.tasks["pos"]), records, strict=False
        ):
            assert [labels[i] for i in example.row["labels"]] == list(record.tags)


def test_a_changed_corpus_is_encoded_anew(tmp_path):
    file = tmp_path / "text.txt"
    tokenizer = load_tokenizer(tiny_recipe(tmp_path).parent / "backbone")
    for text in ("ba do\n", "ba do\nfi gu\n"):
        file.write_text(text)
        assert len(prepare_dataset(Condition("mlm", "aa"), [resolve(str(file))], tokenizer=tokenizer)) == text.count(
            "\n"
        )


def test_a_damaged_dataset_is_encoded_again_with_a_warning(tmp_path):
    (tmp_path / "text.txt").write_text("ba do\nfi gu\n")
    tokenizer = load_tokenizer(tiny_recipe(tmp_path).parent / "backbone")
    corpora = [resolve(str(tmp_path / "text.txt"))]
    first = prepare_dataset(Condition("mlm", "aa"), corpora, tokenizer=tokenizer, folder=tmp_path / "cache")
    part = Path(first.path) / part_name(0)
    content = part.read_bytes()
    damaged = bytearray(content)
    damaged[-1] ^= 1  # another token
    part.write_bytes(damaged)
    with pytest.warns(PolyloomWarning, match=r"mlm-\w+: this cached dataset is damaged .*It is encoded again"):
        prepare_dataset(Condition("mlm", "aa"), corpora, tokenizer=tokenizer, folder=tmp_path / "cache")
    assert part.read_bytes() == content


def test_a_run_goes_on_only_with_the_recipe_it_began_with(tmp_path):
    train(tmp_path, train={"steps": 3})
    with pytest.raises(ConfigError, match=r"optim\.lr: was 0\.01 when this run began, now 0\.5"):
        train(tmp_path, train={"steps": 3}, optim={"lr": 0.5})


def test_what_is_scored_must_have_been_learnt(tmp_path):
    recipe = load_recipe(tiny_recipe(tmp_path, tasks=("mlm", "pos", "ner")))
    without = {name: corpora for name, corpora in recipe.data.train.items() if not name.startswith("ner")}
    path = tiny_recipe(tmp_path, tasks=("mlm", "pos", "ner"), data={"train": {k: list(v) for k, v in without.items()}})
    with pytest.raises(ConfigError, match="nothing for task 'ner'"):
        train_recipe(load_recipe(path), tmp_path / "run")


def test_a_method_that_needs_raw_text_says_so(tmp_path):
    with pytest.raises(TrainingError, match="stage head: no raw text"):
        train(tmp_path, method="madx", tasks=("pos",))


def test_what_a_method_cannot_serve_is_refused_with_its_reason(tmp_path):
    train(tmp_path, method="psf", tasks=("pos",), train={"steps": 2})
    run = Run.load(tmp_path / "run")
    matrix = run.evaluate(run.recipe.data.test)
    assert "without any labelled data" in matrix.refused[Condition("pos", "cc")]
    assert "–" in matrix.to_markdown()
    with pytest.raises(ConditionError, match="Did you mean 'pos'"):
        list(run.predictor.predict([], Condition("pso", "aa")))


def test_a_continued_run_must_be_of_the_same_kind(tmp_path):
    train(tmp_path, "base", train={"steps": 2})
    start = str(tmp_path / "base")
    with pytest.raises(ConfigError, match="was trained with HyperXConfig"):
        train(tmp_path, "more", method="full", init_from=start, train={"steps": 2})
    dataset = str(tmp_path / "cc-train.conllu")
    best = train(tmp_path, "more", init_from=start, data={"train": {"pos/cc": dataset}}, train={"steps": 2})
    assert not same(best, RunDir(tmp_path / "base").best())
    assert "pos/aa" in Run.load(tmp_path / "more").trained_on


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 2 / 3, 1 / 3]),
        ("inverse-sqrt", [0.5, 1, 0.816, 0.707, 0.632]),
    ],
)
def test_schedules(schedule, expected):
    config = OptimConfig(schedule=schedule, warmup_steps=2)
    assert [config.factor(step, 5) for step in range(5)] == pytest.approx(expected, abs=1e-3)


def test_stages_have_their_own_settings_and_only_their_own_data(tmp_path):
    steps_of = {"head": 2, "languages": 3, "tasks": 4}
    stages: dict[str, Any] = {name: {"train": {"steps": steps}} for name, steps in steps_of.items()}
    stages["tasks"]["optim"] = {"lr": 1e-3}
    train(tmp_path, method="madx", stages=stages)
    steps = events(tmp_path / "run", "step")
    assert [set(event["losses"]) for event in steps] == [{"mlm"}] * 5 + [{"pos"}] * 4
    assert [event["stage"] for event in events(tmp_path / "run", "stage")] == list(steps_of)
    pretrained = load_backbone(tmp_path / "backbone").head_parameters()
    learnt = Run.load(tmp_path / "run").model.backbone.head_parameters()
    assert not any(torch.equal(pretrained[name], learnt[name]) for name in pretrained)


def test_the_head_of_a_task_that_a_step_does_not_have_stays_where_it_is(tmp_path):
    """With Adam a gradient of zero is not no gradient: old momentum would move it."""
    recipe = load_recipe(tiny_recipe(tmp_path, tasks=("mlm", "pos", "ner"), mixture={"datasets_per_batch": 1}))
    setup = prepare_training(recipe)
    loop = TrainLoop(setup.model, setup.plans[0], tokenizer=setup.tokenizer, process_group=ProcessGroup())
    head = setup.model.tasks["pos"].get_parameter("classifier.weight")
    moved = []
    before = head.detach().clone()
    for step in loop.steps():
        moved.append(("pos" in step.losses, not torch.equal(before, head)))
        before = head.detach().clone()
    assert all(there == changed for there, changed in moved)
    assert {there for there, _ in moved} == {True, False}


@pytest.mark.nightly
def test_pairs_are_learnt(tmp_path):
    """The label hangs on the first word of the second text, which only whoever sees both can find."""
    data = {"train": {"nli/aa": str(tmp_path / "aa-train.pairs.tsv")}, "validation": {}}
    train(tmp_path, method="full", tasks=("nli",), data=data, optim={"lr": 1e-3}, train={"steps": 300})
    run = Run.load(tmp_path / "run")
    (dataset,) = run.evaluate({"nli/aa": run.recipe.data.test["nli/aa"]}).results.values()
    assert dataset.scores[0].value > 95


@pytest.mark.parametrize("method", ["hyperx", pytest.param("full", marks=pytest.mark.nightly)])
def test_all_tasks_are_learnt_at_once_and_languages_told_apart_where_the_method_can(tmp_path, method):
    """What is a noun in one language is a verb in the other; full fine-tuning does not look at the language."""
    sections = {"train": {"steps": 300}, "mixture": {"datasets_per_batch": 8}}
    train(tmp_path, method, method=method, tasks=("mlm", "pos", "ner", "dep"), **sections)
    run = Run.load(tmp_path / method)
    test = {name: corpora for name, corpora in run.recipe.data.test.items() if name[-2:] != "cc" and name[:3] != "mlm"}
    lowest = min(dataset.scores[0].value for dataset in run.evaluate(test).results.values())
    assert lowest > 95 if method == "hyperx" else lowest < 60


def test_a_run_closes_its_datasets(tmp_path, monkeypatch):
    """At once, not when the garbage collector comes: trainer and loop are parts of cycles."""
    opened: list[EncodedDataset] = []

    def watch(*arguments, **options):
        data = prepare_recipe(*arguments, **options)
        opened.extend(data.datasets.values())
        return data

    monkeypatch.setattr("polyloom.workflows.train.prepare_recipe", watch)
    gc.disable()
    try:
        train(tmp_path, train={"steps": 3})
        folders = {str(dataset.path) for dataset in opened}
        assert len(folders) > 1
        assert not [path for path in open_files() if str(path.parent) in folders]
        rows = [dataset.rows([0]) for dataset in opened]
        assert all(rows), "what is read later opens the files again"
        assert {str(path.parent) for path in open_files()} >= folders
    finally:
        gc.enable()


def open_files():
    """The files that this process has open, mapped ones included."""
    return [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
