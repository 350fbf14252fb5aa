"""What tests share: real corpora and a real pretrained backbone (which a clone does not have; CI does, and must not
skip), lines of a corpus, commands in this process, and what one that was run has to say."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from polyloom.cli import app
from polyloom.data.catalog import resolve
from polyloom.data.records import Text
from polyloom.errors import PolyloomError

SHARED = Path(os.environ.get("POLYLOOM_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
EXAMPLES = Path(__file__).parents[1] / "examples"
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
