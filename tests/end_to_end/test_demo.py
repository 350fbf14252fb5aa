"""The demo, with fewer steps than users get: every command that it shows works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import polyloom
from polyloom.cli import app, demo
from polyloom.config import load_recipe

ROOT = Path(__file__).parents[2]


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
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "bame" in done.stdout
    assert "hyper-stack" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
