"""README's way from corpora to a matrix, command by command, as a new user would take it.

What a user has from the network comes from this machine: corpora from a local server with the layout of the data root,
the backbone from a Hugging Face cache that holds another, smaller model under the name that the recipe asks for.
"""

import json
import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from polyloom.evaluate.matrix import Matrix
from polyloom.types import Condition
from tests.shared import DATA, needs_data

ROOT = Path(__file__).parents[1]
BACKBONE = "distilbert/distilbert-base-multilingual-cased"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def mirror():
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(DATA)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def hub_cache(folder: Path, pretrained: Path) -> Path:
    """A cache as `huggingface_hub` keeps it, with a model that was never downloaded."""
    repository = folder / "hub" / f"models--{BACKBONE.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in pretrained.iterdir():
        (snapshot / file.name).symlink_to(file)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    return folder


@needs_data
@pytest.mark.timeout(1200)
def test_the_first_hour(pretrained, mirror, tmp_path):
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HOME": str(hub_cache(tmp_path / "hf", pretrained)),
        "HF_HUB_OFFLINE": "1",
        "POLYLOOM_DATA": str(tmp_path / "data"),
        "POLYLOOM_CACHE": str(tmp_path / "cells"),
        "POLYLOOM_MIRROR": mirror,
    }
    printed = {}
    for command in block.strip().splitlines():
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed[command] = done.stdout
    # What was trained has learnt, and what it learnt in English holds elsewhere.
    for run in ("hyperx", "madx"):
        matrix = Matrix.read(tmp_path / "runs" / run / "evaluations" / "test.json")
        for language, share_of_most_frequent_tag in (("de", 25), ("tr", 35), ("mt", 25)):
            cell = matrix.cells[Condition("pos", language)]
            assert cell.zero_shot
            assert cell.scores[0].value > share_of_most_frequent_tag + 10
        events = [json.loads(line) for line in (tmp_path / "runs" / run / "log.jsonl").read_text().splitlines()]
        losses = [event["losses"]["pos"] for event in events if "pos" in event.get("losses", {})]
        assert losses[-1] < losses[0] / 2
    *_, table, comparison, tagged = printed.values()
    assert table.startswith("| language |")
    assert "de" in comparison
    words = [line.split("\t")[0] for line in tagged.strip().splitlines()]
    assert words == ["Die", "Katze", "schläft", "auf", "dem", "Sofa", "."]
