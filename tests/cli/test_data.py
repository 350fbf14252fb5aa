"""``polyloom data`` as its users meet it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from polyloom.cli import main
from polyloom.io.yaml import dump_yaml, parse_yaml
from tests.shared import DATA, Done, Run, needs_data

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``polyloom data`` in this process, on the real corpora."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("POLYLOOM_DATA", str(DATA))

    def run_here(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["polyloom", "data", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run_here


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[str]:
    """The standard library's file server, in front of the real corpora."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(DATA)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("command", ["list", "check", "fetch", "prepare"])
def test_every_command_shows_an_example(run, command):
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"Example: polyloom data {command}" in " ".join(done.stdout.split())


def test_listing_imports_neither_torch_nor_transformers(tmp_path):
    code = (
        "import sys\nfrom polyloom.cli.data import app\n"
        "try: app(['list', '--json'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules], file=sys.stderr)"
    )
    environment = os.environ | {"POLYLOOM_DATA": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    rows = json.loads(done.stdout)
    assert len(rows) >= 140  # nothing is here, but the catalogue's treebanks can be fetched
    assert not any(row["here"] for row in rows)


@needs_data
def test_list_counts_what_is_here(run):
    done = run("list")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "120 of 120" in lines["ud"]
    assert "14 NC" in lines["ud"]
    assert " 47 " in lines["wikiann"]
    assert str(DATA) in done.stderr


@needs_data
def test_list_tells_language_splits_and_licence(run):
    rows = json.loads(run("list", "--language", "yo,yor", "--json").stdout)
    names = ["ud:yo_ytb", "wikiann:yo", "masakhaner2:yor", "leipzig:yo", "storybooks:yo"]
    assert [row["name"] for row in rows] == names
    splits = ["train", "dev", "test"]
    assert [row["here"] for row in rows] == [["test"], splits, splits, ["all"], ["all"]]
    assert [row["non_commercial"] for row in rows] == [False, False, True, False, False]
    assert all(row["bytes"] > 0 for row in rows)
    done = run("list", "ud", "--language", "tr")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [
        "ud:tr_boun", "ud:tr_framenet", "ud:tr_imst", "ud:tr_pud",
    ]  # fmt: skip


def test_list_of_what_is_not_there_is_a_hint(run):
    done = run("list", "udd")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Did you mean 'ud'?" in done.stderr


@needs_data
def test_check_shows_whole_numbers_and_what_to_worry_about(run):
    done = run("check", "ud:tr_boun/dev", "ud:tr_boun/test", "wikiann:yo/train", "wikiann:yo/test")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["ud:tr_boun/dev", "pos", "validation", "979", "12,289", "30", "65", "15", "3"]
    assert "8 of 50 sentences (16 %) of wikiann:yo/test are also in wikiann:yo/train" in " ".join(done.stdout.split())
    assert "…" not in done.stdout


@needs_data
def test_check_prints_json_alone(run):
    done = run("check", "ud:tr_pud/test[:20]", "--task", "dep", "--json")
    (facts,) = json.loads(done.stdout)["corpora"]
    assert (facts["name"], facts["task"], facts["sentences"]) == ("ud:tr_pud/test[:20]", "dep", 20)
    assert facts["labels"]["root"] == 20


@needs_data
def test_strict_turns_issues_into_a_failure(run):
    assert run("check", "wikiann:yo/train", "wikiann:yo/test", "--strict").returncode == 1
    assert run("check", "ud:tr_pud/test", "--strict").returncode == 0


@needs_data
def test_check_of_a_recipe_knows_roles_and_conditions(run, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    settings = parse_yaml((ROOT / "src/polyloom/recipes/hyperx/mbert-small.yaml").read_text(), source="recipe")
    settings["data"] = {
        "root": str(DATA),
        "train": {"ner/en": "wikiann:en/dev[:100]"},
        "test": {"ner/yo": ["wikiann:yo/test", "masakhaner2:yor/test"]},
    }
    recipe.write_text(dump_yaml(settings))
    done = run("check", str(recipe), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)["corpora"]
    assert [(one["name"], one["task"], one["language"], one["role"]) for one in facts] == [
        ("wikiann:en/dev[:100]", "ner", "en", "train"),
        ("wikiann:yo/test", "ner", "yo", "test"),
        ("masakhaner2:yor/test", "ner", "yo", "test"),
    ]


@pytest.mark.parametrize("name", ["a[/b]c", "[bold]a", "a\\[/]", "a\u2028b", "a\u0085b", "a b"])
def test_check_reads_a_file_of_any_name(run, tmp_path, name):
    file = tmp_path / f"{name}.conllu"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("1\ta\u2028\u0085b\t_\tX\t_\t_\t0\troot\t_\t_\n\n")
    done = run("check", str(file), "--task", "pos", "--json")
    assert done.returncode == 0
    (facts,) = json.loads(done.stdout)["corpora"]
    assert (facts["name"], facts["sentences"], facts["words"]["total"]) == (str(file), 1, 1)
    assert run("check", str(file), "--task", "pos").returncode == 0
    recipe = tmp_path / "recipe.yaml"
    settings = parse_yaml((ROOT / "src/polyloom/recipes/hyperx/mbert-small.yaml").read_text(), source="recipe")
    settings["data"] = {"train": {"ner/en": f"{file}"}}
    recipe.write_text(dump_yaml(settings))
    assert parse_yaml(recipe.read_text(), source="recipe") == settings


def test_check_of_a_file_must_be_told_its_task(run, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    done = run("check", str(tmp_path / "a.txt"))
    assert done.returncode == 1
    assert "Add --task" in done.stderr
    assert "2" in run("check", str(tmp_path / "a.txt"), "--task", "mlm").stdout.splitlines()[1].split()


@needs_data
def test_fetch_prints_paths_on_stdout_and_licences_on_stderr(run, tmp_path, mirror):
    names = ("xnli:de/dev", "wikiann:yo")
    done = run("fetch", *names, "--mirror", mirror, "--root", str(tmp_path))
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert [path.name for path in paths] == ["dev-de.tsv.xz", "dev.tsv.xz", "test.tsv.xz", "train.tsv.xz"]
    assert all(path.read_bytes() == (DATA / path.relative_to(tmp_path)).read_bytes() for path in paths)
    assert "CC BY-NC 4.0, not for commercial use" in done.stderr
    assert run("check", "wikiann:yo/test", "--root", str(tmp_path)).returncode == 0


@needs_data
def test_fetch_of_what_a_mirror_does_not_have_is_one_paragraph(run, tmp_path, mirror):
    done = run("fetch", "wikiann:yoo/test", "--mirror", mirror, "--root", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Did you mean 'wikiann:yo/test'?" in done.stderr
