"""YAML by the rules of 1.2, overrides, and hostile files."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyloom.errors import ConfigError
from polyloom.io.yaml import MAX_BYTES, dump_yaml, parse_yaml, read_settings


def parse(text: str) -> Any:
    return parse_yaml(text, source="recipe.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("3e-4", 3e-4),
        ("1e5", 1e5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("12:30:00", "12:30:00"),
        ("2024-01-31", "2024-01-31"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("'3e-4'", "3e-4"),
        ('"true"', "true"),
        ("en/*", "en/*"),
        ("<<", "<<"),
        ("=", "="),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text: str, value: Any) -> None:
    found = parse(text)
    assert found == value
    assert type(found) is type(value)


def test_norwegian_is_a_language_and_a_key() -> None:
    assert parse("languages: [en, no]\nno: {on: off}") == {"languages": ["en", "no"], "no": {"on": "off"}}


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nb: 2\na: 3", 3, "'a' is there already"),
        ("a:\n  - [1", 2, "expected"),
        ("a: &x 1\nb: *x", 1, "anchors"),
        ("a: 1\nb: *x", 2, "anchors"),
        ("a: !!python/object/apply:os.system [ls]", 1, "tags"),
        ("a: !!str 1", 1, "tags"),
        ("? [a]\n: 1", 1, "a key must be a word"),
        ("a: 1\n---\nb: 1", 2, "another document"),
        ("a: \t- x\n\tb", 1, ""),
        ("[" * 5000, 1, "deep"),
    ],
)
def test_mistakes_name_file_and_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"recipe\.yaml:{line}: .*{says}"):
        parse(text)


def test_all_double_keys_are_reported() -> None:
    with pytest.raises(ConfigError) as error:
        parse("a: 1\na: 2\nb: {c: 1, c: 2}")
    assert len(error.value.mistakes) == 2


def test_a_control_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="special characters"):
        parse("a: \x00")


def test_an_alias_bomb_is_refused_at_once() -> None:
    bomb = "a: &a [x]\n" + "\n".join(f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    with pytest.raises(ConfigError, match="anchors"):
        parse(bomb)


plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="ascii")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abno12", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcno-_", min_size=1).filter(lambda key: key.strip("-")), plain, max_size=4))
def test_what_is_written_is_read_back(settings: dict[str, Any]) -> None:
    assert parse(dump_yaml(settings)) == settings


@pytest.mark.parametrize("text", ["1e5", "no", "0o17", "true", "null", "~", "", ".5", "-", "a: b", "*x", "&x", "#"])
def test_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    assert parse(dump_yaml({"key": text})) == {"key": text}


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_overrides_follow_the_same_rules(tmp_path: Path) -> None:
    path = write(tmp_path, "method: {name: x, size: 3}\noptim:\n")
    overrides = ["method.size=204", "optim.lr=5e-5", "a.b.c=no", "languages=[en, no]", "name=a=b", "gone="]
    assert read_settings(path, overrides) == {
        "method": {"name": "x", "size": 204},
        "optim": {"lr": 5e-5},
        "a": {"b": {"c": "no"}},
        "languages": ["en", "no"],
        "name": "a=b",
        "gone": None,
    }


def test_conditions_are_keys_of_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "data: {train: {mlm/*: a.txt, pos/en: b.conllu}}")
    assert read_settings(path, ["data.train.mlm/*=null", "data.train.pos/en=c"]) == {
        "data": {"train": {"mlm/*": None, "pos/en": "c"}}
    }


def test_all_wrong_overrides_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x")
    wrong = ["lr", "=3", "a..b=1", "name.inner=1", "a=[1", "a b=1"]
    with pytest.raises(ConfigError) as error:
        read_settings(path, wrong)
    assert len(error.value.mistakes) == len(wrong)
    assert all(f"override {text!r}" in mistake for text, mistake in zip(wrong, error.value.mistakes, strict=True))
    assert "name is the text 'x'" in str(error.value)


@pytest.mark.parametrize("text", ["", "just text", "[1, 2]", "3"])
def test_a_recipe_is_a_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="expected keys and values"):
        read_settings(write(tmp_path, text))


def test_a_file_that_is_not_there_has_neighbors(tmp_path: Path) -> None:
    write(tmp_path, "a: 1")
    with pytest.raises(ConfigError, match=r"no such file. Did you mean 'recipe.yaml'\?"):
        read_settings(tmp_path / "recip.yaml")
    with pytest.raises(ConfigError, match="Neither is there a folder"):
        read_settings(tmp_path / "nowhere" / "recipe.yaml")


def test_a_file_must_be_text_of_bounded_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="larger than"):
        read_settings(write(tmp_path, "a" * (MAX_BYTES + 1)))
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: 1\nb: \xe9")
    with pytest.raises(ConfigError, match=r"latin\.yaml:2: not UTF-8"):
        read_settings(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path)
