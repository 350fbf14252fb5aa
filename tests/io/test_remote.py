"""Objects of a real S3 server arrive exactly though a proxy breaks answers, and what cannot arrive is an error."""

import itertools
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from polyloom.errors import (
    MissingObjectError,
    ObjectChangedError,
    PolyloomError,
    PolyloomWarning,
    StorageError,
)
from polyloom.io import remote
from polyloom.io.range_cache import RangeCache
from polyloom.io.remote import RemoteFolder, RetryLimits
from tests.io.storage_server import Fault, Proxy, call, environment, moto_server
from tests.reliability.forks import ended, fork
from tests.shared import Clock

# Where requests are counted, no answer may be given up because the machine is slow. ALERT gives up silent answers, and
# slow ones with them, so its requests are not counted exactly. Reads wait by `Clock`, obstore's writes by the real one.
PATIENT = RetryLimits(total=600.0, request=600.0, stall=600.0, first_wait=0.01, longest_wait=0.05)
ALERT = replace(PATIENT, stall=0.4)
IMPATIENT = replace(PATIENT, total=0.3, first_wait=0.02, longest_wait=0.1)
CONTENT = random.Random(0).randbytes(5000)
PASSING = [
    Fault("status", status=503), Fault("status", status=429), Fault("status", status=500), Fault("status", status=408),
    Fault("reset"), Fault("stall"), Fault("cut"), Fault("drip"), Fault("shorten"), Fault("narrow"), Fault("whole"),
]  # fmt: skip
SILENT = ("stall", "drip")
FOREVER = 10**6
numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Proxy]:
    with moto_server(tmp_path_factory.mktemp("moto")) as url:
        call("PUT", f"{url}/bucket")
        proxy = Proxy(url)
        yield proxy
        proxy.close()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(remote, "time", made)
    return made


class Storage:
    """The bucket ``bucket`` behind the proxy; `put` goes past the proxy, as another program would write."""

    def __init__(self, proxy: Proxy, prefix: str, clock: Clock) -> None:
        self.proxy, self.prefix, self.clock = proxy, prefix, clock
        self.direct = f"http://{proxy.upstream}/bucket"

    def put(self, name: str, content: bytes = CONTENT) -> None:
        call("PUT", f"{self.direct}/{self.prefix}/{name}", content)

    def get(self, name: str) -> bytes:
        return call("GET", f"{self.direct}/{quote(f'{self.prefix}/{name}')}")

    def folder(self, cache: RangeCache | None = None, limits: RetryLimits = PATIENT) -> RemoteFolder:
        return RemoteFolder(f"s3://bucket/{self.prefix}", cache=cache, limits=limits)

    def breaks(self, fault: Fault, times: int = FOREVER, *, methods: tuple[str, ...] = ("GET", "HEAD")) -> None:
        self.proxy.faults = [Fault(fault.kind, times, fault.status, fault.code, methods)]

    @property
    def asked(self) -> list[str]:
        """Methods of the requests so far."""
        return [request.method for request in self.proxy.requests]


@pytest.fixture
def storage(server, request, monkeypatch, clock) -> Iterator[Storage]:
    for name, value in environment(server.url).items():
        monkeypatch.setenv(name, value)
    server.clear()
    server.only = f"{next(numbers)}-" + re.sub(r"\W+", "-", request.node.name)
    yield Storage(server, server.only, clock)
    server.clear()


def named(fault: Fault) -> str:
    return f"{fault.status}" if fault.kind == "status" else fault.kind


# Reading


def test_a_range_is_one_request_for_exactly_its_bytes(storage):
    storage.put("a")
    folder = storage.folder()
    assert storage.asked == [], "opening asks nothing"
    assert folder.read_range("a", 10, 30) == CONTENT[10:30]
    assert folder.read_range("a", 4999, 5000) == CONTENT[4999:]
    assert folder.read_range("a", 7, 7) == b""
    assert [r.headers["range"] for r in storage.proxy.requests] == ["bytes=10-29", "bytes=4999-4999"]
    assert (folder.requests, folder.bytes_read, storage.asked) == (2, 21, ["GET", "GET"])


