"""What the documents show is run: README's commands and code, every example, every link between files."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("polyloom")]


def test_the_readme_has_commands_and_code():
    assert len(commands()) >= 5
    assert len(blocks("python")) >= 1


@pytest.mark.parametrize("command", commands())
def test_readme_commands_work(command):
    subprocess.run(shlex.split(command), cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("code", blocks("python"))
def test_readme_code_works(code, tmp_path):
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=120)


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_examples_run(path):
    subprocess.run([sys.executable, "-W", "error", path], cwd=ROOT, env=ENVIRONMENT, check=True, timeout=120)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_files_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_speak_of_the_project_alone(path):
    assert not re.search(r"/work/|/opt/|/root/|\.\./shared|pypi\.org/simple", path.read_text())
