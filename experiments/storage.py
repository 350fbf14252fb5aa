"""Read and write raw results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyloom.io.atomic import write_text_atomic

RESULTS = Path(__file__).parent / "results"


def read_result(path: Path) -> dict[str, Any]:
    """Read a raw result; return an empty dictionary if there is none."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return result


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a raw result atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")
