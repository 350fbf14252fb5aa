"""The run of a stranger reads its own folder and the data root, and nothing else unless the user allows it."""

import json

import pytest

import polyloom as pl
from polyloom.errors import AccessError
from polyloom.io.sealed import read_sealed, seal
from polyloom.rundir import RunDir
from tests.strangers.conftest import call
from tests.tiny_run import conllu

SECRET = "hunter"


@pytest.fixture
def secret(tmp_path):
    """A file of the user that has nothing to do with the run, but could be read as a corpus."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "notes.conllu").write_text(conllu("aa", ["ba", "do", "fi"]).replace("ba", SECRET))
    (folder / "notes.txt").write_text(f"{SECRET} ba do\n")
    return folder


def rename(run, **data):
    """Change the corpora of a run, as whoever sends it can."""
    directory = RunDir(run)
    text = read_sealed(directory.recipe)
    recipe = pl.load_recipe(directory.recipe)
    for split, corpora in data.items():
        for condition, name in corpora.items():
            (before,) = getattr(recipe.data, split)[condition]
            assert before in text
            text = text.replace(before, json.dumps(name))
    directory.recipe.write_text(seal(text))


def settle(run, theirs):
    """Let a run name its backbone and corpora where they are now: in its folder."""
    directory = RunDir(run)
    directory.recipe.write_text(seal(read_sealed(directory.recipe).replace(str(theirs / "run"), str(run))))


@pytest.mark.parametrize("form", ["{}/notes.conllu", "{}/notes.conllu#word,_,tag", "{}/../home/notes.conllu"])
def test_a_report_shows_no_file_outside_the_run(copied, theirs, secret, tmp_path, form, capsys):
    run = copied("run")
    settle(run, theirs)
    assert call("report", run, "-o", tmp_path / "before.html") == 0
    rename(run, test={"pos/aa": form.format(secret)})
    assert call("report", run, "-o", tmp_path / "after.html") == 0
    page = (tmp_path / "after.html").read_text()
    assert SECRET not in page
    assert "--allow-path" in page  # in the place of the example
    assert call("evaluate", run, "--tasks", "pos") == 1
    assert f"names {form.format(secret).partition('#')[0]}, which is outside its folder" in capsys.readouterr().err
    assert call("probe", "swap", run, "--task", "pos") == 1
    assert "--allow-path" in capsys.readouterr().err


def test_a_link_and_braces_lead_no_further(copied, theirs, secret, tmp_path, capsys):
    run = copied("run")
    settle(run, theirs)
    (run / "link.conllu").symlink_to(secret / "notes.conllu")
    rename(run, test={"pos/aa": str(run / "link.conllu"), "pos/bb": str(secret) + "/{notes,notes}.txt#aa,bb"})
    for language in ("aa", "bb"):
        assert call("evaluate", run, "--tasks", "pos", "--languages", language) == 1
        said = capsys.readouterr()
        assert "--allow-path" in said.err
        assert SECRET not in said.out + said.err


def test_what_the_user_allows_is_read(copied, theirs, secret, tmp_path):
    run = copied("run")
    settle(run, theirs)
    rename(run, test={"pos/aa": str(secret / "notes.conllu")})
    only = ("--tasks", "pos", "--languages", "aa")
    assert call("evaluate", run, *only, "--allow-path", tmp_path / "elsewhere") == 1
    assert call("evaluate", run, *only, "--allow-path", secret) == 0


def test_a_backbone_outside_the_run_is_asked_for(copied, theirs, capsys):
    run = copied("run")  # its recipe names the backbone of the other machine
    assert call("predict", run, "pos/aa") == 1
    assert f"names {theirs / 'run' / 'backbone'}, which is outside its folder" in capsys.readouterr().err
    with pytest.raises(AccessError):
        pl.load(run)
    assert pl.load(run, allow=[theirs / "run"]).predict("ba do fi", "pos/aa")


def test_own_runs_read_what_they_name(copied, theirs, tmp_path):
    """Also after they were moved, and with the corpora that a new language brought."""
    run = copied("run")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RunDir(run).recipe_text())
    mine = pl.train(recipe, into=tmp_path / "mine")
    mine.path.rename(tmp_path / "moved")
    assert call("evaluate", tmp_path / "moved", "--tasks", "pos") == 0
    text = theirs / "run" / "aa-train.txt"
    assert call("add", "language", tmp_path / "moved", "dd", "--text", text, "--steps", 2, "-o", tmp_path / "dd") == 0
    assert call("evaluate", tmp_path / "dd", "--tasks", "pos") == 0


def test_a_language_added_to_the_run_of_a_stranger_allows_nothing(copied, theirs, secret, tmp_path):
    run = copied("run")
    settle(run, theirs)
    rename(run, test={"pos/aa": str(secret / "notes.conllu")})
    text = run / "aa-train.txt"
    assert call("add", "language", run, "dd", "--text", text, "--steps", 2, "-o", tmp_path / "dd") == 0
    assert call("evaluate", tmp_path / "dd", "--tasks", "pos", "--allow-path", run) == 1


def test_an_adapter_names_no_folder_outside_its_own(copied, theirs, capsys):
    adapter = copied("own") / "pos" / "aa"
    assert call("predict", adapter, "pos/aa") == 0
    assert call("predict", adapter.parents[1], "pos/aa") == 0
    manifest = json.loads(read_sealed(adapter / "polyloom.json"))
    for name in (str(theirs / "own" / "backbone"), "../../../../theirs0/own/backbone"):
        manifest["about"]["settings"]["name"] = name
        (adapter / "polyloom.json").write_text(seal(json.dumps(manifest)))
        assert call("predict", adapter, "pos/aa") == 1
    assert call("predict", adapter, "pos/aa", "--allow-path", theirs / "own") in (0, 1)