def test_whole_objects_are_read_in_ranges(storage, monkeypatch):
    monkeypatch.setattr("polyloom.io.remote._LONGEST_RANGE", 2000)
    storage.put("a")
    storage.put("empty", b"")
    folder = storage.folder()
    assert folder.read("a") == CONTENT
    assert storage.asked == ["HEAD", "GET", "GET", "GET"]
    assert folder.read("empty") == b""
    assert folder.size("a") == 5000
    assert storage.asked == ["HEAD", "GET", "GET", "GET", "HEAD"], "the size is known"


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (6, 5), (4000, 5001), (5000, 5001), (9000, 9001)])
def test_ranges_outside_of_an_object_are_errors_at_once(storage, start, stop):
    storage.put("a")
    for folder in (storage.folder(), storage.folder()):
        with pytest.raises(StorageError, match="range") as caught:
            folder.read_range("a", start, stop)
        assert "s3://bucket/" in str(caught.value)
        folder.size("a")
        with pytest.raises(StorageError, match="range"):
            folder.read_range("a", start, stop)
    assert len(storage.asked) <= 4


def test_names_and_sizes(storage):
    for name in ("b", "a", "sub/c", ""):
        storage.put(name)
    call("PUT", f"{storage.direct}/{storage.prefix}-other/x", b"another folder")
    folder = storage.folder()
    assert folder.names() == ["a", "b", "sub/c"]
    assert folder.read("sub/c") == CONTENT
    assert (folder.exists("a"), folder.exists("sub"), folder.exists("nothing")) == (True, False, False)
    assert RemoteFolder("s3://bucket/nothing-here").names() == []


@pytest.mark.parametrize("name", ["a b", "ü/ñ.arrow", "50%", "a%2Fb", "%2e%2e", "a#b?c&d=e", "~*[+]'\"", "a\\b"])
def test_a_name_is_written_and_read_as_it_is(storage, name):
    folder = storage.folder()
    folder.write(name, CONTENT)
    assert storage.get(name) == CONTENT
    assert folder.read(name) == CONTENT
    assert folder.names() == [name]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/../../b", "a/./b", "/a", "/etc/passwd", "a/", "a//b", "a\nb", "a\0", "\ud800"]
)
def test_a_name_cannot_lead_out_of_the_folder(storage, tmp_path, name):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_text("secret")
    for folder in (storage.folder(), RemoteFolder((tmp_path / "inner").as_uri())):
        for use in (
            folder.read,
            folder.size,
            folder.exists,
            lambda name, f=folder: f.read_range(name, 0, 1),
            lambda name, f=folder: f.write(name, b"x"),
        ):
            with pytest.raises(StorageError, match="the name of the object"):
                use(name)
    assert storage.asked == []


@pytest.mark.parametrize(
    "url",
    ["bucket/a", "http://bucket/a", "s3:/bucket", "s3://", "s3:///a", "s3://key:secret@bucket/a", "s3://bucket/../a",
     "s3://bucket/a//b", "file://relative", "file:///does/not/exist", "memory:///"],
)  # fmt: skip
def test_addresses_that_name_no_folder_are_refused(url):
    with pytest.raises(StorageError):
        RemoteFolder(url)


# Failures that pass


@pytest.mark.parametrize("fault", PASSING, ids=named)
def test_a_range_survives_failures_in_a_row(storage, fault):
    storage.put("a")
    folder = storage.folder(limits=ALERT if fault.kind in SILENT else PATIENT)
    assert folder.read_range("a", 0, 10) == CONTENT[:10], "the connection is open when it breaks"
    times = 1 if fault.kind in SILENT else 4
    storage.breaks(fault, times)
    assert folder.read_range("a", 100, 1100) == CONTENT[100:1100]
    if fault.kind in SILENT:
        assert folder.requests >= 1 + times + 1
    else:
        assert folder.requests == len(storage.asked) == 1 + times + 1, "every attempt is counted, and none is hidden"


