"""Registries: packages and single files extend Polyloom without touching it."""

import gzip
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.readers.conllu import read_conllu
from polyloom.data.readers.formats import READERS, register_reader
from polyloom.data.records import Tagged, Text
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import PolyloomError
from polyloom.metrics import Score
from polyloom.nn.blocks import Lora, register_block
from polyloom.registry import Registry, code_hashes, load_code, load_extensions, loaded_code
from polyloom.tasks import register_task
from polyloom.tasks.tagging import Pos
from polyloom.training.prepare import prepare_dataset
from tests.shared import EXAMPLES, polyloom, start_command

pytestmark = pytest.mark.usefixtures("own_registries")

RECIPE = """
backbone: {config: {model_type: bert, vocab_size: 100, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2}}
method: {name: task-adapters, adapter_size: 8}
languages: [en, tr]
tasks: {pos: {labels: 3}}
"""


def test_a_name_is_registered_once():
    registry: Registry[int] = Registry("number", {"one": 1}.items())
    registry.register("two", 2)
    assert dict(registry) == {"one": 1, "two": 2}
    with pytest.raises(PolyloomError, match="number 'one' is registered already"):
        registry.register("one", 3)
    with pytest.raises(PolyloomError, match=r"unknown number 'tow'\. Did you mean 'two'\?.*--code FILE"):
        registry.find("tow")


def test_a_file_that_is_not_there_or_fails_is_named(tmp_path):
    with pytest.raises(PolyloomError, match="no such file"):
        load_code(tmp_path / "absent.py")
    (tmp_path / "wrong.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(PolyloomError, match=r"wrong\.py: ModuleNotFoundError"):
        load_code(tmp_path / "wrong.py")


def command(*arguments: object, stdin: str = "") -> str:
    """Run a command in a process of its own, because what it registers stays registered; return what it prints."""
    process = start_command(*arguments, **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE))
    printed, errors = process.communicate(stdin)
    assert process.returncode == 0, errors
    return printed


