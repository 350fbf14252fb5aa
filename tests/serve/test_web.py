"""HTTP: our protocol and those of others, judged by their own clients where there is one."""

import contextlib
import gzip
import hashlib
import http.server
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.shared import free_port, lines_of

pytest.importorskip("fastapi")


class Served:
    """A server in a process of its own."""

    def __init__(self, *arguments: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop
        command = [sys.executable, "-m", "polyloom", "serve", *map(str, arguments), "--port", str(self.port)]
        self.command = [*command, "--threads", "1", "--timeout", "600"]  # a busy machine is slow
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stderr=self.log)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        ready = False
        while not ready:
            assert self.process.poll() is None, self.logged()
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                ready = self.get("/readyz")[0] == 200

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
    server = Served(run.path, translator.path)
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
def test_mistakes_are_problems(served, path, body, status):
    found, content, headers = served.request("POST", path, body)
    assert found == status
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(content).keys() == {"type", "title", "status", "detail", "error"}


HOSTILE = {
    "a million letters": {"rows": [{"condition": "pos/aa", "input": "a" * 1_000_000}]},
    "combining marks": {"rows": [{"condition": "pos/aa", "input": "a" + "\u0301" * 40_000}]},
    "a lone surrogate": b'{"rows": [{"condition": "pos/aa", "input": "\\ud800"}]}',
    "NUL": {"rows": [{"condition": "pos/aa\0", "input": "\0"}]},
    "depth": b'{"rows": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a huge number": b'{"rows": ' + b"9" * 100_000 + b"}",
    "not UTF-8": b'{"rows": [{"condition": "pos/aa", "input": "\xff"}]}',
    "a condition of letters": {"rows": [{"condition": "x" * 100_000, "input": "a"}]},
    "no words": {"rows": [{"condition": "pos/aa", "input": []}]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused_or_answered(served, name):
    """R11."""
    status, content, _ = served.request("POST", "/v1/predict", HOSTILE[name])
    assert status in (200, 400, 413, 422), content[:500]
    assert served.post("/v1/predict", {"rows": [{"condition": "pos/aa", "input": "ba"}]})[0] == 200


def test_a_large_body_is_refused(served):
    status, content, _ = served.request("POST", "/v1/predict", b'{"rows": "' + b"a" * (5 << 20) + b'"}')
    assert (status, json.loads(content)["title"]) == (413, "Body too large")


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


def test_traces_go_to_a_collector_without_texts(run):
    """A span for the request, within that of its caller, and one for each row."""
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


def test_a_caller_that_hangs_up_is_forgotten(served):
    """R8: nothing waits any more, and others are answered."""
    body = json.dumps({"rows": [{"condition": "dep/aa", "input": ["ba"] * 60}] * 200}).encode()
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    name = 'requests_total{outcome="cancelled"}'
    before = served.number(name)
    while served.number(name) == before:  # a request can be answered before its caller hangs up
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.1)
    assert served.post("/v1/predict", {"rows": [{"condition": "pos/aa", "input": "ba"}]})[0] == 200
    while served.number("num_requests_running") or served.number("num_requests_waiting"):
        time.sleep(0.1)


@pytest.mark.filterwarnings("ignore")  # of schemathesis itself
def test_no_request_that_the_description_allows_breaks_the_server(served, tmp_path):
    """Requests made from our own OpenAPI, valid and invalid: never a status 500, never one that is not described."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json", "--max-examples", "20",
        "--seed", "1", "--no-color",
        "--exclude-path", "/v1/reload", "--request-timeout", "60", "--generation-database", "none",
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    ]  # fmt: skip
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]


def test_sigterm_loses_no_accepted_request(run):
    """R9: requests that were sent are answered, and the server ends."""
    server = Served(run.path)
    body = {"rows": [{"condition": "dep/aa", "input": ["ba"] * 60}] * 100}
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.post, "/v1/predict", body) for _ in range(8)]
        states = ('requests_total{outcome="answered"}', "num_requests_running", "num_requests_waiting")
        while sum(map(server.number, states)) < 800:  # until all are accepted
            time.sleep(0.01)
        logged = server.stop()
    for one in asked:
        status, found = one.result()
        assert status == 200
        assert all("prediction" in row for row in found["results"])
    lines = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
    assert [line["rows"] for line in lines if line["path"] == "/v1/predict"] == [100] * 8
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
    while (answer := server.request("GET", "/readyz"))[0] == 200:
        time.sleep(0.01)
    status, _, headers = answer
    assert (status, headers["retry-after"]) == (503, "1")
    (tmp_path / "away").rename(path)
    server.wait_until_ready()
    assert server.post("/v1/predict", {"rows": [{"condition": "pos/aa", "input": "ba"}]})[0] == 200
    assert server.number("model_process_starts") >= 2
    server.stop()
