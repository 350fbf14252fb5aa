"""What the documents show is run: README's commands and code, every example, every link between files."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import polyloom

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def section(heading: str) -> str:
    return README.split(f"## {heading}\n")[1].split("\n## ")[0]


def commands() -> list[str]:
    """The commands that need neither data nor a run; test_first_hour.py and test_demo.py run the others."""
    lines = re.findall(r"^polyloom .*", section("Plan before you train"), flags=re.MULTILINE)
    return [line for line in lines if line]


def test_readme_commands_work_in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(commands()) >= 5
    wrong = []
    for command in commands():
        try:
            polyloom(*shlex.split(command)[1:])
        except AssertionError as error:
            wrong.append(f"{command}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@pytest.mark.usefixtures("load_example")  # what an example registers is gone afterwards
def test_examples_run(path, monkeypatch):
    """In this process, which has imported what takes seconds to import."""
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.nightly
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_as_commands(path):
    subprocess.run([sys.executable, "-W", "error", path], cwd=ROOT, env=ENVIRONMENT, check=True)


def test_links_between_files_lead_somewhere():
    wrong, checked = [], 0
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                checked += 1
                if not (path.parent / target).exists():
                    wrong.append(f"{path.relative_to(ROOT)}: {target}")
    assert checked > 100
    assert not wrong, "\n".join(wrong)


def test_documents_speak_of_the_project_alone():
    machine = re.compile(r"/work/|/opt/|/root/|\.\./shared|pypi\.org/simple")
    lines = [(path.relative_to(ROOT), line) for path in DOCUMENTS for line in path.read_text().splitlines()]
    wrong = [f"{path}: {line}" for path, line in lines if machine.search(line)]
    assert not wrong, "\n".join(wrong)
