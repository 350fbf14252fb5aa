"""What strangers wrote reaches a terminal and a file without effect."""

import json

import pytest

from polyloom.conditions import Condition
from polyloom.errors import ConfigError
from polyloom.export.adapter import Adapter
from polyloom.export.card import card
from polyloom.io.sealed import read_sealed, seal
from polyloom.io.untrusted import is_printable, printable
from polyloom.tasks import build_task
from polyloom.weights import Weights
from tests.strangers.conftest import call

EVIL = ["A\nB", "A\tB", "\x1b[31mA", "\x9b31mA", "A\u2028B", "A\u202eB", "A\x85B", "\ud800"]


@pytest.mark.parametrize("label", EVIL)
def test_labels_cannot_forge_lines_or_move_a_cursor(label):
    assert not is_printable(label)
    assert is_printable(printable(label))
    with pytest.raises(ConfigError, match="control character"):
        build_task("pos", ["NOUN", label], width=4)


@pytest.mark.parametrize("label", ["NOUN", "B-PER", "نام‌ها", "क्ष", "名詞", "a b", "é"])
def test_labels_of_all_scripts_are_accepted(label):
    assert build_task("pos", [label, "X"], width=4).labels == (label, "X")
    assert printable(label) == label


def test_a_manifest_with_such_a_label_is_refused_and_shown_escaped(copied, capsys):
    adapter = copied("own") / "pos" / "aa"
    manifest = json.loads(read_sealed(adapter / "polyloom.json"))
    manifest["adapter"]["labels"][0] = "\x1b]0;owned\x07\nNOUN"
    (adapter / "polyloom.json").write_text(seal(json.dumps(manifest)))
    assert call("predict", adapter, "pos/aa") == 1
    said = capsys.readouterr().err
    assert "control character" in said
    assert is_printable(said.replace("\n", ""))


def test_file_names_are_escaped_on_a_terminal(tmp_path, capsys):
    assert call("predict", tmp_path / "a\x1b[2Jb", "pos/aa") == 1
    said = capsys.readouterr().err
    assert "\\x1b[2J" in said
    assert "\x1b" not in said


def test_names_in_recipes_have_no_control_characters(tmp_path, capsys):
    recipe = tmp_path / "r.yaml"
    recipe.write_text('languages: ["a\\eb", en]\ntasks: {pos: {}}\n')
    assert call("config", "check", recipe) == 1
    said = capsys.readouterr()
    assert "control character" in said.out + said.err
    assert "\x1b" not in said.out + said.err


def test_a_card_shows_names_as_they_are():
    """Neither Markdown nor YAML of a card has a line or a link that a name brought."""
    evil = "x`\n---\nlicense: mit\n# Title [a](http://b) <script>"
    scores = [{"metric": evil, "value": 1.0, "signature": evil}]
    about = {"method": evil, "backbone": evil, "scores": scores, "licences": {evil: evil}}
    adapter = Adapter(
        Condition("pos", "aa"), Weights(()), labels=("`a", "b"), identity={"model_type": evil}, about=about
    )
    text = card(adapter, file_format="polyloom", path="a")
    head, body = text.split("\n---\n", 1)
    assert "\nlicense" not in head
    assert not [line for line in body.splitlines() if line.startswith(("---", "license", "# T"))]
    assert "](" not in body
    assert "<script" not in body
