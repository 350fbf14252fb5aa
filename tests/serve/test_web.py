"""HTTP: our protocol and those of others, judged by their own clients where there is one."""

import asyncio
import contextlib
import gzip
import hashlib
import http.client
import http.server
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import uvicorn
from starlette.exceptions import HTTPException

from polyloom.cli.serve import serve
from polyloom.errors import UnavailableError
from polyloom.serve import supervisor
from polyloom.serve.web import health
from polyloom.serve.web import server as web_server
from polyloom.serve.web.context import Context, Keys, ServerLimits
from polyloom.serve.web.middleware import BodyLimit
from polyloom.serve.web.server import ServerSettings, build_app
from tests.serve.forked import forked_models
from tests.shared import free_port, lines_of, start_command


class Served:
    """A server in a process of its own: a fork of this one, which has all time, as a busy machine is slow.

    Args:
        *arguments: Arguments of ``polyloom serve``.
        new: Whether it is ``python -m polyloom``, with the limits of time that the package sets.
    """

    def __init__(self, *arguments: object, new: bool = False) -> None:
        self.arguments, self.new = ["serve", *map(str, arguments), "--threads", "1", "--timeout", "600"], new
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop
        self.choose_port()
        while not self.start():
            assert "address already in use" in self.logged(), self.logged()
            self.choose_port()

    def choose_port(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> bool:
        """Start it, and return whether it became ready."""
        arguments = [*self.arguments, "--port", str(self.port)]
        if self.new:
            command = [sys.executable, "-m", "polyloom", *arguments]
            self.process = subprocess.Popen(command, stderr=self.log, text=True)
            return self.wait_until_ready()
        with forked_models(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(web_server, "DRAIN", 600)
            patch.setattr(health, "CANARY", 600.0)
            patch.setattr(supervisor, "PAUSE", 0.05)
            self.process = start_command(*arguments, stderr=self.log)
        return self.wait_until_ready()

    def wait_until_ready(self) -> bool:
        """Wait until it is ready, or has ended."""
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.get("/readyz")[0] == 200:
                    return True
            time.sleep(0.02)
        return False

    def logged(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def request(self, method, path, body=None, **headers):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def post(self, path, body, **headers):
        status, content, _ = self.request("POST", path, body, **headers)
        return status, json.loads(content)

    def number(self, name: str) -> float:
        lines = self.get("/metrics")[1].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"polyloom_{name}"))

    def model_process(self) -> int:
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True)
        return int(found.stdout)

    def stop(self) -> str:
        """Stop it, and return what it logged."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait() in (0, -signal.SIGTERM)
        logged = self.logged()
        self.log.close()
        return logged


@pytest.fixture(scope="module")
def served(run, translator):
    server = Served(run.path, translator.path, new=True)
    yield server
    server.stop()


def test_rows_of_any_conditions_share_a_request(served, run):
    rows = [
        {"condition": c, "input": i} for c, i in (("pos/aa", ["ba", "do"]), ("pos/xx", "ba"), ("nli/bb", ["ba", "do"]))
    ]
    status, body = served.post("/v1/predict", {"rows": rows})
    assert status == 200
    first, wrong, pair = body["results"]
    assert first["prediction"]["labels"] == list(run.predict(("ba", "do"), "pos/aa").labels)
    assert first["version"].startswith("step-")
    assert len(first["weights"]) == 16
    assert wrong["error"]["status"] == 404
    assert "Known: aa, bb, cc" in wrong["error"]["detail"]
    assert pair["prediction"]["label"] == run.predict(("ba", "do"), "nli/bb").label


def test_a_stream_has_every_row_once(served):
    rows = [{"condition": f"pos/{x}", "input": "ba do"} for x in ("aa", "bb", "xx", "cc")]
    body = json.dumps({"rows": rows}).encode()
    status, content, headers = served.request("POST", "/v1/predict", body, Accept="application/x-ndjson")
    lines = [json.loads(line) for line in content.splitlines()]
    assert status == 200
    assert headers["content-type"].startswith("application/x-ndjson")
    assert sorted(line["index"] for line in lines) == [0, 1, 2, 3]
    assert ["error" in line for line in sorted(lines, key=lambda line: line["index"])] == [False, False, True, False]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/predict", b"{", 422),
        ("/v1/predict", {"rows": []}, 422),
        ("/v1/predict", {"rows": [{"condition": "pos/aa"}]}, 422),
        ("/v1/predict", {"rows": [{"condition": "pos/aa", "input": "ba"}] * 300}, 413),
        ("/models/pos/xx", {"inputs": "ba"}, 404),
        ("/nothing", {}, 404),
    ],
)
def test_errors_are_problems(served, path, body, status):
    found, content, headers = served.request("POST", path, body)
    assert found == status
    if path.startswith("/models"):  # what Hugging Face's client reads
        assert headers["content-type"] == "application/json"
        assert json.loads(content).keys() == {"error"}
    else:
        assert headers["content-type"] == "application/problem+json"
        assert json.loads(content).keys() == {"type", "title", "status", "detail"}


# A body, the status of the response or of the error of its only row, and how many batches the model computes for it.
HOSTILE = {
    "a million letters": ({"rows": [{"condition": "pos/aa", "input": "a" * 1_000_000}]}, 413, 0),
    "combining marks": ({"rows": [{"condition": "pos/aa", "input": "a" + "\u0301" * 40_000}]}, 200, 1),
    "a lone surrogate": (b'{"rows": [{"condition": "pos/aa", "input": "\\ud800"}]}', 422, 0),
    "NUL": ({"rows": [{"condition": "pos/aa\0", "input": "\0"}]}, 404, 0),
    "depth": (b'{"rows": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, 0),
    "a huge number": (b'{"rows": ' + b"9" * 100_000 + b"}", 400, 0),
    "not UTF-8": (b'{"rows": [{"condition": "pos/aa", "input": "\xff"}]}', 400, 0),
    "a condition of letters": ({"rows": [{"condition": "x" * 100_000, "input": "a"}]}, 422, 0),
    "no words": ({"rows": [{"condition": "pos/aa", "input": []}]}, 200, 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused_before_the_model_or_answered(served, name):
    """R11."""
    body, expected, batches = HOSTILE[name]
    before = served.number("batches")
    status, content, _ = served.request("POST", "/v1/predict", body)
    if status == 200:
        (row,) = json.loads(content)["results"]
        status = row.get("error", {"status": 200})["status"]
    assert status == expected
    assert served.number("batches") - before == batches
    assert served.post("/v1/predict", {"rows": [{"condition": "pos/aa", "input": "ba"}]})[0] == 200


@pytest.mark.timing
def test_hostile_requests_take_seconds_at_most(served):
    for body, _, _ in HOSTILE.values():
        start = time.monotonic()
        served.request("POST", "/v1/predict", body)
        assert time.monotonic() - start < 10


def test_a_large_body_is_refused(served):
    status, content, _ = served.request("POST", "/v1/predict", b'{"rows": "' + b"a" * (5 << 20) + b'"}')
    assert (status, json.loads(content)["title"]) == (413, "Body too large")


@pytest.mark.parametrize("length", [None, 1001, 10**12])
def test_of_a_large_body_only_so_much_is_read(length):
    """A caller that announces its size is answered when it has sent that, or sixteen times the largest body."""
    read, sent, most = 0, [], 1000

    async def receive():
        nonlocal read
        read += 100
        return {"type": "http.request", "body": b"a" * 100, "more_body": length is None or read < length}

    async def send(event):
        sent.append(event)

    async def parse(scope, receive, send):
        """Read the whole body, as an application does."""
        while (await receive())["more_body"]:
            pass

    headers = [(b"content-length", str(length).encode())] if length else []
    request = BodyLimit(parse, most)({"type": "http", "path": "/", "headers": headers}, receive, send)
    if length is None:
        with pytest.raises(HTTPException, match="413"):
            asyncio.run(request)
    else:
        asyncio.run(request)
        assert sent[0]["status"] == 413
    assert read == {None: 1100, 1001: 1100, 10**12: 16 * most}[length]


def test_hugging_faces_client_understands(served, run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # the server is no hub
    from huggingface_hub import InferenceClient

    client = InferenceClient(model=f"{served.url}/models/ner/aa", token="none")
    text = "ba do fi gu"
    found = client.token_classification(text)
    predicted = run.predict(text, "ner/aa")
    assert [one.entity_group for one in found] == [label[2:] for label in predicted.labels if label != "O"]
    assert all(text[one.start : one.end] == one.word for one in found)
    client = InferenceClient(model=f"{served.url}/models/qa/aa", token="none")
    answer: Any = client.question_answering(question="ba", context="mur fi gu sat ko")
    assert answer.answer == run.predict(("ba", "mur fi gu sat ko"), "qa/aa").text


def test_libretranslates_client_understands(served, translator):
    from libretranslatepy import LibreTranslateAPI

    text = lines_of("synthetic:boza/test[:1]")[0]
    client, expected = LibreTranslateAPI(served.url), translator.predict(text, "mt/boza/kepa")
    assert expected
    assert client.translate(text, "boza", "kepa") == expected
    assert client.languages() == [{"code": "boza", "name": "boza", "targets": ["bame", "kepa"]}]
    several = {"q": [text, text], "source": "boza", "target": "kepa"}
    assert served.post("/translate", several) == (200, {"translatedText": [expected] * 2})
    status, body = served.post("/translate", several | {"target": "kepo"})
    assert status == 404
    assert "Did you mean 'kepa'" in body["error"]
    assert served.post("/translate", several | {"source": "auto"})[0] == 422


def test_tritons_client_understands(served, run):
    import numpy as np
    from tritonclient.http import InferenceServerClient, InferInput

    client = InferenceServerClient(served.url.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("pos/aa")
    assert not client.is_model_ready("pos/xx")
    assert client.get_model_metadata("pos/aa")["inputs"][0]["datatype"] == "BYTES"
    texts = InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array(["ba do", "fi"], dtype=object), binary_data=False)
    found = client.infer("pos/aa", [texts]).as_numpy("prediction")
    assert [json.loads(one)["labels"] for one in found] == [
        list(run.predict(text, "pos/aa").labels) for text in ("ba do", "fi")
    ]
    client.close()


def test_health_numbers_and_descriptions(served):
    assert served.get("/livez")[0] == 200
    info = json.loads(served.get("/info")[1])
    assert [model["name"] for model in info["models"]] == ["hyper", "translator"]
    assert {"max_waiting", "max_rows", "max_body_bytes"} <= info["limits"].keys()
    models = json.loads(served.get("/v1/models")[1])
    names = [one["id"] for one in models["data"]]
    assert {"pos/aa", "mt/boza/kepa"} <= set(names)
    assert not any(name.startswith("mlm") for name in names)
    served.post("/models/pos/aa", {"inputs": "ba"})
    numbers = served.get("/metrics")[1].decode()
    assert 'polyloom_requests_total{outcome="answered"}' in numbers
    assert "pos/aa" not in numbers
    assert served.get("/docs")[0] == 200


def test_the_dashboard_shows_numbers_that_exist(served):
    numbers = served.get("/metrics")[1].decode()
    board = json.loads((Path(__file__).parents[2] / "deploy" / "grafana.json").read_text())
    shown = {name for panel in board["panels"] for name in re.findall(r"polyloom_\w+", str(panel["targets"]))}
    assert len(shown) == 11
    assert all(re.search(rf"^{name}\b", numbers, re.MULTILINE) for name in shown)


def test_traces_go_to_a_collector_without_texts(run, monkeypatch):
    """A span for the request, within that of its caller, and one for each row."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    received: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(gzip.decompress(content) if self.headers["Content-Encoding"] == "gzip" else content)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever).start()
        address = f"http://127.0.0.1:{collector.server_address[1]}/v1/traces"
        server = Served(run.path, "--otlp-traces-endpoint", address)
        caller = f"00-{'a' * 32}-{'b' * 16}-01"
        server.post("/v1/predict", {"rows": [{"condition": "pos/bb", "input": "dobado"}]}, traceparent=caller)
        server.stop()
        collector.shutdown()
    assert not any(b"dobado" in content for content in received)
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    messages = [ExportTraceServiceRequest.FromString(content) for content in received]
    spans = [span for m in messages for part in m.resource_spans for scope in part.scope_spans for span in scope.spans]
    (request,) = [span for span in spans if span.name == "POST /v1/predict"]
    (row,) = [span for span in spans if span.name == "row"]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == ("a" * 32, "b" * 16)
    assert row.parent_span_id == request.span_id
    about = {one.key: one.value for one in row.attributes}
    assert about["polyloom.condition"].string_value == "pos/bb"
    assert request.end_time_unix_nano >= row.end_time_unix_nano > row.start_time_unix_nano


