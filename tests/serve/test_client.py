"""The client: a server predicts like a loaded run, in Python and on the command line."""

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import polyloom as pl
from polyloom import client as client_module
from polyloom.cli import main
from polyloom.data.records import Bitext
from polyloom.errors import (
    ConditionError,
    DeadlineError,
    OverloadedError,
    PredictionError,
    TooLongError,
    UnavailableError,
)
from tests.serve.test_web import Served
from tests.shared import Clock, lines_of

KEY = "secret"
SOURCE = "boza"
MIXED = [
    ("ba  do fi", "pos/aa"), (("gu", "ko"), "ner/bb"), (("ba do", "fi gu"), "nli/aa"), ("mur sat ba", "dep/cc"),
    (("ba", "mur fi gu sat ko"), "qa/aa"), ("", "pos/bb"), (["ba", "do"], pl.Condition("pos", "cc")),
    (pl.Tagged(("ba", "do"), ("X", "Y")), "pos/aa"), (pl.Tree(("ba", "do"), (0, 1), ("a", "b")), "dep/aa"),
    (pl.Pair("ba do", "fi", "contradiction"), "nli/bb"), (pl.Question("ba do fi", "gu", ()), "qa/bb"),
]  # fmt: skip


@pytest.fixture(scope="module")
def served(run, translator, folder):
    """A server with a key and small requests, so that lists take several."""
    (folder / "keys").write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} somebody\n")
    server = Served(run.path, translator.path, "--keys", folder / "keys", "--max-rows", 4, "--max-body-bytes", 100_000)
    yield server
    server.stop()


@pytest.fixture
def client(served):
    with pl.connect(served.url, key=KEY, timeout=600) as client:
        yield client


@pytest.fixture(scope="module")
def texts():
    return lines_of(f"synthetic:{SOURCE}/test[:3]")


def rounded(prediction: Any) -> Any:
    """A prediction whose probabilities are rounded: those of other batches differ in the last digits."""
    if isinstance(prediction, str):
        return prediction
    fields = asdict(prediction)
    if fields.get("score") is not None:
        return replace(prediction, score=round(fields["score"], 4))
    return replace(prediction, scores=tuple(round(score, 4) for score in fields["scores"]))


# -- predictions -------------------------------------------------------------------------------------------------------


def test_predictions_are_those_of_the_loaded_runs(client, run, translator, texts):
    translated = [(text, f"mt/{SOURCE}/kepa") for text in texts] + [(Bitext(texts[0], ""), f"mt/{SOURCE}/bame")]
    expected = [run.predict([value], name)[0] for value, name in MIXED]
    expected += [translator.predict(value, name) for value, name in translated]
    inputs, conditions = zip(*MIXED, *translated, strict=True)
    found = client.predict(list(inputs), list(conditions))
    assert list(map(rounded, found)) == list(map(rounded, expected))
    assert list(map(type, found)) == list(map(type, expected))
    for value, name, prediction in zip(inputs, conditions, expected, strict=True):
        if not isinstance(value, list):
            assert rounded(client.predict(value, name)) == rounded(prediction)
    assert client.predict(["ba", "do"], "pos/aa") == [client.predict(word, "pos/aa") for word in ("ba", "do")]
    assert client.predict([], "pos/aa") == []


def test_translations_are_those_of_the_loaded_run(client, translator, texts):
    several = [*texts, " ", f"{texts[0]}. {texts[1]}."]
    assert client.translate(texts[0], SOURCE, "kepa") == translator.translate(texts[0], SOURCE, "kepa")
    for options in ({}, {"sentences": True}, {"pivot": "kepa"}, {"pivot": "bame"}):
        found = client.translate(several, SOURCE, "bame", **options)
        assert found == translator.translate(several, SOURCE, "bame", **options)
    with pytest.raises(ConditionError, match="unknown language 'deu'"):
        client.translate("x", SOURCE, "deu")
    with pytest.raises(pl.PolyloomError, match="expected a text"):
        client.translate([3], SOURCE, "kepa")


@pytest.mark.parametrize(
    ("inputs", "conditions"),
    [
        ("ba", "aa"), ("ba", "pos"), ("ba", "german"), ("ba", 3), (["ba"], [3]), ("ba", "pos/de"), ("ba", "po s/aa"),
        ("ba", "pos/aa/bb/cc"), ("ba", "mlm/aa"), (("ba", " "), "pos/aa"), ("ba do", "nli/aa"), ("ba\ud800", "pos/aa"),
        (["ba"], ["pos/aa", "pos/bb"]), ("ba", ["pos/aa"]), (["ba"] * 5, ["pos/aa"] * 4 + ["pos/de"]),
    ],
)  # fmt: skip
def test_errors_are_those_of_a_loaded_run(client, run, inputs, conditions):
    with pytest.raises(pl.PolyloomError) as expected:
        run.predict(inputs, conditions)
    with pytest.raises(pl.PolyloomError) as found:
        client.predict(inputs, conditions)
    assert (found.type, str(found.value)) == (expected.type, str(expected.value))


