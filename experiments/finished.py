"""Looking into finished runs: one result for each, which is not made again."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from job import RESULTS

from polyloom.workflows.run import Run


def look_into_runs(measure: Callable[[Run], dict[str, Any]], kind: str, about: str | None) -> None:
    """Measure every run that the command line names; results are JSON in the folder of their kind."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for path in options.runs:
        result: Path = options.results / kind / f"{path.name}.json"
        if result.exists():
            continue
        found = {"run": path.name} | measure(Run.load(path))
        result.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        result.write_text(text + "\n", encoding="utf-8")
        print(path.name, file=sys.stderr)
