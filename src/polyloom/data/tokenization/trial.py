"""Try a tokenizer in a process with limits, once on every machine.

An untrusted tokenizer can be made to need hours, or all memory, for a short text: by a regular expression, or by what
it replaces. `trial_worker` runs in the process.
"""

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

from polyloom.errors import PolyloomError
from polyloom.io.machine_notes import is_noted, note
from polyloom.io.untrusted import read_limited

MAX_BYTES = 128 << 20  # of a file of a tokenizer; Gemma's has 33 MB
# The soft limit of processor time ends the process by SIGXCPU, the hard limit by SIGKILL. The Rust library aborts where
# it gets no memory.
_ENDS = {
    -getattr(signal, name): reason  # Windows has no such signals
    for name, reason in {"SIGXCPU": "it is too slow", "SIGKILL": "it is too slow", "SIGABRT": "it is too large"}.items()
    if hasattr(signal, name)
}
_SECONDS = 60.0  # of a busy machine; the processor time is limited in the process


def try_tokenizer(folder: Path) -> None:
    """Raise an error if a tokenizer cannot be loaded, or is too slow or too large. Success is noted in the cache."""
    whole = folder / "tokenizer.json"
    for path in [whole] if whole.exists() else sorted([*folder.glob("*.model"), *folder.glob("*.spm")]):
        try:
            tried = f"tokenizer:{hashlib.sha256(read_limited(path, MAX_BYTES)).hexdigest()}"
        except OSError as error:
            raise PolyloomError(f"backbone.name: {path} {error}") from error
        if not is_noted(tried):
            _try(path)
            note(tried)


def _try(path: Path) -> None:
    worker = Path(__file__).with_name("trial_worker.py")
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-P", str(worker), str(path)],  # -P: modules beside the worker are not importable
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        # The last line of an error is its message. A process that a signal ended may have written none.
        reason = (done.stderr.strip().splitlines() or [_ENDS.get(done.returncode, f"exit code {done.returncode}")])[-1]
        reason = reason if done.returncode else ""
    except subprocess.TimeoutExpired:
        reason = "it did not end"
    if reason:
        raise PolyloomError(f"backbone.name: {path} cannot be used as a tokenizer: {reason[:300]}")