@pytest.mark.parametrize(
    ("inputs", "kind", "says"),
    [
        (5, pl.PolyloomError, r"pos/aa: expected a text, texts as a tuple, or a record, not 5 \(int\)"),
        (pl.Pair("ba", "do", ""), pl.PolyloomError, r"pos/aa: Pair\(.* is no input of this task"),
        ("b" * 50_001, TooLongError, "pos/aa: 50,001 characters. At most 50,000 are allowed"),
        ("b" * 100_001, TooLongError, "The body has more than 100,000 bytes"),
    ],
)
def test_inputs_that_only_a_server_refuses(client, inputs, kind, says):
    with pytest.raises(kind, match=says):
        client.predict(inputs, "pos/aa")


def test_cut_inputs_are_reported_as_by_a_loaded_run(client, run):
    long = [("ba do", "fi"), ("ba " * 100, "do"), ("ba " * 100, "fi")]
    with pytest.warns(UserWarning, match="cut") as expected:
        run.predict(long, "nli/aa")
    with pytest.warns(UserWarning, match="cut") as found:
        client.predict(long, "nli/aa")
    assert [str(one.message) for one in found] == [str(one.message) for one in expected]
    assert found[0].filename == __file__


def test_threads_share_a_client(client):
    names = [f"pos/{language}" for language in ("aa", "bb", "cc")] * 4
    expected = [client.predict("ba do fi", name) for name in names]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda name: client.predict("ba do fi", name), names))
    assert list(map(rounded, found)) == list(map(rounded, expected))


def test_neither_torch_nor_transformers_is_needed(served):
    code = f"""
import sys
for name in ("torch", "transformers", "numpy"):
    sys.modules[name] = None
import polyloom as pl
with pl.connect({served.url!r}, key={KEY!r}) as client:
    print(client.predict(["ba do", ("ba", "do fi")], ["pos/aa", "qa/aa"]), client.translate("x", {SOURCE!r}, "kepa"))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[TagPrediction(ba/")


def test_a_crash_of_the_models_is_survived(served, client):
    expected = client.predict(["ba do"] * 10, "pos/aa")
    os.kill(served.model_process(), signal.SIGKILL)
    assert list(map(rounded, client.predict(["ba do"] * 10, "pos/aa"))) == list(map(rounded, expected))


# -- a server that fails as it is told ---------------------------------------------------------------------------------

Step = Callable[["Handler", list[dict[str, Any]]], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    steps: Iterator[Step]
    asked: list[list[str]]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        limits = {"max_rows": 4, "max_rows_per_key": 9, "max_waiting": 9, "max_body_bytes": 1000}
        model = {"name": "m", "max_length": 9, "tasks": {"pos": {"bilingual": False}}, "languages": ["aa"]}
        self.say(200, {"models": [model], "limits": limits})

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
        self.asked.append([row["input"] for row in rows])
        next(self.steps)(self, rows)

    def say(self, status: int, body: Any, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def answer(index: int, text: str, status: int | None = None) -> bytes:
    outcome = {"error": {"status": status, "detail": f"status {status}"}} if status else {"prediction": {"text": text}}
    return (
        json.dumps(
            {"index": index, "condition": "pos/aa", "kind": "bitext", "model": "m", "cut": False} | outcome
        ).encode()
        + b"\n"
    )


def answers(*statuses: int | None) -> Step:
    """Answer rows, the last first, with these errors for the first of them."""

    def step(handler: Handler, rows: list[dict[str, Any]]) -> None:
        padded = [*statuses, *[None] * len(rows)]
        lines = [answer(index, row["input"].upper(), padded[index]) for index, row in enumerate(rows)]
        handler.say(200, b"".join(reversed(lines)))

    return step


def refuses(status: int, **headers: str) -> Step:
    return lambda handler, _: handler.say(status, {"status": status, "detail": f"status {status}"}, **headers)


def hangs_up(begin: bytes = b"", end: bytes = b"") -> Step:
    """Answer in chunks, as the server does, and close the connection without a word."""

    def step(handler: Handler, _: list[dict[str, Any]]) -> None:
        if begin:
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(begin), begin) + end)
        handler.close_connection = True

    return step


def bound_server() -> ThreadingHTTPServer:
    """A server that has a port, and does not listen yet."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.server_bind()
    return server