def test_two_texts_cannot_be_tagged(served):
    status, found = served.post("/models/pos/aa", {"inputs": {"text": "ba", "text_pair": "do"}})
    assert status == 422
    assert "inputs must be one text" in found["error"]


def test_answers_of_other_protocols_say_what_made_them(served):
    _, content, _ = served.request("POST", "/v1/predict", {"rows": [{"condition": "pos/aa", "input": "ba"}]})
    (row,) = json.loads(content)["results"]
    _, _, headers = served.request("POST", "/models/pos/aa", {"inputs": "ba"})
    assert [headers[f"Polyloom-{part}"] for part in ("Model", "Version", "Weights")] == [
        row["model"], row["version"], row["weights"],
    ]  # fmt: skip


def test_options_of_the_command_are_the_settings():
    """The command, files for Ray and Python have the same words and the same defaults."""
    options = inspect.signature(serve).parameters
    settings = {field.name: field for kind in (ServerLimits, ServerSettings) for field in fields(kind)}
    # Limits are one setting, code and paths are options of all commands that open runs.
    assert settings.keys() - options.keys() == {"limits", "allow_path", "code", "max_rows_in_flight"}
    assert options.keys() - settings.keys() == {"host", "port", "ray", "replicas"}
    for name in (settings.keys() & options.keys()) - {"runs"}:
        assert (options[name].default or None) == (settings[name].default or None), name