@pytest.mark.parametrize("fault", PASSING, ids=named)
def test_a_failure_that_does_not_pass_is_an_error_after_bounded_waits(storage, fault):
    storage.put("a")
    folder = storage.folder(limits=replace(IMPATIENT, stall=0.1) if fault.kind in SILENT else IMPATIENT)
    storage.breaks(fault)
    with pytest.raises(StorageError, match=rf"^s3://bucket/{storage.prefix}/a: tried \d+ times over .*Check") as caught:
        folder.read_range("a", 100, 1100)
    waits = storage.clock.waits
    assert sum(waits) <= IMPATIENT.total < sum(waits) + IMPATIENT.longest_wait, "all the time is used"
    assert folder.requests == len(waits) + 1
    if fault.kind not in SILENT:  # whose requests may be given up before the proxy has read them
        assert folder.requests == len(storage.asked)
    assert not isinstance(caught.value, MissingObjectError | ObjectChangedError)
    assert "Debug" not in str(caught.value)
    expected = {"status": f"{fault.status}", "reset": "reset by peer", "cut": "reset by peer", "stall": "no answer",
                "drip": "no answer", "shorten": "500 bytes came instead of 1000", "narrow": "got 100..600",
                "whole": "non-partial"}  # fmt: skip
    assert expected[fault.kind] in str(caught.value)


@pytest.mark.parametrize("fault", [PASSING[0], Fault("reset"), Fault("cut"), Fault("shorten")], ids=named)
def test_sizes_and_listings_survive_failures(storage, fault):
    for name in ("a", "b"):
        storage.put(name)
    folder = storage.folder()
    storage.breaks(fault, 3)
    assert folder.names() == ["a", "b"]
    assert folder.requests == 4
    if fault.kind in ("status", "reset"):
        storage.breaks(fault, 3)
        assert folder.size("a") == 5000
        storage.breaks(fault, 3)
        assert folder.exists("a")
        assert folder.requests == len(storage.asked) == 12


def test_waits_double_up_to_a_limit_and_are_shortened_at_random(storage, monkeypatch):
    monkeypatch.setattr(remote, "_RANDOM", random.Random(0))
    storage.put("a")
    folder = storage.folder(limits=RetryLimits(first_wait=0.02, longest_wait=0.16))
    storage.breaks(Fault("status"), 6)
    folder.read_range("a", 0, 10)
    draw = random.Random(0)
    longest = [0.02, 0.04, 0.08, 0.16, 0.16, 0.16]
    assert storage.clock.waits == pytest.approx([wait * draw.uniform(0.5, 1.0) for wait in longest])


# Failures that do not pass


def refused(storage: Storage, use, *, error: type[StorageError] = StorageError) -> str:
    """Return the message of an error that comes at once: after two requests at most, without a wait."""
    before = len(storage.asked)
    with pytest.raises(error) as caught:
        use()
    assert type(caught.value) is error
    assert storage.clock.waits == []
    assert len(storage.asked) - before <= 2
    return str(caught.value)


def uses(folder: RemoteFolder):
    return {
        "read": lambda: folder.read("a"),
        "read_range": lambda: folder.read_range("a", 0, 1),
        "size": lambda: folder.size("a"),
        "exists": lambda: folder.exists("a"),
        "names": folder.names,
        "write": lambda: folder.write("a", b"x"),
    }


@pytest.mark.parametrize("use", ["read", "read_range", "size"])
def test_a_missing_object_is_an_error_at_once(storage, use):
    message = refused(storage, uses(storage.folder())[use], error=MissingObjectError)
    assert message == f"s3://bucket/{storage.prefix}/a: there is no such object."


@pytest.mark.parametrize("use", ["read", "read_range", "size", "exists", "names", "write"])
def test_a_missing_bucket_is_not_taken_for_a_missing_object(storage, use):
    folder = RemoteFolder("s3://nobody-has-this/a")
    assert "there is no bucket or container 'nobody-has-this'" in refused(storage, uses(folder)[use])