@contextlib.contextmanager
def scripted(
    *steps: Step, handler: type[BaseHTTPRequestHandler] = Handler, server: ThreadingHTTPServer | None = None
) -> Iterator[tuple[str, list[list[str]]]]:
    """Serve some steps; the inputs of each request are noted."""
    asked: list[list[str]] = []
    kind = type("Scripted", (handler,), {"steps": iter(steps), "asked": asked})
    with server or bound_server() as listening:
        listening.RequestHandlerClass = kind
        listening.server_activate()
        listening.daemon_threads = True
        listening.block_on_close = False
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}", asked
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(client_module, "time", made)
    monkeypatch.setattr(client_module, "GRACE", 600.0)  # of real time, as a busy machine is slow
    return made


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("steps", "asked"),
    [
        ([answers()], ["abcd"]),
        ([answers(429, None, 503), answers(429), answers()], ["abcd", "ac", "a"]),
        ([refuses(429), refuses(503), refuses(502), answers()], ["abcd"] * 4),
        ([hangs_up(), hangs_up(answer(1, "B") + answer(0, "A")[:9]), hangs_up(answer(0, "A")), answers()],
         ["abcd", "abcd", "acd", "cd"]),
    ],
)  # fmt: skip
def test_rows_without_an_answer_are_asked_again_alone(steps, asked):
    with scripted(*steps, answers()) as (url, noted), pl.connect(url) as client:
        assert client.predict(list("abcde"), "pos/aa") == list("ABCDE")
        assert ["".join(row) for row in noted] == [*asked, "e"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, ConditionError), (413, TooLongError), (422, pl.PolyloomError), (429, OverloadedError),
        (500, PredictionError), (503, UnavailableError), (504, DeadlineError),
    ],
)  # fmt: skip
def test_every_problem_has_its_class(clock, status, kind):
    with scripted(*[answers(status)] * 50) as (url, noted), pl.connect(url, timeout=60) as client:
        with pytest.raises(pl.PolyloomError, match=f"status {status}") as found:
            client.predict(["a"], "pos/aa")
        assert found.type is kind
        assert len(noted) == len(clock.waits) + 1
        if status in (429, 503):  # waits of half a second, then twice as long up to eight seconds, and by chance longer
            assert [0.5 <= wait / 2**i <= 0.75 for i, wait in enumerate(clock.waits[:5])] == [True] * 5
            assert 60 - 12 <= sum(clock.waits) <= 60
        else:
            assert not clock.waits


def test_no_one_waits_longer_than_the_time_allows(clock):
    with scripted(*[refuses(429, Retry_After="700")] * 2) as (url, noted), pl.connect(url, timeout=600) as client:
        with pytest.raises(OverloadedError, match="status 429"):
            client.predict("a", "pos/aa")
        assert (len(noted), clock.waits) == (1, [])
    with pytest.raises(pl.PolyloomError, match="timeout: 0 is not a number of seconds up to 3600"):
        pl.connect(url, timeout=0)


def test_a_connection_that_the_server_closed_is_opened_again_at_once(clock, monkeypatch):
    closed, close = threading.Event(), ThreadingHTTPServer.shutdown_request

    def noted_close(*arguments: Any) -> None:
        close(*arguments)
        closed.set()

    monkeypatch.setattr(ThreadingHTTPServer, "shutdown_request", noted_close)
    whole = hangs_up(answer(0, "A"), b"0\r\n\r\n")
    with scripted(whole, answers()) as (url, noted), pl.connect(url) as client:
        assert client.predict("a", "pos/aa") == "A"
        closed.wait()
        assert client.predict("b", "pos/aa") == "B"
        assert noted == [["a"], ["b"]]
        assert not clock.waits


def test_a_forked_process_has_connections_of_its_own(monkeypatch):
    """Two processes that write into one connection would get each other's answers."""
    with scripted(answers(), answers()) as (url, _), pl.connect(url) as client:
        assert client.predict("a", "pos/aa") == "A"
        parents = client._http
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert client.predict("b", "pos/aa") == "B"
        assert parents is not None
        assert client._http is not parents
        parents.close()


def test_requests_go_through_the_proxy_of_the_environment(monkeypatch):
    with scripted(answers()) as (url, noted):
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pl.connect("http://server.invalid") as client:
            assert client.predict("a", "pos/aa") == "A"
        assert noted == [["a"]]