class Unanswered:
    """Stands for the process with the models: it keeps rows until their callers have gone.

    Attributes:
        waiting: Number of rows that wait.
    """

    starts, is_alive = 1, True

    def __init__(self) -> None:
        self.waiting = 0

    async def answer(self, *_: object, **__: object) -> None:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1

    async def counts(self) -> None:
        raise UnavailableError("the process with the models died. Try again in a few seconds.")


@contextlib.contextmanager
def serving(models: Any) -> Iterator[tuple[int, Context]]:
    """Serve in a thread of this process."""
    context = Context(models, Keys(None), ServerLimits())
    config = uvicorn.Config(build_app(context), port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.001)
    yield server.servers[0].sockets[0].getsockname()[1], context
    server.should_exit = True
    thread.join()


def head_of(body: bytes, *headers: str) -> bytes:
    """Return what stands before the body of a request for rows."""
    lines = ["POST /v1/predict HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()


def test_rows_of_a_disconnected_client_are_cancelled():
    """R8: nothing waits any more."""
    models = Unanswered()
    body = json.dumps({"rows": [{"condition": "dep/aa", "input": ["ba"] * 60}] * 200}).encode()
    with serving(models) as (port, context):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head_of(body) + body)
            while models.waiting < 200:
                time.sleep(0.001)
        while models.waiting:
            time.sleep(0.001)
        numbers = context.metrics.page({}).decode()
    assert 'polyloom_requests_total{outcome="cancelled"} 200.0' in numbers
    assert "polyloom_num_requests_running 0.0" in numbers


