"""The hash of a large file is computed once, and again whenever the file may have changed."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyloom.errors import DataError
from polyloom.io import hashes
from polyloom.io.hashes import SMALL, remembered_sha256, sha256_of
from tests.reliability.forks import ended, fork

TICK = 0.05  # seconds; longer than a tick of the clock by which Linux notes changes


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hashes"


@pytest.fixture
def later(monkeypatch):
    """Let the clock say that files were written ten seconds ago."""
    monkeypatch.setattr(hashes, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"a" * SMALL)
    return path


@pytest.fixture
def read(monkeypatch):
    """The files that were hashed."""
    names, digest = [], hashlib.file_digest

    def count(file, name):
        names.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", count)
    return names


def test_a_file_is_hashed_once_whatever_it_is_called(file, later, read, tmp_path, monkeypatch):
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    (tmp_path / "link").symlink_to(file)
    monkeypatch.chdir(tmp_path)
    for path in (file, file, tmp_path / "link", Path("corpus.txt")):
        assert remembered_sha256(path) == expected
    assert read == ["corpus.txt"]


def overwrite(file: Path) -> None:
    with file.open("r+b") as changed:
        changed.write(b"b")


def overwrite_with_the_time_of_before(file: Path) -> None:
    status = file.stat()
    overwrite(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by_one_of_the_same_time(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"b" * SMALL)
    shutil.copystat(file, other)
    other.replace(file)


def append(file: Path) -> None:
    with file.open("ab") as changed:
        changed.write(b"b")


@pytest.mark.parametrize(
    "change", [overwrite, overwrite_with_the_time_of_before, replace_by_one_of_the_same_time, append]
)
def test_a_changed_file_is_hashed_again(file, later, read, cache, change: Callable[[Path], None]):
    before = remembered_sha256(file)
    time.sleep(TICK)
    change(file)
    after = remembered_sha256(file)
    assert before != after == hashlib.sha256(file.read_bytes()).hexdigest() == remembered_sha256(file)
    assert len(read) == 2
    assert len(list(cache.iterdir())) == 1, "one note for a file, however often it changes"


def coarse(descriptor: int) -> SimpleNamespace:
    """Return what is known about an open file where times are even seconds, as on FAT."""
    status = os.fstat(descriptor)
    names = ("st_size", "st_ino", "st_dev", "st_mtime_ns", "st_ctime_ns")
    values = {name: getattr(status, name) for name in names}
    return SimpleNamespace(**{n: v // 2_000_000_000 * 2_000_000_000 if "time" in n else v for n, v in values.items()})


def test_changes_within_a_tick_of_the_clock_are_noticed(file, read, monkeypatch):
    monkeypatch.setattr(hashes, "os", SimpleNamespace(fstat=coarse))
    for number in range(50):
        content = bytes([number]) * SMALL
        with file.open("r+b") as changed:
            changed.write(content)
        assert remembered_sha256(file) == hashlib.sha256(content).hexdigest()
    assert len(read) == 50


def test_a_file_that_was_just_written_is_not_remembered_until_later(file, read, cache, monkeypatch):
    os.utime(file, ns=(0, 0))
    changed = file.stat().st_ctime_ns
    clock = SimpleNamespace(time_ns=lambda: changed + hashes.SETTLED)
    monkeypatch.setattr(hashes, "time", clock)
    remembered_sha256(file)
    assert not cache.exists(), "an old time of modification proves nothing: any program can set it"
    clock.time_ns = lambda: changed + hashes.SETTLED + 1
    assert remembered_sha256(file) == remembered_sha256(file)
    assert len(read) == 2


def test_a_file_that_changes_while_it_is_hashed_is_not_remembered(file, later, cache, monkeypatch):
    digest = hashlib.file_digest

    def change_meanwhile(opened, name):
        found = digest(opened, name)
        time.sleep(TICK)
        overwrite(file)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "file_digest", change_meanwhile)
        before = remembered_sha256(file)
    assert not cache.exists()
    assert before != remembered_sha256(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_damaged_note_is_ignored_and_written_again(file, later, read, cache):
    expected = remembered_sha256(file)
    (note,) = cache.iterdir()
    whole = note.read_bytes()
    damaged = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(0, len(whole), 7)]
    others = [b"", b"{}", b"[]", b"\xff", whole[: len(whole) // 2], whole.partition(b"\n")[2], b"{" + whole[90:]]
    for content in (*damaged, *others):
        read.clear()
        note.write_bytes(content)
        assert remembered_sha256(file) == expected
        assert read == ["corpus.txt"], content
        assert note.read_bytes() == whole


def test_without_a_cache_that_can_be_written_everything_works(file, later, read, tmp_path, monkeypatch):
    (tmp_path / "no-folder").touch()
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "no-folder"))
    assert remembered_sha256(file) == remembered_sha256(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert len(read) == 2


def test_small_files_leave_no_notes(file, later, read, cache):
    file.write_bytes(b"a" * (SMALL - 1))
    assert remembered_sha256(file) == remembered_sha256(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert len(read) == 2
    assert not cache.exists()


def test_to_find_damage_a_file_is_read_every_time(file, later, read):
    remembered_sha256(file)
    assert sha256_of(file) == sha256_of(file)
    assert len(read) == 3


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: cannot be read: No such file"):
        remembered_sha256(tmp_path / "none.txt")


def test_of_several_processes_one_hashes(file, later, tmp_path, monkeypatch):
    digest, log = hashlib.file_digest, tmp_path / "log"

    def slow(opened, name):
        with log.open("a") as lines:
            lines.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return digest(opened, name)

    monkeypatch.setattr(hashlib, "file_digest", slow)
    expected = hashlib.sha256(file.read_bytes()).hexdigest()

    def check() -> None:
        assert remembered_sha256(file) == expected

    children = [fork(check) for _ in range(4)]
    assert [ended(child) for child in children] == [0] * 4
    assert len(log.read_text().splitlines()) == 1