def test_texts_may_have_the_line_separators_of_unicode():
    def step(handler: Handler, rows: list[dict[str, Any]]) -> None:
        line = json.loads(answer(0, rows[0]["input"]))
        handler.say(200, json.dumps(line, ensure_ascii=False).encode() + b"\n")

    text = "a\u2028b\x85c\rd"
    with scripted(step) as (url, _), pl.connect(url) as client:
        assert client.predict(text, "pos/aa") == text


def test_a_server_that_is_started_again_is_waited_for(clock, monkeypatch):
    """It listens from the client's third wait on; its port is its own all the time."""
    with scripted() as (url, _):
        client = pl.connect(url, timeout=600)
        client.close()
    server = bound_server()
    client.url = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(UnavailableError, match="connection refused"):
        client.predict("a", "pos/aa")
    clock.waits.clear()
    with contextlib.ExitStack() as stack:
        sleep = clock.sleep

        def start(seconds: float) -> None:
            sleep(seconds)
            if len(clock.waits) == 3:
                stack.enter_context(scripted(answers(), server=server))

        monkeypatch.setattr(clock, "sleep", start)
        assert client.predict("a", "pos/aa") == "A"
        assert len(clock.waits) == 3
    client.close()


def test_requests_have_no_more_rows_and_bytes_than_the_server_allows():
    with scripted(*[answers()] * 9) as (url, noted), pl.connect(url) as client:
        inputs = [*"abcdef", "g" * 500, "h" * 300, "i" * 800, "j" * 100, "k"]
        assert client.predict(inputs, "pos/aa") == [text.upper() for text in inputs]
        assert ["".join(dict.fromkeys("".join(row))) for row in noted] == ["abcd", "efg", "h", "i", "jk"]


def test_a_server_that_does_not_speak_http_is_recognised():
    def step(handler: Handler, _: list[dict[str, Any]]) -> None:
        handler.wfile.write(b"220 mail.example ready\r\n\r\n")
        handler.close_connection = True

    with (
        scripted(step) as (url, _),
        pl.connect(url) as client,
        pytest.raises(pl.PolyloomError, match=r"does not speak HTTP\. Is it an https:// server"),
    ):
        client.predict("a", "pos/aa")


def test_answers_of_another_version_are_refused():
    def step(handler: Handler, _: list[dict[str, Any]]) -> None:
        handler.say(200, b'{"index": 0, "kind": "labelled", "prediction": {"colour": "red"}, "cut": false}\n')

    with (
        scripted(step) as (url, _),
        pl.connect(url) as client,
        pytest.raises(pl.PolyloomError, match="is no prediction that this version knows"),
    ):
        client.predict("a", "pos/aa")


class Another(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(301 if self.path.startswith("/old") else 200 if self.path.startswith("/page") else 404)
        self.send_header("Location", "https://new.example")
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", r"/info was answered with status 404 .* Is this the address of a server that `polyloom serve` started\?"),
        ("/page", "this is not the address of a server that `polyloom serve` started"),
        ("/old", r"status 301 \(Moved Permanently, moved to https://new.example\)"),
    ],
)
def test_another_server_is_not_taken_for_ours(path, says):
    with scripted(handler=Another) as (url, _), pytest.raises(pl.PolyloomError, match=says):
        pl.connect(url + path)


@pytest.mark.parametrize(
    ("url", "key", "kind", "says"),
    [
        ("http://127.0.0.1:1", None, UnavailableError, "http://127.0.0.1:1: connection refused. Is the server runn"),
        ("http://nowhere.invalid", None, UnavailableError, "there is no host 'nowhere.invalid'"),
        ("localhost:8000", None, pl.PolyloomError, "not the address of a server, such as http://localhost:8000"),
        ("http://x:99999", None, pl.PolyloomError, "not the address of a server"),
        ("http://999.1.1.1", None, pl.PolyloomError, "not the address of a server"),
        ("{url}", None, pl.PolyloomError, "the server needs an API key. .* POLYLOOM_API_KEY"),
        ("{url}", "wrong", pl.PolyloomError, "the server does not accept this API key. .* POLYLOOM_API_KEY"),
        ("{url}", "wr\nong", pl.PolyloomError, "the API key has characters that cannot be sent"),
        ("{url}/page", KEY, pl.PolyloomError, "this is not the address of a server that `polyloom serve` started"),
        ("https{url}", KEY, pl.PolyloomError, "no secure connection .* Is it an http:// server"),
    ],
)
def test_a_wrong_address_or_key_is_explained(served, url, key, kind, says):
    url = url.replace("https{url}", served.url.replace("http", "https")).replace("{url}", served.url)
    with pytest.raises(kind, match=says) as found:
        pl.connect(url, key=key)
    assert not key or key not in str(found.value)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def predict(monkeypatch, capsysbinary):
    def run_here(*arguments: object, stdin: str, key: str = KEY) -> tuple[int, bytes, str]:
        monkeypatch.setenv("POLYLOOM_API_KEY", key)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode(errors="surrogateescape"))))
        monkeypatch.setattr(sys, "argv", ["polyloom", "predict", *map(str, arguments)])
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsysbinary.readouterr()
        return int(ended.value.code or 0), out, err.decode()

    return run_here