@pytest.fixture
def guarded(storage) -> Iterator[tuple[str, str]]:
    """Let moto check signatures and permissions; the key and the secret of a user."""
    address = f"http://{storage.proxy.upstream}"

    def ask(**values: str) -> str:
        signed = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0"
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": signed}
        return call("POST", f"{address}/", urlencode(values).encode(), **headers).decode()

    storage.put("a")
    user = storage.prefix[:60]
    ask(Action="CreateUser", UserName=user)
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    ask(Action="PutUserPolicy", UserName=user, PolicyName="p", PolicyDocument=json.dumps(policy))
    answer = ask(Action="CreateAccessKey", UserName=user)
    key, secret = (re.findall(f"<{tag}>(.*?)<", answer)[0] for tag in ("AccessKeyId", "SecretAccessKey"))
    call("POST", f"{address}/moto-api/reset-auth", b"0")
    yield key, secret
    call("POST", f"{address}/moto-api/reset-auth", b"inf")


@pytest.mark.parametrize("use", ["read", "read_range", "size", "exists", "names", "write"])
def test_wrong_credentials_are_an_error_at_once(storage, guarded, monkeypatch, use):
    key, secret = guarded
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    message = refused(storage, uses(storage.folder())[use])
    assert "access is denied (403 Forbidden" in message
    assert "AWS_ACCESS_KEY_ID" in message
    assert "wrong-secret" not in message
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    uses(storage.folder())[use]()  # the same with the right ones


