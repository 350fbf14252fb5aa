"""What tests share: real corpora and a real pretrained backbone (which a clone does not have; CI does, and must not
skip), lines of a corpus, and commands, in this process or in a child of it."""

import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from typer.testing import CliRunner

from polyloom.cli import app, main
from polyloom.data.catalog import resolve
from polyloom.data.records import Text
from polyloom.errors import PolyloomError

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("POLYLOOM_SHARED", ROOT.parent / "shared"))
DATA = SHARED / "data"
EXAMPLES = ROOT / "examples"
UNPACK = SHARED / "backbones" / "unpack.py"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the corpora at {SHARED} (POLYLOOM_SHARED)")


def lines_of(corpus: str, root: Path | None = None) -> list[str]:
    """Every line of a corpus, as raw text."""
    return [record.text for record in resolve(corpus, root=root).records("text") if isinstance(record, Text)]


def polyloom(*arguments: object, stdin: str = "", fails: bool = False) -> str:
    """Run a command in this process; what it prints, or what it complains about."""
    result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin)
    if fails:
        assert isinstance(result.exception, PolyloomError), result.output
        return str(result.exception)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def nightly(*values: Any) -> list[Any]:
    """Values of a parameter that CI leaves out; a tuple is a row of values."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=pytest.mark.nightly) for row in rows]


def in_child(main: Callable[[], Any], words: Sequence[str]) -> Callable[[], None]:
    """Return what a forked process does instead of becoming another program: it calls a function and ends.

    Args:
        main: The function of a program.
        words: Its command.
    """

    def run() -> None:
        # A new program has none of these files, and `Popen` waits until its pipe is closed, whatever number that has.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        signal.set_wakeup_fd(-1)  # of the parent's event loop
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        torch.set_num_threads(1)  # renews torch's pool, whose threads a fork does not have
        # A fork of this fork replaces these objects; that must not close the files.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = open(1, "w", 1, closefd=False), open(2, "w", 1, closefd=False)  # noqa: SIM115
        sys.argv, code = list(words), 1
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    return run


def start_command(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """Start a command in a real process, with real pipes and signals, forked from this one.

    A new interpreter takes seconds to import torch and Transformers; this one has done it. That ``python -m polyloom``
    is the same command is shown by the few tests that start one.

    Args:
        *arguments: Arguments of ``polyloom``.
        **options: Options of `subprocess.Popen`.
    """

    words = ["polyloom", *map(str, arguments)]
    return subprocess.Popen(words, preexec_fn=in_child(main, words), text=True, **options)  # noqa: PLW1509


def start_benchmark(name: str, *arguments: object) -> None:
    """Run a benchmark in a process of one thread; it must end well."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Clock:
    """The time of a module: it passes only where the module waits.

    Attributes:
        waits: The seconds of every wait.
    """

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)
