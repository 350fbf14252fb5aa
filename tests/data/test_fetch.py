"""Downloads, from a real HTTP server that serves a real data root and misbehaves on demand."""

import hashlib
import json
import lzma
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from polyloom.data import fetch as module
from polyloom.data.catalog import COLLECTIONS, resolve, treebanks
from polyloom.data.fetch import fetch
from polyloom.errors import DataError
from tests.shared import DATA, needs_data

pytestmark = needs_data
NAME = "ud:tr_boun/test"
FILE = "ud/UD_Turkish-BOUN/tr_boun-ud-test.conllu.xz"


@dataclass
class Server:
    """What the server does, and what it was asked."""

    files: Callable[[str], bytes | None]
    url: str = ""
    ranges: bool = True
    says_length: bool = True
    etag: str | None = '"1"'
    drop_after: list[int] = field(default_factory=list)  # bytes of the next answers; then the connection ends
    statuses: list[int] = field(default_factory=list)  # of the next answers
    redirect: str | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, range

    def asked_for(self, path: str) -> list[str | None]:
        return [wanted for asked, wanted in self.asked if asked == path]


class Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        told: Server = self.server.told
        path, wanted = self.path.removeprefix("/"), self.headers["Range"]
        told.asked.append((path, wanted))
        content = told.files(path)
        sums = path == "SHA256SUMS"
        if told.redirect and not sums:
            self.send_response(302)
            self.send_header("Location", told.redirect)
            self.end_headers()
            return
        if content is None or (told.statuses and not sums):
            self.send_error(404 if content is None else told.statuses.pop(0))
            return
        start = 0
        if wanted and told.ranges and self.headers["If-Range"] == told.etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if told.etag:
            self.send_header("ETag", told.etag)
        if told.says_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        dropped = told.drop_after.pop(0) if told.drop_after and not sums else len(content)
        self.wfile.write(content[start : start + dropped])

    def log_message(self, *_: object) -> None:
        pass


