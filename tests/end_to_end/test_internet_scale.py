"""The commands of docs/explanation/internet-scale.md print what it says."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.test_documentation import ENVIRONMENT, ROOT

PAGE = (ROOT / "docs" / "explanation" / "internet-scale.md").read_text()


@pytest.mark.nightly  # plans for many languages
def test_the_plan_prints_what_the_page_says(tmp_path: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    (printed,) = re.findall(r"```\n(The run.*?)```", PAGE, flags=re.DOTALL)
    lines = done.stdout.decode().splitlines()
    assert not [line for line in printed.splitlines() if line not in lines]
    text = " ".join(done.stdout.decode().split())
    for fact in ("1.26e+20 operations: 351.1 hours", "8,469.5 GB of datasets", "12.9 GB in every process"):
        assert fact in text