def test_no_credentials_are_an_error_soon(storage, monkeypatch):
    """Elsewhere than in a cloud nobody answers at the address where machines find theirs, or somebody else does."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("polyloom.io.remote._METADATA_SECONDS", 0.2)
    storage.proxy.only = ""  # the proxy stands for a cloud's address, too
    for address in (storage.proxy.url, "http://127.0.0.1:1"):
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", address)
        storage.breaks(Fault("status", status=404), methods=("PUT",))
        for use in uses(storage.folder()).values():
            storage.clock.waits.clear()
            with pytest.raises(StorageError, match=r"no credentials were found\. Set AWS_ACCESS_KEY_ID"):
                use()
            assert sum(storage.clock.waits) <= 0.2


def test_http_needs_a_permission(storage, monkeypatch):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "set AWS_ALLOW_HTTP" in refused(storage, lambda: storage.folder().size("a"))


@pytest.mark.parametrize(
    ("status", "message"),
    [(301, "Set AWS_REGION"), (400, "refuses the request (400 Bad Request, ExpiredToken)"), (403, "access is denied")],
)
def test_requests_that_are_refused_are_not_repeated(storage, status, message):
    storage.put("a")
    storage.breaks(Fault("status", status=status, code="ExpiredToken"))
    assert message in refused(storage, lambda: storage.folder().read_range("a", 0, 1))
    assert len(storage.asked) == 1


def test_an_answer_without_etag_is_refused(storage):
    storage.put("a")
    storage.breaks(Fault("untagged"))
    assert "no ETag" in refused(storage, lambda: storage.folder().read_range("a", 0, 1))


# Objects that change


@pytest.mark.parametrize("other", [CONTENT[::-1], CONTENT[:50], CONTENT + b"more"], ids=["same size", "small", "large"])
@pytest.mark.parametrize("server_compares", [True, False], ids=["if-match", "no if-match"])
@pytest.mark.parametrize("first", ["size", "read_range"])
def test_a_changed_object_is_an_error_and_no_mixture(storage, other, server_compares, first):
    storage.put("a")
    folder = storage.folder()
    uses(folder)[first]()
    storage.put("a", other)
    if not server_compares:
        storage.breaks(Fault("unconditional"))
    for _ in range(2):
        message = refused(storage, lambda: folder.read_range("a", 1000, 2000), error=ObjectChangedError)
        assert re.match(rf"s3://bucket/{storage.prefix}/a: .*replaced", message)
    assert storage.asked.count("GET") == 2 + (first == "read_range"), "nothing is tried again"
    assert all("if-match" in request.headers for request in storage.proxy.requests[1:])
    assert storage.folder().read("a") == other
    storage.put("a")
    assert folder.read("a") == CONTENT, "what was read first is there again"


def test_an_object_that_changes_between_two_attempts_is_an_error(storage):
    storage.put("a")
    folder = storage.folder()
    storage.breaks(Fault("cut"), 1)
    storage.proxy.before = lambda request: storage.put("a", CONTENT[::-1]) if len(storage.asked) == 2 else None
    with pytest.raises(ObjectChangedError):
        folder.read_range("a", 0, 5000)
    assert folder.requests == 2


def test_a_whole_object_never_mixes_two_versions(storage, monkeypatch):
    monkeypatch.setattr("polyloom.io.remote._LONGEST_RANGE", 1000)
    storage.put("a")
    storage.proxy.before = lambda request: storage.put("a", CONTENT[::-1]) if len(storage.asked) == 4 else None
    with pytest.raises(ObjectChangedError):
        storage.folder().read("a")


def test_an_object_that_is_deleted_is_missing(storage):
    storage.put("a")
    folder = storage.folder()
    folder.size("a")
    call("DELETE", f"{storage.direct}/{storage.prefix}/a")
    assert not folder.exists("a")
    refused(storage, lambda: folder.read_range("a", 0, 1), error=MissingObjectError)


# Writing


def test_small_and_large_objects_are_written(storage, tmp_path):
    folder = storage.folder()
    large = CONTENT * 3500  # 17.5 MB
    (tmp_path / "large").write_bytes(large)
    folder.write("small", b"/etc/hostname")
    assert storage.get("small") == b"/etc/hostname", "content, not the name of a file"
    folder.write("empty", b"")
    assert storage.get("empty") == b""
    storage.proxy.requests.clear()
    folder.write("large", tmp_path / "large")
    assert sum("partNumber=" in request.path for request in storage.proxy.requests) == 3
    assert storage.get("large") == large
    assert folder.read("large") == large


def test_what_is_written_is_read_again(storage):
    folder = storage.folder()
    folder.write("a", CONTENT)
    assert folder.read("a") == CONTENT
    folder.write("a", b"new")
    assert folder.read("a") == b"new"


def test_a_file_that_is_not_there_is_no_missing_object(storage, tmp_path):
    with pytest.raises(StorageError, match="no-file: cannot be read: No such file") as caught:
        storage.folder().write("a", tmp_path / "no-file")
    assert type(caught.value) is StorageError


@pytest.mark.parametrize("fault", [PASSING[0], Fault("reset"), Fault("stall")], ids=named)
def test_writing_survives_failures(storage, tmp_path, fault):
    folder = storage.folder(limits=ALERT if fault.kind == "stall" else PATIENT)
    times = 1 if fault.kind == "stall" else 2
    storage.breaks(fault, times, methods=("PUT", "POST"))
    folder.write("a", CONTENT)
    assert storage.get("a") == CONTENT
    if fault.kind == "stall":  # a busy machine may take longer than ALERT allows for each part of a large object
        return
    storage.breaks(fault, times, methods=("PUT", "POST"))
    folder.write("large", CONTENT * 1800)
    assert storage.get("large") == CONTENT * 1800


@pytest.mark.parametrize("times", [1, 1800], ids=["at once", "in parts"])
def test_a_write_that_fails_leaves_the_old_object(storage, times):
    storage.put("a", b"old")
    folder = storage.folder(limits=IMPATIENT)
    storage.breaks(Fault("status"), methods=("PUT",))
    with pytest.raises(StorageError, match=rf"^s3://bucket/{storage.prefix}/a: tried over .*503"):
        folder.write("a", CONTENT * times)
    assert folder.read("a") == b"old"
    assert b"<Upload>" not in call("GET", f"{storage.direct}?uploads"), "no parts stay behind"


# Threads and processes


def test_threads_share_a_folder(storage):
    storage.put("a")
    storage.put("b", CONTENT[::-1])
    folder = storage.folder()
    storage.proxy.faults = [Fault("status", 5), Fault("cut", 5), Fault("shorten", 5), Fault("reset", 5)]
    ranges = [("ab"[i % 2], i * 7, i * 7 + 1 + i % 50) for i in range(200)]
    with ThreadPoolExecutor(8) as threads:
        contents = list(threads.map(lambda r: folder.read_range(*r), ranges))
    expected = {"a": CONTENT, "b": CONTENT[::-1]}
    assert contents == [expected[name][start:stop] for name, start, stop in ranges]
    assert folder.requests == len(storage.asked) == 200 + 20
    # A short answer was content, too.
    assert folder.bytes_read >= sum(map(len, contents))


def test_threads_wait_at_the_same_time(storage):
    """No request is answered before all eight threads have sent theirs."""
    storage.put("a")
    folder = storage.folder(limits=IMPATIENT)
    together = threading.Barrier(8)
    storage.proxy.before = lambda _: together.wait() and None
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: folder.read_range("a", 0, 9), range(8))) == {CONTENT[:9]}
    assert len(storage.asked) == 8


def test_threads_never_see_two_versions(storage):
    versions = [bytes([i]) * 1000 for i in range(10)]
    storage.put("a", versions[0])
    folder = storage.folder()
    stop = threading.Event()

    def change() -> None:
        for version in versions[1:]:
            if not stop.wait(0.02):
                storage.put("a", version)

    def read(_: int) -> bytes:
        try:
            content: bytes = folder.read_range("a", 0, 1000)
        except ObjectChangedError:
            return b""
        return content

    writer = threading.Thread(target=change)
    writer.start()
    with ThreadPoolExecutor(8) as threads:
        contents = set(threads.map(read, range(60)))
    stop.set()
    writer.join()
    assert len(contents - {b""}) == 1
    assert contents - {b""} <= set(versions)


def test_a_forked_child_gets_an_error_instead_of_waiting_forever(storage):
    storage.put("a")
    folder = storage.folder()
    folder.exists("a")

    def use() -> None:
        for use in (*uses(folder).values(), lambda: storage.folder().read_range("a", 0, 1)):
            with pytest.raises(StorageError, match="forked"):
                use()

    assert ended(fork(use)) == 0
    assert folder.read("a") == CONTENT


# Other storages


def test_google_is_read_and_written(storage, monkeypatch):
    """Google's XML interface is that of S3 with other credentials, so the same server answers."""
    monkeypatch.setenv("GOOGLE_BASE_URL", storage.proxy.url)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    folder = RemoteFolder(f"gs://bucket/{storage.prefix}", limits=PATIENT)
    folder.write("a", CONTENT)
    storage.breaks(Fault("status"), 2)
    assert folder.read("a") == CONTENT
    assert folder.names() == ["a"]
    storage.put("a", CONTENT[::-1])
    with pytest.raises(ObjectChangedError):
        folder.read_range("a", 0, 10)
    assert all(request.headers["authorization"] == "Bearer token" for request in storage.proxy.requests)


