"""Push and pull against a server that speaks what the Hub speaks of it."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from polyloom.conditions import Condition
from polyloom.errors import ExportError
from polyloom.export.adapter import Adapter, read_adapter, write_adapter
from polyloom.export.hub import pull, push
from polyloom.weights import Block, Site, Weights

COMMIT = "1" * 40


class Hub(BaseHTTPRequestHandler):
    """One repository in memory."""

    files: dict[str, bytes]
    broken: set[str]

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: bytes = b"{}", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = f"http://{self.headers['Host']}/me/adapters"
        if self.path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            found = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]
            self.answer(json.dumps({"files": found}).encode())
        elif self.path.endswith("/commit/main"):
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            self.answer(json.dumps({"commitUrl": f"{url}/commit/{COMMIT}", "commitOid": COMMIT}).encode())
        else:
            self.answer(json.dumps({"url": url}).encode())

    def do_GET(self) -> None:
        if "/resolve/" in self.path:
            name = self.path.partition(f"/resolve/{COMMIT}/")[2]
            if name in self.broken:
                self.answer(b"{}", 403)
                return
            content = self.files[name]
            etag = f'"{hashlib.sha1(content, usedforsecurity=False).hexdigest()}"'
            self.answer(content, ETag=etag, X_Repo_Commit=COMMIT)
        elif "me/adapters" not in self.path:
            self.answer(b'{"error": "Repository not found"}', 404, X_Error_Code="RepoNotFound")
        elif "/tree/" in self.path:
            tree = [{"type": "file", "path": p, "size": len(c), "oid": "0" * 40} for p, c in self.files.items()]
            self.answer(json.dumps(tree).encode(), Content_Type="application/json")
        else:
            siblings = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps({"id": "me/adapters", "sha": COMMIT, "siblings": siblings}).encode())

    do_HEAD = do_GET


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    handler = type("Handler", (Hub,), {"files": {}, "broken": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    block = Block("lora", "projections", (Site("encoder", 0),), {"q_down": torch.randn(1, 1, 2, 4)})
    return write_adapter(Adapter(Condition("pos", "tr"), Weights((block,))), tmp_path / "adapter", card="# pos/tr")


def test_what_is_pushed_is_what_is_pulled(hub, adapter, tmp_path):
    assert push(adapter, "me/adapters").endswith(COMMIT)
    assert set(hub.files) == {"README.md", "polyloom.json", "weights.safetensors"}
    hub.files["evil.py"] = b"import os"
    hub.files["pytorch_model.bin"] = b"pickle"
    pulled = pull("me/adapters", tmp_path / "pulled")
    names = {path.name for path in pulled.iterdir() if path.is_file()}
    assert names == {"README.md", "polyloom.json", "weights.safetensors"}, "neither code nor pickles"
    before, after = read_adapter(adapter), read_adapter(pulled)
    assert torch.equal(before.weights.blocks[0].tensors["q_down"], after.weights.blocks[0].tensors["q_down"])


def test_a_pull_that_breaks_off_leaves_nothing_and_can_be_tried_again(hub, adapter, tmp_path):
    push(adapter, "me/adapters")
    whole = dict(hub.files)
    hub.broken = {"weights.safetensors"}
    (tmp_path / "place").mkdir()
    with pytest.raises(ExportError, match="pull me/adapters"):
        pull("me/adapters", tmp_path / "place" / "pulled")
    assert not list((tmp_path / "place").iterdir())
    hub.files, hub.broken = whole, set()
    pulled = pull("me/adapters", tmp_path / "place" / "pulled")
    assert {path.name for path in pulled.iterdir()} == set(whole)
    assert list((tmp_path / "place").iterdir()) == [pulled]


def test_what_cannot_be_pushed_or_pulled_is_explained(hub, adapter, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match="no adapter here"):
        push(tmp_path / "empty", "me/adapters")
    (adapter / "notes.py").write_text("")
    with pytest.raises(ExportError, match=r"notes\.py is no part"):
        push(adapter, "me/adapters")
    with pytest.raises(ExportError, match="Is its name right"):
        pull("me/nothing", tmp_path / "pulled")
    with pytest.raises(ExportError, match="exists already"):
        pull("me/adapters", tmp_path / "empty")
