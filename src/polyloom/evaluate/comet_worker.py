"""COMET's side of `comet`, run by the Python of another virtual environment: JSON lines in, JSON lines out.

First it says which COMET it is, or why it is none; then, for every list of triples, their scores. Nothing of Polyloom
can be imported here: COMET needs older releases of what Polyloom is built on.
"""

import hashlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path


def main(name: str) -> None:
    """Load a checkpoint, by file or by name, and score what comes in on stdin."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the libraries print is talk
    sys.path = [folder for folder in sys.path if folder != str(Path(__file__).parent)]  # where another comet.py is

    def say(**fields: object) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        import torch  # noqa: PLC0415 - may be missing, which is worth a sentence
        from comet import download_model, load_from_checkpoint  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError as error:
        return say(missing=str(error))
    try:
        path = Path(name) if Path(name).is_file() else Path(download_model(name))
        model = load_from_checkpoint(str(path)).eval()
    except Exception as error:  # whatever it is, whoever asked must hear of it
        return say(unusable=f"{type(error).__name__}: {error}")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    say(version=version("unbabel-comet"), sha256=digest.hexdigest())
    for line in sys.stdin:
        options = {"batch_size": 16, "gpus": int(torch.cuda.is_available()), "progress_bar": False}
        say(scores=[float(score) for score in model.predict(json.loads(line), **options).scores])
    return None


if __name__ == "__main__":
    main(sys.argv[1])
