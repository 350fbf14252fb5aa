"""The map by UMAP: neighbours stay neighbours, the same every time. The peers' environment has the package."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polyloom.cli.probe import app
from polyloom.errors import PolyloomError
from polyloom.probe import projection
from polyloom.probe.languages import probe_languages
from polyloom.report.sections import probes
from tests.metrics.peers import PYTHON, needs_peers

SOURCE = Path(projection.__file__).parents[2]
# numpy alone is imported beside the package, so it runs wherever UMAP is installed.
PROGRAM = """
import json, sys
import numpy as np
from polyloom.probe.projection import project
cases = json.loads(sys.stdin.read())
print(json.dumps([[project(np.array(case), "umap").tolist() for _ in range(2)] for case in cases]))
"""


def groups(sizes: tuple[int, ...], *, width: int = 16, spread: float = 0.05) -> list[list[float]]:
    draw = np.random.default_rng(0)
    vectors = np.concatenate([np.eye(width)[i] + spread * draw.normal(size=(n, width)) for i, n in enumerate(sizes)])
    unit: list[list[float]] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).tolist()
    return unit


@needs_peers
@pytest.mark.nightly  # half a minute of compilation
def test_neighbours_stay_neighbours_and_the_map_is_always_the_same():
    sizes = (20, 20, 20)
    cases = [groups(sizes), groups((2, 2)), groups((1,) * 16), [[1.0, 0.0]] * 5, groups((80, 60))]
    command = [PYTHON, "-W", "error::RuntimeWarning", "-c", PROGRAM]
    path, given = {"PYTHONPATH": str(SOURCE)}, json.dumps(cases)
    done = subprocess.run(command, input=given, env=path, capture_output=True, text=True, check=True)
    found = [(np.array(first), np.array(second)) for first, second in json.loads(done.stdout)]
    for case, (first, second) in zip(cases, found, strict=True):
        assert first.shape == (len(case), 2)
        assert np.isfinite(first).all()
        assert np.array_equal(first, second)
    labels = np.repeat(range(3), 20)
    distance = np.linalg.norm(found[0][0][:, None] - found[0][0][None], axis=-1) + np.diag([np.inf] * 60)
    assert (labels[distance.argmin(1)] == labels).all()
    assert not found[3][0].any(), "of equal vectors nothing can be said"


class Fake:
    """What the map asks of UMAP."""

    asked: dict[str, Any]

    def __init__(self, **settings: Any) -> None:
        Fake.asked = settings

    def fit_transform(self, vectors: np.ndarray) -> np.ndarray:
        return np.arange(2 * len(vectors), dtype=np.float32).reshape(-1, 2)


def test_umap_gets_a_seed_and_as_many_neighbours_as_there_are(monkeypatch):
    module = ModuleType("umap")
    module.UMAP = Fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "umap", module)
    monkeypatch.setattr(projection, "find_spec", lambda _: True)
    vectors = {f"l{i}": row for i, row in enumerate(groups((3, 3)))}
    found = probe_languages(vectors, projection="umap")
    assert found["projection"] == "umap"
    assert found["map"]["l1"] == [2.0, 3.0]
    start = Fake.asked.pop("init")
    assert np.allclose(start, projection.flat_map(np.array(list(vectors.values()))))
    assert Fake.asked == {"n_neighbors": 5, "metric": "cosine", "random_state": 0, "n_jobs": 1}
    plain = probe_languages(vectors)
    assert plain["projection"] == "pca"
    assert {k: v for k, v in plain.items() if k not in ("map", "projection")} == {
        k: v for k, v in found.items() if k not in ("map", "projection")
    }
    projection.umap_map(np.array(groups((10, 10))))
    assert Fake.asked["n_neighbors"] == 15
    with pytest.raises(PolyloomError, match=r"3 languages; it needs 4\. Choose pca"):
        probe_languages(dict(list(vectors.items())[:3]), projection="umap")


def test_without_the_package_the_command_says_what_to_install_before_it_loads_anything(monkeypatch, tmp_path):
    monkeypatch.setattr(projection, "find_spec", lambda _: None)
    with pytest.raises(PolyloomError, match=r"umap-learn is not installed. pip install 'polyloom\[umap\]'"):
        CliRunner().invoke(app, ["languages", str(tmp_path), "--projection", "umap"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("chosen", "caption", "command"),
    [
        ({}, "first two principal components", "polyloom probe languages runs/x"),
        ({"projection": "umap"}, "projected by UMAP", "polyloom probe languages runs/x --projection umap"),
    ],
)
def test_the_report_says_what_it_shows_and_how_to_make_it(chosen, caption, command):
    probe = probe_languages({f"l{i}": row for i, row in enumerate(groups((3, 3)))}) | {"projection": "pca"} | chosen
    shown = probes._languages(SimpleNamespace(name="x", shell="runs/x"), probe)  # type: ignore[arg-type]
    assert caption in shown["plane"]
    assert shown["command"] == command
