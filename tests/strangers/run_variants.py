"""Run commands on hostile variants, each in a child of this process, and print what came of them as JSON lines.

python -m tests.strangers.run_variants FOLDER COUNT
"""

import io
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from polyloom.cli import main
from polyloom.workflows import report, run  # noqa: F401 - before the children, which then need not import them
from tests.reliability.forks import fork
from tests.strangers.variants import make_variant

WALL = 600.0  # seconds until a child is killed that hangs; a stalled machine must not reach it
COMMANDS = {
    "predict": ["predict", "PLACE", "pos/aa"],
    "report": ["report", "PLACE", "-o", "NEW"],
    "import": [
        "import",
        "PLACE/pos/aa",
        "--as",
        "pos/aa",
        "--backbone",
        "PLACE/backbone",
        "--labels",
        "a,b",
        "-o",
        "NEW",
    ],
}


def try_variant(number: int, theirs: Path, folder: Path) -> dict[str, object]:
    """Make a variant of a copy of `theirs` and run the command that reads it."""
    shutil.copytree(theirs, folder / "theirs")
    recipe = folder / "theirs" / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().partition("\n")[2].replace(str(theirs), str(folder / "theirs")))
    what, place, command = make_variant(number, folder / "theirs")
    here, new = str(folder / "theirs" / place), str(folder / "new")
    arguments = [part.replace("PLACE", here).replace("NEW", new) for part in COMMANDS[command]]
    said = folder / "stderr"

    def work() -> None:
        with said.open("w") as file:
            os.dup2(file.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        sys.stdout, sys.stdin = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO(b"ba do fi\n"))
        sys.argv = ["polyloom", *arguments]
        try:
            main()
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(int(ended.code or 0))

    child, started = fork(work), time.monotonic()
    while not (ended := os.wait4(child, os.WNOHANG))[0]:
        if time.monotonic() - started > WALL:
            os.kill(child, 9)
        time.sleep(0.005)
    _, status, usage = ended
    text = said.read_text(errors="replace")
    return {
        "what": f"{number}: {what}", "command": command, "code": os.waitstatus_to_exitcode(status),
        "seconds": usage.ru_utime + usage.ru_stime, "megabytes": usage.ru_maxrss / 1024,
        "said": text if len(text) < 4000 else f"{text[:2000]} … {text[-2000:]}",
    }  # fmt: skip


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(try_variant(number, Path(sys.argv[1]), Path(folder))), flush=True)
