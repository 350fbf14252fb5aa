"""One batch with two languages: `adapters` 1.3.0 and polyloom, against each language run alone.

    python benchmarks/mixed_batch_vs_adapters.py --adapters-python ../venv-adapters/bin/python --json out.json

Both sides have the same backbone, the same MAD-X weights (large, random) and the same inputs; the right answer is what
`adapters` itself says when it runs each language's stack alone. `tests/parity` asserts the same comparison.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.parity.side import BACKBONES, Case, ask, side_by_side, versions


def main() -> None:
    """Compare, print a table and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters-python", required=True, help="Python of a virtual environment with adapters 1.3.0")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    cases = [Case(family, invertible) for family in BACKBONES for invertible in (False, True)]
    with tempfile.TemporaryDirectory() as directory:
        pairs = ask(options.adapters_python, Path(directory), cases)
    results = [result for pair in pairs.values() for result in side_by_side(pair)]
    report = {
        "measure": "largest absolute difference of a mixed batch from adapters' own answer for each language alone",
        "versions": {"adapters": versions(options.adapters_python), "polyloom": versions(sys.executable)},
        "results": results,
    }
    table = Table(title="Largest error of the logits in a batch of three English and three Swahili rows")
    for column in ("backbone", "invertible", "composition in adapters"):
        table.add_column(column)
    for column in ("adapters 1.3.0", "polyloom"):
        table.add_column(column, justify="right")
    for result in results:
        errors = [f"{result[side]['logits']:.2g}" for side in ("adapters", "polyloom")]
        table.add_row(result["backbone"], "yes" if result["invertible"] else "no", result["composition"], *errors)
    Console(width=110).print(table)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