BLANK = "\t_" * 7
CONLLU = f"# text = ba do\n1\tba{BLANK}\tA=1\n2\tdo{BLANK}\t_\n\n1\tfi{BLANK}\t_\n\n"
JSON = "".join(
    json.dumps(line) + "\n"
    for line in (
        {"condition": "pos/aa", "text": "ba do", "id": 1}, {"condition": "pos/xx", "text": "ba"},
        {"condition": "nli/bb", "premise": "ba", "hypothesis": "do"}, {"condition": "dep/cc", "words": ["ba", "fi"]},
        {"condition": "qa/aa", "question": "ba", "context": "mur fi  gu"}, {"condition": "x" * 300 + "/aa"},
        {"condition": "ner/bb", "text": "gu " * 2001}, {"text": "ba"}, {"condition": "ner/bb", "text": ""},
        {"condition": "ner/bb", "text": "gu ko lem"},
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["pos/aa"], "ba  do\n\nfi gu ko\nbad \udcff line\nlem\n"),
        (["ner/bb", "--input", "tokenized", "--format", "jsonl"], "ba do\nfi\n" * 5),
        (["dep/aa", "--input", "conllu"], CONLLU),
        (["dep/aa"], "ba do fi\n"),
        (["nli/aa"], "ba\tdo\nba\n" + "ba " * 100 + "\tfi\n"),
        (["qa/aa"], "ba\tmur fi gu sat ko\n"),
        ([], JSON),
        (["pos/aa", "--strict"], "ba\nbad \udcff line\nlem\n"),
        (["pos/xx"], "ba\n"),
        (["aa"], "ba\n"),
        (["pos/aa", "--scores"], "ba\n"),
    ],
)
def test_the_command_prints_what_it_prints_with_a_folder(predict, served, run, arguments, stdin):
    expected = predict(run.path, *arguments, stdin=stdin)
    assert predict(served.url, *arguments, stdin=stdin) == expected


def test_the_command_translates(predict, served, translator, texts):
    for options in ([], ["--format", "jsonl"], ["--format", "jsonl", "--scores"]):
        arguments = [f"mt/{SOURCE}/kepa", *options]
        stdin = "\n".join([*texts, "", "x"])
        assert predict(served.url, *arguments, stdin=stdin) == predict(translator.path, *arguments, stdin=stdin)


def test_the_command_writes_probabilities(predict, served, run):
    stdin = "".join(line for line in JSON.splitlines(keepends=True) if "xx" not in line)
    lines = [predict(source, "--scores", stdin=stdin)[1].splitlines() for source in (served.url, run.path)]
    for found, expected in zip(*(map(json.loads, one) for one in lines), strict=True):
        for name in ("score", "scores"):
            assert found.pop(name, None) == pytest.approx(expected.pop(name, None), abs=1e-4)
        assert found == expected


@pytest.mark.parametrize(
    "option", [["--beams", "5"], ["--pivot", "kepa"], ["--sentences"], ["--checkpoint", "step-00000200"]]
)
def test_settings_of_the_server_are_no_options_of_the_command(predict, served, option):
    code, out, err = predict(served.url, f"mt/{SOURCE}/bame", *option, stdin="x\n")
    assert (code, out) == (1, b"")
    assert err == f"polyloom: {option[0]}: not with a server, which has its own settings.\n"


def test_the_command_explains_a_wrong_key_and_a_wrong_address(predict, served):
    code, out, err = predict(served.url, "pos/aa", stdin="ba\n", key="wrong")
    assert (code, out, err.count("\n")) == (1, b"", 1)
    assert "does not accept this API key" in err
    code, out, err = predict("http://127.0.0.1:1", "pos/aa", stdin="ba\n")
    assert (code, out) == (1, b"")
    assert err == "polyloom: http://127.0.0.1:1: connection refused. Is the server running, and is this its port?\n"
