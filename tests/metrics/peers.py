"""How the tests reach real data and the programs of others."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("POLYLOOM_ADAPTERS_PYTHON", "")

needs_peers = pytest.mark.skipif(
    not PYTHON, reason="POLYLOOM_ADAPTERS_PYTHON names no Python with udtools, seqeval, ufal, ctranslate2"
)


def ask(directory: Path, kind: str, cases: list[Any]) -> list[Any]:
    """Let `reference.py` judge all cases of a kind in its own virtual environment."""
    request, answers = directory / "request.json", directory / "answers.json"
    request.write_text(json.dumps({kind: cases}))
    subprocess.run([PYTHON, Path(__file__).with_name("reference.py"), request, answers], check=True)
    answered: list[Any] = json.loads(answers.read_text())[kind]
    return answered