def real_file(path: str) -> bytes | None:
    return (DATA / path).read_bytes() if (DATA / path).is_file() else None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "BACKOFF", 0.0)
    told = Server(real_file)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.told = told  # type: ignore[attr-defined]
    told.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield told
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def source(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server as the place where treebanks are published, uncompressed."""

    def published(path: str) -> bytes | None:
        repository, commit, name = path.split("/")
        assert any(entry.repository == repository and entry.commit == commit for entry in treebanks("ud").values())
        for base in ("ud", "nc/ud"):
            if (plain := real_file(f"{base}/{repository}/{name}")) is not None:
                return plain
            if (packed := real_file(f"{base}/{repository}/{name}.xz")) is not None:
                return lzma.decompress(packed)
        return None

    server.files = published
    changed = replace(COLLECTIONS["ud"], url=f"{server.url}/{{repository}}/{{commit}}/{{item}}-ud-{{split}}.conllu")
    monkeypatch.setattr(module, "COLLECTIONS", {**COLLECTIONS, "ud": changed})
    return server


def assert_whole(root: Path, path: str = FILE) -> None:
    assert (root / path).read_bytes() == (DATA / path).read_bytes()
    assert not list(root.rglob("*.part*"))
    assert f"{hashlib.sha256((DATA / path).read_bytes()).hexdigest()}  ./{path}\n" in (root / "SHA256SUMS").read_text()


def refusal(name: str, root: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        fetch(name, root, **options)
    return str(caught.value)


def test_a_corpus_comes_from_a_mirror_with_its_readme(server, tmp_path):
    steps: list[tuple[str, int, int | None]] = []
    paths = fetch(NAME, tmp_path, mirror=server.url, progress=lambda *step: steps.append(step))
    assert paths == [tmp_path / FILE]
    assert_whole(tmp_path)
    assert (tmp_path / "ud/UD_Turkish-BOUN/README.md").is_file()
    size = (DATA / FILE).stat().st_size
    assert [step for step in steps if step[0] == FILE][-1] == (FILE, size, size)
    assert resolve(NAME, root=tmp_path).sha256 == resolve(NAME, root=DATA).sha256


def test_all_splits_come_if_none_is_named_and_those_here_are_left_alone(server, tmp_path):
    fetch("wikiann:yo/dev", tmp_path, mirror=server.url)
    server.asked.clear()
    paths = fetch("wikiann:yo", tmp_path, mirror=server.url)
    assert [path.name for path in paths] == ["dev.tsv.xz", "test.tsv.xz", "train.tsv.xz"]
    assert not server.asked_for("ner/wikiann/yo/dev.tsv.xz")
    assert [path.name for path in fetch("xnli:de/dev", tmp_path, mirror=server.url)] == ["dev-de.tsv.xz"]
    assert resolve("xnli:de/dev", root=tmp_path).non_commercial
    assert fetch("leipzig:yo", tmp_path, mirror=server.url + "/") == [tmp_path / "mono/leipzig/yo.txt.xz"]


def test_what_is_here_is_not_fetched_again_but_checked(server, tmp_path):
    fetch(NAME, tmp_path, mirror=server.url)
    server.asked.clear()
    assert fetch(NAME, tmp_path) == [tmp_path / FILE]
    assert not server.asked
    (tmp_path / FILE).write_bytes(b"changed")
    assert "SHA256SUMS has" in refusal(NAME, tmp_path)


def test_a_dropped_connection_is_resumed_where_it_broke_off(server, tmp_path):
    server.drop_after = [5000, 7000]
    fetch(NAME, tmp_path, mirror=server.url)
    assert server.asked_for(FILE) == [None, "bytes=5000-", "bytes=12000-"]
    assert_whole(tmp_path)


def test_a_later_process_goes_on_where_an_earlier_one_gave_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    server.drop_after = [5000]
    assert "the connection failed (peer closed connection" in refusal(NAME, tmp_path, mirror=server.url)
    assert not (tmp_path / FILE).exists()
    assert (tmp_path / f"{FILE}.part").stat().st_size == 5000
    fetch(NAME, tmp_path, mirror=server.url)
    assert server.asked_for(FILE) == [None, "bytes=5000-"]
    assert_whole(tmp_path)


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.ranges, server.drop_after = False, [5000]
    fetch(NAME, tmp_path, mirror=server.url)
    assert server.asked_for(FILE) == [None, "bytes=5000-"]
    assert_whole(tmp_path)


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_validator_nothing_is_resumed(server, tmp_path, etag):
    server.etag, server.drop_after = etag, [5000]
    fetch(NAME, tmp_path, mirror=server.url)
    assert server.asked_for(FILE) == [None, None]
    assert_whole(tmp_path)


def test_a_file_that_changed_in_between_is_not_mixed_with_its_old_beginning(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    server.drop_after = [5000]
    refusal(NAME, tmp_path, mirror=server.url)
    server.etag = '"2"'
    fetch(NAME, tmp_path, mirror=server.url)
    assert_whole(tmp_path)


def test_a_beginning_that_does_not_belong_costs_one_more_download(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    server.drop_after = [5000]
    refusal(NAME, tmp_path, mirror=server.url)
    (tmp_path / f"{FILE}.part").write_bytes(b"x" * 5000)  # and the server does not notice
    fetch(NAME, tmp_path, mirror=server.url)
    assert server.asked_for(FILE) == [None, "bytes=5000-", None]
    assert_whole(tmp_path)


def test_a_whole_part_that_was_not_yet_in_place_is_no_dead_end(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    part = tmp_path / f"{FILE}.part"
    part.parent.mkdir(parents=True)
    shutil.copy(DATA / FILE, part)
    part.with_name(part.name + ".from").write_text(json.dumps({"url": f"{server.url}/{FILE}", "validator": '"1"'}))
    fetch(NAME, tmp_path, mirror=server.url)
    assert_whole(tmp_path)


def test_a_corrupted_byte_is_refused_and_not_kept(server, tmp_path):
    def corrupted(path: str) -> bytes | None:
        content = real_file(path)
        return content[:100] + bytes([content[100] ^ 1]) + content[101:] if path == FILE and content else content

    server.files = corrupted
    assert "is expected. The file was not kept." in refusal(NAME, tmp_path, mirror=server.url)
    assert not (tmp_path / FILE).exists()
    assert not list(tmp_path.rglob("*.part*"))
    server.files = real_file
    fetch(NAME, tmp_path, mirror=server.url)
    assert_whole(tmp_path)


def test_a_wrong_list_of_hashes_is_refused(server, tmp_path):
    text = (DATA / "SHA256SUMS").read_text()
    right = hashlib.sha256((DATA / FILE).read_bytes()).hexdigest()
    lists = {"SHA256SUMS": text.replace(right, "0" * 64)}
    server.files = lambda path: lists[path].encode() if path in lists else real_file(path)
    assert f"the hash is {right}, but {'0' * 64} is expected" in refusal(NAME, tmp_path, mirror=server.url)
    lists["SHA256SUMS"] = f"{right}  ./{FILE}\n{'0' * 64}  {FILE}\n"
    assert f"SHA256SUMS:2: {FILE} has two hashes" in refusal(NAME, tmp_path, mirror=server.url)
    lists["SHA256SUMS"] = "<html>"
    assert "SHA256SUMS:1: not a line of sha256sum" in refusal(NAME, tmp_path, mirror=server.url)


@pytest.mark.parametrize("path", ["../ud/x", "/etc/passwd", "ud/../../x", "ud\\..\\x", "ud/\x1b[2J"])
def test_a_list_of_hashes_cannot_lead_out_of_the_root(server, tmp_path, path):
    content = f"{'0' * 64}  {path}\n".encode()
    server.files = lambda asked: content if asked == "SHA256SUMS" else real_file(asked)
    assert "not a path below the data root" in refusal(NAME, tmp_path, mirror=server.url)


def test_another_version_of_what_the_root_knows_is_refused(server, tmp_path):
    (tmp_path / "SHA256SUMS").write_text(f"{'1' * 64}  ./{FILE}\n")
    assert "another version than the root's SHA256SUMS" in refusal(NAME, tmp_path, mirror=server.url)


def test_a_mirror_says_what_it_has_instead(server, tmp_path):
    message = refusal("ud:tr_bounn/test", tmp_path, mirror=server.url)
    assert "does not have it. Did you mean 'ud:tr_boun/test'?" in message
    assert "Known: ud:yo_ytb/test." in refusal("ud:yo_ytb/train", tmp_path, mirror=server.url)


def test_servers_that_stumble_are_asked_again(server, tmp_path):
    server.statuses = [503, 429, 500]
    fetch(NAME, tmp_path, mirror=server.url)
    assert len(server.asked_for(FILE)) == 4
    assert_whole(tmp_path)


def test_servers_that_refuse_are_not(server, tmp_path):
    server.statuses = [403]
    assert "the server responds with 403" in refusal(NAME, tmp_path, mirror=server.url)
    assert len(server.asked_for(FILE)) == 1


def test_no_network_is_told_with_a_hint(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BACKOFF", 0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    message = refusal(NAME, tmp_path, mirror=url)
    assert "the connection failed" in message
    assert "Tried 4 times" in message
    assert "--mirror" in message


@pytest.mark.parametrize(
    ("target", "refused"),
    [
        ("file:///etc/passwd", "responds with 302"),
        ("ftp://127.0.0.1/x", "responds with 302"),
        ("data:,x", "is not an address"),
        ("/in/a/circle", "responds with 302"),
    ],
)
def test_redirects_lead_to_http_only(server, tmp_path, target, refused):
    server.redirect = target
    assert refused in refusal(NAME, tmp_path, mirror=server.url)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    ("start", "end", "allowed"), [("https", "http", False), ("https", "https", True), ("http", "https", True)]
)
def test_redirects_never_lose_their_encryption(tmp_path, monkeypatch, start, end, allowed):
    def respond(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "a.example":
            return httpx2.Response(302, headers={"Location": f"{end}://b.example{request.url.path}"})
        return httpx2.Response(200, content=iter([real_file(request.url.path.removeprefix("/")) or b""]))

    client = partial(httpx2.Client, transport=httpx2.MockTransport(respond))
    monkeypatch.setattr(httpx2, "Client", client)
    if allowed:
        fetch(NAME, tmp_path, mirror=f"{start}://a.example")
        assert_whole(tmp_path)
    else:
        message = refusal(NAME, tmp_path, mirror=f"{start}://a.example")
        assert "responds with 302 Found to http://b.example/SHA256SUMS, which is refused" in message


@pytest.mark.parametrize("mirror", ["file:///tmp", "/tmp", "ftp://127.0.0.1"])
def test_mirrors_are_http_only(tmp_path, mirror):
    assert "not an address" in refusal(NAME, tmp_path, mirror=mirror)


def test_what_is_too_large_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    assert "Refused" in refusal(NAME, tmp_path, mirror=server.url)
    assert not (tmp_path / FILE).exists()


def test_two_processes_do_not_write_into_one_part(server, tmp_path):
    part = tmp_path / f"{FILE}.part"
    part.parent.mkdir(parents=True)
    code = "import fcntl, sys; f = open(sys.argv[1], 'a+b'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, part], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        assert "another process is fetching this file" in refusal(NAME, tmp_path, mirror=server.url)
        other.communicate(b"\n")
    fetch(NAME, tmp_path, mirror=server.url)
    assert_whole(tmp_path)


def test_treebanks_come_from_their_source_at_the_pinned_commit(source, tmp_path):
    (path,) = fetch(NAME, tmp_path)
    assert path == tmp_path / FILE.removesuffix(".xz")
    assert path.read_bytes() == lzma.decompress((DATA / FILE).read_bytes())
    commit = treebanks("ud")["tr_boun"].commit
    assert source.asked[0][0] == f"UD_Turkish-BOUN/{commit}/tr_boun-ud-test.conllu"
    assert (tmp_path / "ud/UD_Turkish-BOUN/README.md").is_file()
    assert len(list(resolve(NAME, root=tmp_path).records("tags"))) == 979


def test_non_commercial_treebanks_go_where_they_are_marked(source, tmp_path):
    paths = fetch("ud:ta_ttb", tmp_path)
    assert {path.relative_to(tmp_path).parts[:2] for path in paths} == {("nc", "ud")}
    assert resolve("ud:ta_ttb/test", root=tmp_path).non_commercial


def test_a_source_without_a_split_says_so_and_gives_no_other(source, tmp_path):
    assert "the source has no train split" in refusal("ud:yo_ytb/train", tmp_path)
    assert not list(tmp_path.rglob("*.conllu*"))
    assert [path.name for path in fetch("ud:yo_ytb", tmp_path)] == ["yo_ytb-ud-test.conllu"]


def test_the_first_hash_is_enforced_ever_after(source, tmp_path):
    (path,) = fetch(NAME, tmp_path)
    path.unlink()
    right, source.files = source.files, lambda path: b"something else"
    assert "is expected. The file was not kept." in refusal(NAME, tmp_path)
    source.files = right
    assert fetch(NAME, tmp_path) == [path]


def test_a_source_that_does_not_say_how_long_it_is_cannot_be_cut_short_unnoticed(source, tmp_path):
    source.says_length = False
    assert "would pass for the whole" in refusal(NAME, tmp_path)


def test_unknown_treebanks_and_collections_without_a_source_are_told_before_anything_is_asked(source, tmp_path):
    assert "Did you mean 'tr_boun'?" in refusal("ud:tr_bounn/test", tmp_path)
    assert "Use a mirror" in refusal("wikiann:yo/test", tmp_path)
    assert not source.asked
