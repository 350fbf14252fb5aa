"""Two minutes of what `benchmarks/soak.py` does for longer: memory stays, and nothing fails (R16)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.timeout(600)
def test_memory_stays_while_conditions_come_and_go(tmp_path):
    """50,000 languages in a cache of 16 MB. Other tests run beside it, so latency is not judged here."""
    command = [sys.executable, SOAK, "--minutes", "2", "--json", tmp_path / "soak.json"]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads((tmp_path / "soak.json").read_text())["summary"]
    assert found["failed"] == 0
    assert found["rows"] > 2000, found
    assert found["megabytes_grown"] < 20, found