def test_azure_is_opened_and_says_what_it_lacks(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageError, match="Account must be specified"):
        RemoteFolder("az://container/a")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    RemoteFolder("az://container/a")


def test_a_local_folder_is_read_and_written(tmp_path, clock):
    path = tmp_path / "with spaces ü"
    path.mkdir()
    folder = RemoteFolder(path.as_uri())
    folder.write("sub/a", CONTENT)
    assert (path / "sub" / "a").read_bytes() == CONTENT
    assert folder.read("sub/a") == CONTENT
    assert folder.read_range("sub/a", 5, 9) == CONTENT[5:9]
    assert folder.names() == ["sub/a"]
    assert not folder.exists("b")
    with pytest.raises(MissingObjectError):
        folder.read_range("b", 0, 1)
    with pytest.raises(StorageError):
        RemoteFolder(path.as_uri()).read_range("sub/a", 9000, 9001)
    assert clock.waits == []
    (path / "sub" / "a").write_bytes(CONTENT[::-1])
    with pytest.raises(ObjectChangedError):
        folder.read_range("sub/a", 0, 10)


def test_without_obstore_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(PolyloomError, match=r"pip install 'polyloom\[storage\]'"):
        RemoteFolder("s3://bucket/a")


# The cache of ranges


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.range"))


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def test_what_is_in_the_cache_needs_no_request(storage, tmp_path):
    storage.put("a")
    folder = storage.folder(RangeCache(tmp_path, 10**6))
    assert [folder.read_range("a", 10, 20) for _ in range(3)] == [CONTENT[10:20]] * 3
    assert storage.asked == ["GET"]
    assert folder.read_range("a", 10, 21) == CONTENT[10:21]
    assert storage.asked == ["GET"] * 2, "another range"
    assert (folder.requests, folder.bytes_read) == (2, 21)


