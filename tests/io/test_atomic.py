"""Files and folders are there whole or not at all, and nothing temporary is left behind."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from polyloom.io import atomic
from polyloom.io.atomic import PARTIAL, atomic_dir, new_file, remove_partial, write_text_atomic
from tests.reliability.forks import ended, fork


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def fail(make: Callable[[Path], AbstractContextManager[Path]], path: Path) -> None:
    with make(path) as partial:
        (partial / "a" if partial.is_dir() else partial).write_text("half")
        raise KeyboardInterrupt


def test_text_is_written_and_replaced(tmp_path):
    path = tmp_path / "a.json"
    write_text_atomic(path, "ä\n")
    with path.open(encoding="utf-8") as reader:
        write_text_atomic(path, "new")
        assert reader.read() == "ä\n", "an open file keeps its content"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.json"]


def test_a_file_that_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        fail(new_file, path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_folder_appears_with_all_its_files_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "folder"
    with pytest.raises(KeyboardInterrupt):
        fail(atomic_dir, path)
    assert names(path.parent) == []
    with atomic_dir(path) as partial:
        (partial / "a").write_text("a")
        assert not path.exists()
    assert names(path.parent) == ["folder"]
    assert (path / "a").read_text() == "a"


def test_a_folder_replaces_an_empty_one_and_no_other(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    with atomic_dir(path) as partial:
        (partial / "a").touch()
    with pytest.raises(OSError, match="not empty"), atomic_dir(path) as partial:
        (partial / "b").touch()
    assert names(path) == ["a"]
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("make", [new_file, atomic_dir])
def test_content_is_on_the_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], AbstractContextManager[Path]]
) -> None:
    path = tmp_path / "a"
    flushed: list[tuple[str, bool]] = []
    flush = atomic._flush

    def noted(file: Path) -> None:
        flushed.append((file.name.split(PARTIAL)[0], path.exists()))
        flush(file)

    monkeypatch.setattr(atomic, "_flush", noted)
    with make(path) as partial:
        (partial / "b" if partial.is_dir() else partial).write_text("text")
    inner = [("b", False)] if make is atomic_dir else []
    assert flushed == [*inner, (".a", False), (tmp_path.name, True)]


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / f".a{PARTIAL}1-ff").mkdir()
    (tmp_path / f".a{PARTIAL}1-ff" / "file").touch()
    (tmp_path / f".b{PARTIAL}2-ff").touch()
    (tmp_path / "kept").touch()
    remove_partial(tmp_path)
    assert names(tmp_path) == ["kept"]


@pytest.mark.parametrize("make", [new_file, atomic_dir])
def test_what_a_live_process_writes_is_not_removed_and_what_a_killed_one_wrote_is(
    tmp_path: Path, make: Callable[[Path], AbstractContextManager[Path]]
) -> None:
    path, ready = tmp_path / "a", tmp_path / "ready"

    def write_for_ever() -> None:
        with make(path):
            ready.touch()
            time.sleep(100)

    child = fork(write_for_ever)
    while not ready.exists():
        time.sleep(0.001)
    ready.unlink()
    (theirs,) = names(tmp_path)
    remove_partial(tmp_path)
    with make(path):
        assert theirs in names(tmp_path), "its writer is alive"
    os.kill(child, signal.SIGKILL)
    ended(child)
    assert set(names(tmp_path)) == {theirs, "a"}
    with make(tmp_path / "b"):
        assert theirs in names(tmp_path), "of another name: its next writer removes it"
    path.unlink() if path.is_file() else path.rmdir()
    with make(path) as ours:
        assert theirs not in names(tmp_path), "its writer is dead"
        assert str(os.getpid()) not in ours.name.replace("-", " ").split(), "processes in containers have the same id"
    assert set(names(tmp_path)) == {"a", "b"}


def test_a_folder_within_a_folder_appears_with_it(tmp_path):
    path = tmp_path / "outer"
    with atomic_dir(path) as partial:
        with atomic_dir(partial) as same:
            (same / "a").touch()
        with atomic_dir(partial / "one" / "two") as inner:
            (inner / "b").touch()
        assert inner == partial / "one" / "two"
        assert not path.exists()
    assert (path / "a").exists()
    assert (path / "one" / "two" / "b").exists()
    assert names(tmp_path) == ["outer"]
