"""The demo, with fewer steps than users get: every command that it shows works."""

import pytest
from typer.testing import CliRunner

from polyloom.cli import app, demo


def test_the_demo_goes_through(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "datasets"))
    monkeypatch.delenv("POLYLOOM_DATA", raising=False)
    monkeypatch.setattr(demo, "STEPS", {"read": 30, "train": 20, "grow": 8})
    folder = tmp_path / "demo"
    result = CliRunner().invoke(app, ["demo", "-o", str(folder), "--no-show"])
    assert result.exit_code == 0, result.output
    for path in ("report.html", "pos-baru/polyloom.json", "grown/recipe.yaml", "hyperx/evaluations/test.json"):
        assert (folder / path).exists(), path
    assert result.output.count("$ polyloom ") == 12
    page = (folder / "report.html").read_text()
    assert "hyperx" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
