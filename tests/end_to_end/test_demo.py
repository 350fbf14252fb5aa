"""The demo, with fewer steps than users get: every command that it shows works."""

import pytest
from typer.testing import CliRunner

from polyloom.cli import app, demo
from polyloom.config import load_recipe


def test_the_demo_goes_through(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "datasets"))
    monkeypatch.delenv("POLYLOOM_DATA", raising=False)
    monkeypatch.setattr(demo, "STEPS", {"pretrain": 30, "train": 20, "add": 8})
    folder = tmp_path / "demo"
    result = CliRunner().invoke(app, ["demo", "-o", str(folder), "--no-show"])
    assert result.exit_code == 0, result.output
    for path in ("report.html", "pos-baru/polyloom.json", "with-baru/recipe.yaml", "hyperx/evaluations/test.json"):
        assert (folder / path).exists(), path
    assert result.output.count("$ polyloom ") == 12
    recipes = [load_recipe(folder / f"{name}.yaml") for name in ("hyperx", "madx")]
    budgets = [[s.train.steps or 0 for s in r.stages.values()] or [r.train.steps or 0] for r in recipes]
    assert sum(budgets[0]) == sum(budgets[1]), "both methods are trained for the same number of steps"
    assert (
        "nearest languages are bame and boza" in result.output or "nearest languages are boza and bame" in result.output
    )
    assert "family" in result.output
    page = (folder / "report.html").read_text()
    assert "hyperx" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
