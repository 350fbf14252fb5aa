"""JSON that every parser reads."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyloom
from polyloom.errors import PolyloomError
from polyloom.io.plain_json import NOTE, to_json
from polyloom.rundir import RunDir

SOURCE = Path(polyloom.__file__).parent


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_everything_written_is_json_and_utf8(value):
    json.loads(to_json(value).encode(), parse_constant=refuse)


def test_a_number_that_is_not_finite_is_null_with_a_note():
    assert json.loads(to_json({"a": [math.nan, 1.5, -math.inf]})) == {"a": [None, 1.5, None], "note": NOTE}
    assert json.loads(to_json([math.inf])) == [None]
    assert to_json({"a": "é", "b": 1.0}) == '{"a": "é", "b": 1.0}'
    assert json.loads(to_json({"a": "\ud800"})) == {"a": "\ud800"}


def test_what_is_nested_too_deep_is_a_typed_error():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(PolyloomError, match="nested too deep"):
        to_json(value)


def test_a_log_holds_no_nan(tmp_path):
    run = RunDir(tmp_path)
    run.note({"event": "row-step", "loss": math.nan})
    found = json.loads(run.log.read_text(), parse_constant=refuse)
    assert found.items() >= {"event": "row-step", "loss": None, "note": NOTE}.items()


@pytest.mark.parametrize(
    "file", [*(SOURCE / "cli").rglob("*.py"), SOURCE / "evaluate/saved.py"], ids=lambda path: path.name
)
def test_commands_and_stored_scores_use_it(file):
    assert "json.dump" not in file.read_text()