def test_another_process_finds_the_cache_when_it_knows_the_version(storage, tmp_path):
    storage.put("a")
    storage.folder(RangeCache(tmp_path, 10**6)).read("a")
    storage.proxy.requests.clear()
    later = storage.folder(RangeCache(tmp_path, 10**6))
    assert later.read("a") == CONTENT
    assert storage.asked == ["HEAD"]
    assert later.bytes_read == 0


def test_the_cache_does_not_hide_that_an_object_changed(storage, tmp_path):
    storage.put("a")
    cache = RangeCache(tmp_path, 10**6)
    before = storage.folder(cache)
    assert before.read("a") == CONTENT
    storage.put("a", CONTENT[::-1])
    assert storage.folder(cache).read("a") == CONTENT[::-1]
    assert before.read("a") == CONTENT, "all ranges of one folder are of one version"
    with pytest.raises(ObjectChangedError):
        before.read_range("a", 0, 10)


def test_ranges_that_fail_are_not_cached(storage, tmp_path):
    storage.put("a")
    folder = storage.folder(RangeCache(tmp_path, 10**6), IMPATIENT)
    for fault in ("shorten", "cut"):
        storage.breaks(Fault(fault))
        with pytest.raises(StorageError):
            folder.read_range("a", 0, 100)
    assert files(tmp_path) == []


def damaged(content: bytes) -> Iterator[bytes]:
    for i in (0, 31, 32, 40, len(content) - 1):
        yield content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :]
    yield from (b"", content[:10], content[:32], content[:-1], content + b"x", b"\0" * len(content))


def test_a_damaged_file_is_fetched_again_and_never_returned(storage, tmp_path):
    storage.put("a")
    folder = storage.folder(RangeCache(tmp_path, 10**6))
    folder.read_range("a", 10, 100)
    (path,) = files(tmp_path)
    good = path.read_bytes()
    for requests, bad in enumerate(damaged(good), 2):
        path.write_bytes(bad)
        assert folder.read_range("a", 10, 100) == CONTENT[10:100]
        assert folder.requests == requests
        assert path.read_bytes() == good
        assert folder.read_range("a", 10, 100) == CONTENT[10:100]
        assert folder.requests == requests, "found again"


def test_a_file_under_another_key_is_not_returned(tmp_path):
    cache = RangeCache(tmp_path, 10**6)
    cache.put("a", b"1")
    (path,) = files(tmp_path)
    cache.put("b", b"2")
    (other,) = set(files(tmp_path)) - {path}
    other.write_bytes(path.read_bytes())
    assert (cache.get("a"), cache.get("b")) == (b"1", None)