def test_without_a_process_with_the_models_a_server_is_not_ready():
    with serving(Unanswered()) as (port, _):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz")
        with refused.value as answer:
            assert (answer.code, answer.headers["retry-after"]) == (503, "1")
            assert "Try again in a few seconds" in json.loads(answer.read())["detail"]


@pytest.mark.filterwarnings("ignore")  # of schemathesis itself
@pytest.mark.parametrize("examples", [5, pytest.param(50, marks=pytest.mark.nightly)])
def test_no_request_that_the_description_allows_breaks_the_server(served, tmp_path, examples):
    """Requests made from our own OpenAPI, valid and invalid: never a status 500, never one that is not described."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json", "--seed", "1", "--no-color",
        "--max-examples", str(examples), "--suppress-health-check", "all",  # one of them is for slow machines
        "--exclude-path", "/v1/reload", "--generation-database", "none",
        "--request-timeout", "600", "--request-retries", "3",
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    ]  # fmt: skip
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]


def test_sigterm_loses_no_accepted_request(run):
    """R9: requests that were accepted are answered, also if they are sent to the end afterwards; the server ends.

    A server asks for the body (100 Continue) when it has accepted a request.
    """
    server = Served(run.path)
    body = json.dumps({"rows": [{"condition": "dep/aa", "input": ["ba"] * 60}] * 20}).encode()
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
    for connection in connections:
        connection.sendall(head_of(body, "Expect: 100-continue"))
        assert connection.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
    for connection in connections[:4]:
        connection.sendall(body)
    server.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(OSError):  # until it listens no more
        while True:
            socket.create_connection(("127.0.0.1", server.port)).close()
            time.sleep(0.01)
    for connection in connections[4:]:
        connection.sendall(body)
    for connection in connections:
        with connection, contextlib.closing(http.client.HTTPResponse(connection)) as response:
            response.begin()
            assert response.status == 200
            assert ["prediction" in row for row in json.load(response)["results"]] == [True] * 20
    logged = server.stop()
    lines = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
    assert [line["rows"] for line in lines if line["path"] == "/v1/predict"] == [20] * 8
    assert '"ba"' not in logged, "the log has no texts"


def test_only_keys_are_let_in_and_only_admins_reload(run, tmp_path):
    keys = {"secret": "somebody", "master": "boss admin"}
    lines = [f"{hashlib.sha256(key.encode()).hexdigest()} {about}" for key, about in keys.items()]
    (tmp_path / "keys").write_text("\n".join(["# keys", *lines, ""]))
    server = Served(run.path, "--keys", tmp_path / "keys", "--log-texts")
    row = {"rows": [{"condition": "pos/aa", "input": "ba do ko"}]}
    assert server.post("/v1/predict", row)[0] == 401
    assert server.post("/v1/predict", row, Authorization="Bearer wrong")[0] == 401
    assert server.post("/v1/predict", row, Authorization="Bearer secret")[0] == 200
    assert server.post("/models/pos/aa", {"inputs": "ba"})[0] == 401
    assert server.get("/info")[0] == 401
    assert server.get("/livez")[0] == 200
    assert server.post("/v1/reload", {}, Authorization="Bearer secret")[0] == 401
    before = server.model_process()
    status, found = server.post("/v1/reload", {}, Authorization="Bearer master")
    assert (status, found["models"][0]["name"]) == (200, "hyper")
    assert server.model_process() != before
    logged = server.stop()
    assert '"key": "somebody"' in logged
    assert "ba do ko" in logged, "it was asked for"
    assert "secret" not in logged


def test_a_process_that_dies_comes_back(run, tmp_path):
    """R7 through HTTP."""
    path = Path(shutil.copytree(run.path, tmp_path / "run"))
    server = Served(path)
    path.rename(tmp_path / "away")  # so that no other process can take its place yet
    os.kill(server.model_process(), signal.SIGKILL)
    while server.get("/readyz")[0] == 200:
        time.sleep(0.01)
    (tmp_path / "away").rename(path)
    assert server.wait_until_ready()
    assert server.post("/v1/predict", {"rows": [{"condition": "pos/aa", "input": "ba"}]})[0] == 200
    assert server.number("model_process_starts") >= 2
    server.stop()
