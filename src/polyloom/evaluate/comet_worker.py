"""Run COMET in its own virtual environment, as a worker of `comet`: JSON lines on stdin and stdout.

The first line on stdout has the version of COMET, or why it cannot be used; then, for every list of triples on stdin,
there is a line with their scores. Polyloom cannot be imported here: COMET needs older versions of its dependencies.
"""

import hashlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path


def main(name: str) -> None:
    """Load a checkpoint, by file or by name, and score the triples on stdin."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to stderr
    sys.path = [folder for folder in sys.path if folder != str(Path(__file__).parent)]  # which has another comet.py

    def reply(**fields: object) -> None:
        print(json.dumps(fields), file=replies, flush=True)

    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # a checkpoint holds no code that runs
    try:
        import torch  # noqa: PLC0415 - may be missing
        from comet import download_model, load_from_checkpoint  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError as error:
        return reply(missing=str(error))
    try:
        path = Path(name) if Path(name).is_file() else Path(download_model(name))
        model = load_from_checkpoint(str(path)).eval()
    except Exception as error:  # any error is reported to the parent process
        return reply(unusable=f"{type(error).__name__}: {error}")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    reply(version=version("unbabel-comet"), sha256=digest.hexdigest())
    for line in sys.stdin:
        options = {"batch_size": 16, "gpus": int(torch.cuda.is_available()), "progress_bar": False}
        reply(scores=[float(score) for score in model.predict(json.loads(line), **options).scores])
    return None


if __name__ == "__main__":
    main(sys.argv[1])