def test_code_brings_a_method_to_the_command_line(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert "unknown method 'task-adapters'" in polyloom("plan", tmp_path / "recipe.yaml", fails=True)
    printed = command("plan", tmp_path / "recipe.yaml", "--json", "--code", EXAMPLES / "own_method.py")
    assert '"chosen": "task-adapters"' in printed


def test_an_installed_package_brings_a_method(tmp_path):
    (tmp_path / "their_package.py").write_text((EXAMPLES / "own_method.py").read_text())
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[polyloom]\nmethod = their_package\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import polyloom.methods as m; print(list(m.METHODS))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "task-adapters" in done.stdout
    (tmp_path / "their_package.py").write_text("raise RuntimeError('broken')\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "extension 'method' (their_package) cannot be imported: RuntimeError('broken')" in done.stderr


def test_code_brings_a_task_to_train_predict_and_evaluate(tmp_path, load_example):
    (tmp_path / "recipe.yaml").write_text(json.dumps(load_example("own_task").write_recipe(tmp_path)))
    run, code = tmp_path / "run", ("--code", EXAMPLES / "own_task.py")
    command("train", tmp_path / "recipe.yaml", "-o", run, *code)
    assert command("predict", run, "question/south", *code, stdin="ba do li\nba do\n") == "question\nstatement\n"
    assert "question" in command("evaluate", run, *code)


def test_names_of_tasks_and_blocks_are_taken_once(load_example):
    load_example("own_method")  # what is registered in this test is gone after it
    with pytest.raises(PolyloomError, match="task 'pos' is registered already"):
        register_task(Pos)
    with pytest.raises(PolyloomError, match="block 'lora' is registered already"):
        register_block(Lora())


def test_a_registered_format_is_read_by_ending_and_by_name(tmp_path, load_example):
    (tmp_path / "a.slash").write_text("a/X b/Y\n")
    for name, hint in (("a.slash", "unknown ending '.slash'.*--code FILE"), ("a.slash#lines:x", "--code FILE")):
        with pytest.raises(PolyloomError, match=hint):
            list(resolve(f"{tmp_path}/{name}").records("tags"))
    load_example("own_reader")
    (tmp_path / "a.slash.gz").write_bytes(gzip.compress(b"a/X b/Y\n"))
    (tmp_path / "a.other").write_text("a/X b/Y\n")
    for name in ("a.slash", "a.slash.gz", "a.other#slash", "a.slash[:1]"):
        assert list(resolve(f"{tmp_path}/{name}").records("tags")) == [Tagged(("a", "b"), ("X", "Y"))]
    (tmp_path / "a.slash").write_text("a/X b/Y\nc\n")
    with pytest.raises(PolyloomError, match=r"a\.slash:2: every word needs a tag"):
        list(resolve(f"{tmp_path}/a.slash").records("tags"))
    with pytest.raises(PolyloomError, match=r"a \.slash file has no records of kind 'text'"):
        list(resolve(f"{tmp_path}/a.slash").records("text"))
    register_reader("slash", "text", lambda file: iter([Text(",".join(file.columns))]), endings=[".sl"])
    (tmp_path / "b.sl").touch()
    assert list(resolve(f"{tmp_path}/b.sl#slash:x,y").records("text")) == [Text("x,y")]


@pytest.mark.parametrize(
    ("name", "kind", "endings", "message"),
    [
        ("tsv", "tags", (), r"\.tsv files are read as 'tags' already"),
        ("new", "tags", (".tsv",), r"\.tsv files are read as 'tags' already"),
        ("new", "tag", (), "unknown kind of record 'tag'. Did you mean 'tags'"),
        ("new", "tags", ("new",), "should begin with a dot"),
    ],
)
def test_a_format_is_not_replaced_and_a_mistake_registers_nothing(name, kind, endings, message, tmp_path):
    with pytest.raises(PolyloomError, match=message):
        register_reader(name, kind, lambda _: iter(()), endings=endings)
    (tmp_path / "a.new").touch()
    with pytest.raises(PolyloomError, match="unknown ending"):
        list(resolve(f"{tmp_path}/a.new").records("tags"))


def test_datasets_are_encoded_again_when_the_code_has_changed(tmp_path, load_example):
    load_example("own_task").write_tokenizer(tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "a.mine").touch()

    def encoded(tag: str) -> list[str]:
        code = tmp_path / f"{tag}.py"
        body = f"lambda file: iter([pl.Tagged(('ba',), ('{tag}',))])"
        code.write_text(f"import polyloom as pl\npl.register_reader('mine', 'tags', {body})\n")
        READERS.pop(".mine", None)
        load_code(code)
        corpora = [resolve(f"{tmp_path}/a.mine")]
        dataset = prepare_dataset(Condition("pos", "en"), corpora, tokenizer=tokenizer, folder=tmp_path / "cache")
        return list(dataset.meta["labels"])

    assert encoded("X") == ["X"]
    assert encoded("Y") == ["Y"]
    assert code_hashes([Pos, read_conllu, partial(read_conllu)]) == [], "the keys of other datasets stay as they were"


def test_what_is_unknown_may_be_in_a_file_of_code(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("pos:", "question:"))
    message = polyloom("plan", tmp_path / "recipe.yaml", fails=True)
    for line in ("unknown method 'task-adapters'", "tasks.question: unknown task"):
        assert any(line in found and "--code FILE" in found for found in message.splitlines())
    with pytest.raises(PolyloomError, match=r"unknown metric 'exact_match'.*--code FILE"):
        Score.from_dict({"metric": "exact_match"})
    (tmp_path / "recipe.yaml").write_text(
        RECIPE.replace("bert", "brt").replace("task-adapters", "hyperx, block: scale")
    )
    message = polyloom("plan", tmp_path / "recipe.yaml", fails=True)
    for line in ("no family for model type 'brt'", "method.block: 'scale' is not a choice"):
        assert any(line in found and "--code FILE" in found for found in message.splitlines())


def test_files_of_code_are_named_for_other_processes():
    """Entry points are not among them: another process finds those by itself."""
    load_extensions()
    assert all(Path(file).is_file() for file in loaded_code())
