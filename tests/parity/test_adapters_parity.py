"""With the same weights, MAD-X here says what AdapterHub's `adapters` 1.3.0 says, to 1e-5.

POLYLOOM_ADAPTERS_PYTHON names the interpreter of a virtual environment with `adapters`; without it all tests here are
skipped. POLYLOOM_PARITY_JSON names a file for the differences seen.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polyloom.nn.blocks import couple, uncouple
from tests.parity.side import (
    BACKBONES,
    LANGUAGES,
    NO_TASK,
    NUM_ROWS,
    SPLITS,
    TASKS,
    Case,
    Pair,
    ask,
    difference,
    side_by_side,
    versions,
)

PYTHON = os.environ.get("POLYLOOM_ADAPTERS_PYTHON", "")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not PYTHON, reason="POLYLOOM_ADAPTERS_PYTHON names no Python with adapters 1.3.0"),
]

WHOLE = [Case(family, invertible) for family in BACKBONES for invertible in (False, True)]
CASES = [*WHOLE, *(Case(family, invertible=True, drop_last_layer=True) for family in BACKBONES)]
MIXED = ["ner/tr", "pos/en", "ner/sw", "pos/tr", "ner/en", "pos/sw"]
CLOSE = 1e-5
WRONG = 1.0
Numbers = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Pair]:
    return ask(PYTHON, tmp_path_factory.mktemp("parity"), CASES)


@pytest.fixture(scope="module")
def seen() -> Iterator[Numbers]:
    numbers: Numbers = {}
    yield numbers
    if path := os.environ.get("POLYLOOM_PARITY_JSON"):
        Path(path).write_text(json.dumps(numbers, indent=1) + "\n")


def test_reference_is_the_release_we_mean() -> None:
    assert versions(PYTHON)["adapters"] == "1.3.0"


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("task", [NO_TASK, *TASKS])
def test_every_stack_alone(pairs: dict[Case, Pair], seen: Numbers, case: Case, task: str) -> None:
    """Language adapter alone (a zero task adapter here, none there) and language with task adapter."""
    pair = pairs[case]
    for language in LANGUAGES:
        rows = [f"{task}/{language}"] * NUM_ROWS
        found = difference(pair.ours(rows), pair.alone(rows))
        seen[f"{case} {task}/{language}"] = found
        assert max(found.values()) <= CLOSE


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mixed_batch_equals_each_row_alone(pairs: dict[Case, Pair], seen: Numbers, case: Case) -> None:
    pair = pairs[case]
    found = difference(pair.ours(MIXED), pair.alone(MIXED))
    seen[f"{case} mixed"] = found
    assert max(found.values()) <= CLOSE
    swapped = [*MIXED[1:], MIXED[0]]
    assert difference(pair.ours(MIXED), pair.alone(swapped))["logits"] > WRONG, "the conditions make no difference"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_own_head_of_transformers(
    pairs: dict[Case, Pair], seen: Numbers, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`BertForMaskedLM` and its like after `adapters.init`: the same, but there the inverse is never applied."""
    pair = pairs[case]
    theirs = pair.theirs("static/en+pos")
    found = difference(pair.ours(["pos/en"] * NUM_ROWS), theirs)
    seen[f"{case} own head"] = found
    assert found["hidden"] <= CLOSE
    assert found["logits"] > WRONG if case.invertible else found["logits"] <= CLOSE
    monkeypatch.setattr("polyloom.nn.blocks.uncouple", lambda hidden, weights: hidden)
    without_inverse = difference(pair.ours(["pos/en"] * NUM_ROWS), theirs)
    assert max(without_inverse.values()) <= CLOSE


@pytest.mark.parametrize("case", [case for case in WHOLE if case.invertible], ids=str)
def test_invertible_adapter(pairs: dict[Case, Pair], seen: Numbers, case: Case) -> None:
    pair = pairs[case]
    for language in LANGUAGES:
        with torch.no_grad():
            weights = pair.model.method.weights([f"pos/{language}"]).block("invertible").by_site()[0]
            coupled, uncoupled = couple(pair.probe, weights), uncouple(pair.probe, weights)
            returned = uncouple(coupled, weights)
        theirs = pair.theirs(f"nice/{language}")
        found = {
            "forward": float((coupled - theirs["forward"]).abs().max()),
            "inverse": float((uncoupled - theirs["inverse"]).abs().max()),
            "round trip": float((returned - pair.probe).abs().max()),
        }
        seen[f"{case} NICE {language}"] = found
        assert max(found.values()) <= CLOSE
        assert (coupled - pair.probe).abs().max() > WRONG


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_mixed_batch_side_by_side(pairs: dict[Case, Pair], case: Case) -> None:
    """A split of stacks is wrong there; a stack on a split is right there, unless there are invertible adapters."""
    _split_of_stacks, stack_on_split = SPLITS
    for result in side_by_side(pairs[case]):
        right_there = result["composition"] == stack_on_split and not case.invertible
        theirs = result["adapters"]["logits"]
        assert theirs <= CLOSE if right_there else theirs > WRONG
        assert max(result["polyloom"].values()) <= CLOSE