def test_the_least_recently_used_ranges_are_removed(tmp_path):
    cache = RangeCache(tmp_path, 10 * 132)

    def date_in_order() -> None:
        """Let ranges have been used one after the other, long ago: Linux notes the same time for quick successors."""
        for i in range(11):
            with suppress(FileNotFoundError):
                os.utime(cache._path(f"{i}"), (i, i))

    for i in range(10):
        cache.put(f"{i}", bytes(100))
    date_in_order()
    assert cache.get("0") is not None
    cache.put("10", bytes(100))
    kept = [i for i in range(11) if cache.get(f"{i}") is not None]
    assert kept == [0, 3, 4, 5, 6, 7, 8, 9, 10], "1 and 2 made room, as a tenth is freed; 0 was used"
    assert used(tmp_path) <= 10 * 132
    cache.put("too large", bytes(10 * 132))
    assert cache.get("too large") is None
    assert len(files(tmp_path)) == 9
    date_in_order()
    cache.get("4")
    smaller = RangeCache(tmp_path, 3 * 132)
    assert 0 < used(tmp_path) <= 3 * 132
    assert smaller.get("4") == bytes(100)


def test_the_limit_holds_when_the_note_of_the_size_is_lost(tmp_path):
    cache = RangeCache(tmp_path, 10 * 132)
    for note in (b"", b"12", b"nonsense\n", None):
        (tmp_path / "total").unlink() if note is None else (tmp_path / "total").write_bytes(note)
        for i in range(15):
            cache.put(f"{note!r} {i}", bytes(100))
            assert used(tmp_path) <= 10 * 132


def test_processes_share_a_cache(tmp_path):
    """Four write and read, one damages and removes; content is right or missing, and the limit holds."""
    limit = 20 * 1032
    content = {f"{i}": random.Random(i).randbytes(1000) for i in range(60)}

    def work(seed: int) -> None:
        cache, order = RangeCache(tmp_path, limit), random.Random(seed)
        hits = 0
        for _ in range(150):
            key = f"{order.randrange(60)}"
            stored = cache.get(key)
            assert stored in (None, content[key])
            hits += stored is not None
            cache.put(key, content[key])
        assert hits > 10

    running = {fork(partial(work, seed)) for seed in range(4)}
    while running:
        for path in files(tmp_path):
            with suppress(FileNotFoundError):
                if path.name.startswith("0"):
                    path.unlink()
                elif path.name.startswith("1"):
                    path.write_bytes(b"damaged")
        time.sleep(0.002)
        for child in [*running]:
            process, status = os.waitpid(child, os.WNOHANG)
            assert status == 0
            running.discard(process)
    cache = RangeCache(tmp_path, limit)
    assert 0 < used(tmp_path) <= limit
    assert {path.name for path in tmp_path.iterdir()} == {"total", *(path.name for path in files(tmp_path))}
    assert all(cache.get(key) in (None, value) for key, value in content.items())


def test_killed_writers_leave_a_cache_that_works(tmp_path):
    def work() -> None:
        cache = RangeCache(tmp_path, 10 * 10_032)
        for i in range(10**6):
            cache.put(f"{i}", bytes(10_000))

    for i in range(8):
        child = fork(work)
        while not files(tmp_path):
            time.sleep(0.001)
        time.sleep(0.003 * i)  # another moment each time; none is wrong
        os.kill(child, signal.SIGKILL)
        assert ended(child) == -signal.SIGKILL
        assert used(tmp_path) <= 10 * 10_032
        cache = RangeCache(tmp_path, 10 * 10_032)
        cache.put("after", b"content")
        assert cache.get("after") == b"content"
        assert all(path.suffix == ".range" or path.name == "total" for path in tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_is_a_warning(storage, tmp_path):
    storage.put("a")
    folder = storage.folder(RangeCache(tmp_path / "cache", 10**6))
    (tmp_path / "cache" / "total").unlink()
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("in the way")
    with pytest.warns(PolyloomWarning, match="a range was not cached"):
        assert folder.read_range("a", 0, 10) == CONTENT[:10]
    with pytest.raises(StorageError, match="cannot be used as a cache"):
        RangeCache(tmp_path / "cache", 10**6)
