"""What others register is held to the same contracts: each example as a user would check it, with --code."""

import subprocess
import sys

import pytest

from tests.shared import EXAMPLES

CHECKED = ("own_block", "own_family", "own_method", "own_metric", "own_prefix", "own_record", "own_task")


@pytest.mark.parametrize("example", CHECKED)
@pytest.mark.parametrize("product", ["pairs", pytest.param("whole", marks=pytest.mark.nightly)])
def test_an_example_keeps_the_contracts(example, product):
    command = [sys.executable, "-m", "pytest", "tests/contracts", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "nightly or not nightly"] if product == "whole" else []
    done = subprocess.run(
        [*command, "--code", EXAMPLES / f"{example}.py"],
        cwd=EXAMPLES.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
