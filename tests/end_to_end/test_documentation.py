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


def test_the_readme_has_commands():
    assert len(commands()) >= 5


@pytest.mark.parametrize("command", commands())
def test_readme_commands_work_in_an_empty_directory(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    polyloom(*shlex.split(command)[1:])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@pytest.mark.usefixtures("load_example")  # what an example registers is gone afterwards
def test_examples_run(path, monkeypatch):
    """In this process, which has imported what takes seconds to import."""
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.nightly
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_as_commands(path):
    subprocess.run([sys.executable, "-W", "error", path], cwd=ROOT, env=ENVIRONMENT, check=True, timeout=120)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_files_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_speak_of_the_project_alone(path):
    assert not re.search(r"/work/|/opt/|/root/|\.\./shared|pypi\.org/simple", path.read_text())
