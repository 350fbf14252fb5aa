"""Mistakes in the data of a run are refused or reported before training, and recorded in the run's log."""

import io
import random
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import polyloom as pl
from polyloom.backbones import backbone_from_config, load_backbone
from polyloom.cli import main
from polyloom.conditions import Condition, Inventory
from polyloom.config import load_recipe, parse_recipe
from polyloom.config.recipe import PRESETS
from polyloom.data.catalog import Corpus
from polyloom.data.records import Record
from polyloom.errors import BackboneError, ConfigError, DataError, PolyloomWarning, suggest
from polyloom.inference.untrained import TrainedParts
from polyloom.io import hashes
from polyloom.methods import METHODS, Method, build_method
from polyloom.model import inventory_of
from polyloom.rundir import RunDir
from polyloom.tasks import TASKS
from polyloom.training.events import IssueFound, read_log
from polyloom.workflows.run import Run
from polyloom.workflows.train import prepare_recipe, prepare_training, train_recipe
from tests.tiny_run import WORDS, conllu, tiny_recipe

QUICK = {"steps": 1, "rows_per_batch": 4}
DIFFERENT = [["ba", "do", "fi", "gu", "ko", "lem", "mur", word] for word in ("sat", "ba", "do", "fi")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    tiny_recipe(folder)
    (folder / "different.conllu").write_text("".join(conllu("aa", words) for words in DIFFERENT))
    return folder


@pytest.fixture
def recipe(world: Path) -> Any:
    """Write a recipe of one task and one language, with its data as given."""

    def write(data: dict[str, Any], *, languages: tuple[str, ...] = ("aa",), **sections: Any) -> pl.Recipe:
        data = {"validation": {}, "test": {}} | data
        path = tiny_recipe(world, tasks=("pos",), languages=list(languages), data=data, train=QUICK, **sections)
        return load_recipe(path)

    return write


def issues(recipe: pl.Recipe) -> list[str]:
    """Return the issues of a recipe that is not refused."""
    found: list[Any] = []
    prepare_recipe(recipe, on_event=found.append)
    return [event.what for event in found if isinstance(event, IssueFound)]


def test_data_without_mistakes_have_no_issues(world, recipe):
    data = {"train": {"pos/aa": f"{world}/aa-train.conllu"}, "test": {"pos/aa": f"{world}/different.conllu"}}
    assert issues(recipe(data)) == []


def test_a_test_corpus_that_is_the_training_corpus_is_refused_and_the_log_says_why(world, recipe, tmp_path):
    train = f"{world}/aa-train.conllu"
    data = {"train": {"pos/aa": train}, "test": {"pos/aa": f"{train}[:50]"}}
    with pytest.raises(ConfigError, match=r"50 of 50 sentences \(100 %\) .*allow: \[test-in-train\]"):
        train_recipe(recipe(data), tmp_path / "run")
    (event,) = read_log(RunDir(tmp_path / "run").log)
    assert isinstance(event, IssueFound)
    assert event.refused
    assert not RunDir(tmp_path / "run").exists(), "the folder can be used for the corrected recipe"
    train_recipe(recipe(data | {"allow": ["test-in-train"]}), tmp_path / "run")
    noted = [event for event in read_log(RunDir(tmp_path / "run").log) if isinstance(event, IssueFound)]
    assert [event.refused for event in noted] == [True, False]


def test_validation_on_the_test_corpus_is_reported(world, recipe):
    dev = f"{world}/different.conllu"
    data = {"train": {"pos/aa": f"{world}/aa-train.conllu"}, "validation": {"pos/aa": dev}, "test": {"pos/aa": dev}}
    (what,) = issues(recipe(data))
    assert "the choice of the model will be skewed" in what


def test_a_treebank_of_another_language_is_refused_unless_it_is_allowed(world, recipe, tmp_path):
    (tmp_path / "ud/UD_English-EWT").mkdir(parents=True)
    shutil.copy(world / "aa-train.conllu", tmp_path / "ud/UD_English-EWT/en_ewt-ud-train.conllu")
    data = {"train": {"pos/tr": "ud:en_ewt/train"}, "root": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"pos/tr: ud:en_ewt/train is of another language, 'en'"):
        issues(recipe(data, languages=("tr",)))
    assert "another language" in issues(recipe(data | {"allow": ["wrong-language"]}, languages=("tr",)))[0]
    for code in ("en", "eng", "en-GB"):
        assert (
            issues(recipe({"train": {f"pos/{code}": "ud:en_ewt/train"}, "root": str(tmp_path)}, languages=(code,)))
            == []
        )


def test_two_codes_of_one_language_are_refused(world, recipe):
    data = {"train": {"pos/zh": f"{world}/aa-train.conllu"}}
    with pytest.raises(ConfigError, match=r"'zh' and 'zho' are codes of the same language"):
        issues(recipe(data, languages=("zh", "zho")))
    assert issues(recipe(data, languages=("zh", "zh-Hant", "zh-yue"))) == []


def test_training_data_of_one_label_are_refused(recipe, tmp_path):
    (tmp_path / "one.tsv").write_text("ba\tNOUN\ndo\tNOUN\n\n" * 3)
    with pytest.raises(ConfigError, match="all training data of pos have the same label, NOUN"):
        issues(recipe({"train": {"pos/aa": str(tmp_path / "one.tsv")}}))


def test_text_that_the_tokenizer_does_not_know_is_reported(recipe, tmp_path):
    (tmp_path / "other.tsv").write_text("дом\tNOUN\nда\tVERB\n\n" * 3)
    assert (
        "100 % of the tokens of aa are unknown" in issues(recipe({"train": {"pos/aa": str(tmp_path / "other.tsv")}}))[0]
    )


def test_a_missing_test_corpus_is_reported_and_a_missing_validation_corpus_is_an_error(world, recipe):
    data = {"train": {"pos/aa": f"{world}/aa-train.conllu"}}
    (what,) = issues(recipe(data | {"test": {"pos/aa": "none.conllu"}}))
    assert "none.conllu: no such file" in what
    with pytest.raises(DataError, match=r"none\.conllu: no such file"):
        issues(recipe(data | {"validation": {"pos/aa": "none.conllu"}}))


def test_corpora_are_read_once_and_damaged_statistics_are_counted_again(world, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path))
    train = f"{world}/aa-train.conllu"
    checked = recipe({"train": {"pos/aa": train}, "test": {"pos/aa": f"{train}[:50]"}, "allow": ["test-in-train"]})
    found, read = issues(checked), list[Corpus]()
    records = Corpus.records

    def count(corpus: Corpus, *rest: Any, **more: Any) -> Iterator[Record]:
        read.append(corpus)
        return records(corpus, *rest, **more)

    monkeypatch.setattr(Corpus, "records", count)
    assert issues(checked) == found
    assert not read
    files = list((tmp_path / "datasets").glob("check-*.bin"))
    assert len(files) == 2
    for file in files:
        content = bytearray(file.read_bytes())
        for position in (0, len(content) // 2, len(content) - 1):
            content[position] ^= 1
            file.write_bytes(content)
            assert issues(checked) == found
            assert len(read) == 1
            read.clear()
            assert file.read_bytes() != content
            content = bytearray(file.read_bytes())


def bytes_read() -> int:
    """Return how many bytes this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts the bytes that a process reads")
def test_a_restart_reads_no_corpus(world, recipe, tmp_path, monkeypatch):
    """Also not for the positions of random choices from the same file, which are compared."""
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10))
    draw, comment = random.Random(0), "# " + "x" * 20_000 + "\n"  # so that few sentences make a large file
    for name in ("train", "test"):
        sentences = [conllu("aa", draw.choices(WORDS, k=8)) for _ in range(100)]
        (tmp_path / f"{name}.conllu").write_text("".join(comment + sentence for sentence in sentences))
    data: dict[str, Any] = {
        "train": {"pos/aa": f"{tmp_path}/train.conllu[random:80]"},
        "validation": {"pos/aa": f"{tmp_path}/train.conllu[random:20:1]"},
        "test": {"pos/aa": f"{tmp_path}/test.conllu"},
        "allow": ["test-in-train"],
    }
    counts, found = [], []
    for _ in range(3):
        before = bytes_read()
        found.append(issues(recipe(data)))
        counts.append(bytes_read() - before)
    assert counts[0] > 6 * 2_000_000, "corpora are hashed, counted and encoded"
    assert max(counts[1:]) < 1_000_000
    assert found[0] == found[1] == found[2]
    (tmp_path / "test.conllu").write_text((tmp_path / "train.conllu").read_text())
    assert issues(recipe(data)) != found[0], "a corpus that changed is read again"


# -- continued runs, languages without data ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train tags of ``aa`` and raw text of ``bb`` for a step; ``cc`` has no data."""
    train = {"pos/aa": f"{world}/aa-train.conllu", "mlm/bb": f"{world}/bb-train.txt"}
    data = {"train": train, "validation": {}, "test": {}}
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_recipe(load_recipe(tiny_recipe(world, tasks=("mlm", "pos"), data=data, train=QUICK)), folder)
    return folder


def continued(world: Path, trained: Path, corpus: Path) -> pl.Recipe:
    data = {"train": {"pos/aa": str(corpus)}, "validation": {}, "test": {}}
    return load_recipe(tiny_recipe(world, tasks=("mlm", "pos"), data=data, train=QUICK, init_from=str(trained)))


def test_a_continued_run_whose_labels_are_all_unknown_to_the_model_is_refused(world, trained, tmp_path):
    (tmp_path / "other.tsv").write_text("ba\tN\ndo\tV\n\n" * 3)
    with pytest.raises(DataError, match=r"other\.tsv: pos/aa: the model has none of its labels \(N, V\)"):
        train_recipe(continued(world, trained, tmp_path / "other.tsv"), tmp_path / "run")
    assert not RunDir(tmp_path / "run").exists()


def test_labels_that_a_continued_run_does_not_have_are_reported(world, trained, tmp_path):
    (tmp_path / "some.tsv").write_text("ba\tNOUN\ndo\tPRON\n\n" * 3)
    found: list[Any] = []
    prepare_training(continued(world, trained, tmp_path / "some.tsv"), on_event=found.append)
    said = [event.what for event in found if isinstance(event, IssueFound)]
    assert any("does not have the labels PRON" in what for what in said)


def test_a_language_without_data_is_reported_in_the_log_and_on_stderr(trained, tmp_path, capsys):
    noted = [event.what for event in read_log(RunDir(trained).log) if isinstance(event, IssueFound)]
    assert len(noted) == 1
    assert noted[0].startswith("language 'cc' has no training data")
    pl.train(RunDir(trained).recipe, tmp_path / "again")
    assert noted[0] in capsys.readouterr().err


def test_predictions_of_what_was_never_trained_are_told_once(trained):
    run = Run.load(trained)
    run.predict("ba do", "pos/aa")
    run.predict("ba do", "pos/bb")  # zero-shot: raw text of bb was trained
    with pytest.warns(PolyloomWarning, match=r"^pos/cc: the language 'cc' has neither training data nor a donor"):
        run.predict("ba do", "pos/cc")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            run.predict(["ba do", "fi"], "pos/cc")
    assert len(told) == 1


def test_the_command_tells_it_on_stderr_and_predicts(trained, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["polyloom", "predict", str(trained), "--input", "jsonl"])
    lines = "".join(f'{{"words": ["ba"], "condition": "pos/{x}"}}\n' for x in ("aa", "cc", "cc"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as ended:
            main()
    out, err = capsys.readouterr()
    assert not ended.value.code
    assert out.count('"labels"') == 3
    assert [line for line in err.splitlines() if "donor" in line] == [err.strip()]
    assert err.startswith("polyloom: pos/cc: the language 'cc' has neither")


def method_of(name: str, languages: Sequence[str] = ("en", "de", "fr")) -> Method:
    """Build a method of some languages, in few directions, on an encoder-decoder."""
    first, second, third, *_ = languages
    directions = [f"{first}/{second}", f"{second}/{first}", f"{first}/{third}"]
    inventory = inventory_of(languages, {"mt": TASKS["mt"].Config()}, directions)
    with torch.device("meta"):
        shape = backbone_from_config({**PRESETS["transformer-mini"], "vocab_size": 8}, device="meta").shape
        return build_method(METHODS[name].config_type(), shape=shape, inventory=inventory)


@pytest.mark.parametrize(
    ("method", "condition", "part"),
    [
        ("lang-adapters", "mt/en/de", None),
        ("lang-adapters", "mt/de/en", "source language 'de'"),
        ("lang-adapters", "mt/en/fr", "target language 'fr'"),
        ("hyper-adapters", "mt/de/en", None),  # the embedding of a language is the same on both sides
        ("hyper-adapters", "mt/en/fr", "language 'fr'"),
        ("pair-adapters", "mt/de/en", "pair 'de/en'"),
        ("dense", "mt/en/fr", None),  # without parameters for languages
    ],
)
def test_what_is_untrained_is_a_matter_of_the_parameters_that_a_method_has(method, condition, part):
    assert TrainedParts(method_of(method), ["mt/en/de"]).missing(Condition.parse(condition)) == part


def test_a_task_without_any_data_is_untrained(trained):
    method = Run.load(trained).model.method
    assert TrainedParts(method, ["mlm/aa"]).missing(Condition.parse("pos/aa")) == "task 'pos'"


@pytest.mark.timing
def test_many_languages_are_checked_quickly():
    """In time that does not grow with what else was trained: it did, and a server with many languages stood still."""
    languages = [f"l{number}" for number in range(30_000)]
    start = time.process_time()
    parts = TrainedParts(method_of("hyper-adapters", languages), [f"mt/l0/{name}" for name in languages[1:-1]])
    found = [parts.missing(Condition("mt", name, "l1")) for name in languages[-2000:]]
    assert found == [None] * 1999 + ["language 'l29999'"]
    directions = [f"{source}/{target}" for source in languages[-300:] for target in languages[:300]]
    assert Inventory.of(languages, ["mt"], directions).directions == tuple(directions)
    with pytest.raises(ConfigError, match="backbone: missing"):
        parse_recipe({"languages": languages, "tasks": {"mlm": {}}, "method": {"name": "hyperx"}})
    assert {suggest("l1999x", languages)[:22] for _ in range(100)} == {"Did you mean 'l1999'? "}
    assert time.process_time() - start < 10, "seconds, of which one was measured; minutes before"


# -- backbones ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_backbone_file_of_which_no_weight_fits_is_refused(world, tmp_path, size):
    shutil.copytree(world / "backbone", tmp_path / "backbone")
    save_file({"other.weight": torch.ones(size)}, tmp_path / "backbone/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match=r"do not fit its configuration"):
        load_backbone(tmp_path / "backbone")
