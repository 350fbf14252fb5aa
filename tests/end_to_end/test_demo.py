"""The demo, with fewer steps than users get: every command that it shows works."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import polyloom
from polyloom.cli import app, demo
from polyloom.config import load_recipe
from tests.end_to_end.test_first_hour import run_bash, run_here, script
from tests.shared import EXAMPLES, free_port

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)


def run_python(document: str, folder: Path) -> str:
    """Run the first block of Python in a document."""
    command = [sys.executable, "-W", "error", "-c", blocks(document, "python")[0]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def serve_and_ask(folder: Path) -> None:
    """Run README's block about the server, at a port that is free."""
    (block,) = (block for block in blocks("README.md", "sh") if "polyloom serve" in block)
    port = free_port()
    serve, ask = block.replace("8000", str(port)).strip().splitlines()
    server = subprocess.Popen([sys.executable, "-m", *shlex.split(serve)], cwd=folder)
    ready = ["curl", "--silent", "--fail", f"localhost:{port}/readyz"]
    while subprocess.run(ready, check=False, capture_output=True).returncode:
        assert server.poll() is None
        time.sleep(0.1)
    asked = subprocess.run(shlex.split(ask), capture_output=True, text=True, check=True)
    server.terminate()
    server.wait(timeout=60)
    assert [row["condition"] for row in json.loads(asked.stdout)["results"]] == ["pos/boza", "pos/bame"]
    assert asked.stdout.count('"labels"') == 2


def run_script(text: str, folder: Path) -> str:
    """Run lines of a shell; the first that fails ends them."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_demo_goes_through(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "datasets"))
    monkeypatch.delenv("POLYLOOM_DATA", raising=False)
    monkeypatch.setattr(demo, "STEPS", {"pretrain": 30, "add": 8})
    short = {name: dict.fromkeys(stages, 12 // len(stages)) for name, stages in demo.STAGES.items()}
    assert len({sum(stages.values()) for stages in demo.STAGES.values()}) == 1, "both methods have as many steps"
    monkeypatch.setattr(demo, "STAGES", short)
    folder = tmp_path / "polyloom-demo"
    result = CliRunner().invoke(app, ["demo", "-o", str(folder), "--no-show"])
    assert result.exit_code == 0, result.output
    for path in ("report.html", "pos-baru/polyloom.json", "with-baru/recipe.yaml", "hyper-stack/evaluations/test.json"):
        assert (folder / path).exists(), path
    assert result.output.count("$ polyloom ") == 12
    for name in short:
        run, recipe = polyloom.load(folder / name), load_recipe(folder / f"{name}.yaml")
        assert [stage.name for stage in run.model.stages()] == list(recipe.stages), "every stage has its own steps"
    assert (
        "nearest languages are bame and boza" in result.output or "nearest languages are boza and bame" in result.output
    )
    assert "family" in result.output
    page = (folder / "report.html").read_text()
    assert "bame" in run_python("README.md", tmp_path)
    assert "TagPrediction" in run_python("docs/serving.md", tmp_path)
    serve_and_ask(tmp_path)
    (third,) = (line for line in blocks("docs/index.md", "sh")[0].splitlines() if line.startswith("echo"))
    assert run_script(third, tmp_path).startswith("hitpi\t")
    served = run_script((EXAMPLES / "serve.sh").read_text().replace("8000", str(free_port())), tmp_path)
    assert served.count("hitpi\t") == 1
    assert "TagPrediction(hitpi/" in served
    assert "polyloom_requests_total" in served
    monkeypatch.chdir(tmp_path)
    for command in script("add_language.sh"):
        line = command.replace(" -o runs/", " --steps 4 -o runs/")
        added = run_bash(line) if line.startswith("cmp") else run_here(line)
    assert (tmp_path / "before.jsonl").read_text() == (tmp_path / "after.jsonl").read_text() != ""
    assert added.startswith("yitep\t")
    assert "hyper-stack" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
