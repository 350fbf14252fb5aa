"""Score translations with COMET, a trained metric that runs in its own virtual environment.

Rei et al. (2020, 2022). unbabel-comet 2.2.7 needs NumPy 1 and Transformers 4, so it cannot be installed with
Polyloom; ``POLYLOOM_COMET_PYTHON`` names a Python that has it. One process loads the checkpoint and scores everything.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from polyloom.data.records import Bitext, Record
from polyloom.errors import PolyloomError
from polyloom.metrics.score import COMET, Array, Metric

PYTHON = "POLYLOOM_COMET_PYTHON"
_INSTALL = "pip install torch==2.13.0 unbabel-comet==2.2.7 'setuptools<81'"
_TAIL = 600  # characters of stderr that an error message quotes


class Comet:
    """A COMET checkpoint, loaded by a process of another Python until `close` is called.

    Args:
        checkpoint: A ``.ckpt`` file, or a name such as ``Unbabel/wmt22-comet-da``, which COMET downloads if needed.

    Attributes:
        metric: `COMET`, with the version of the package and the hash of the checkpoint in its signature.
    """

    def __init__(self, checkpoint: str) -> None:
        command = os.environ.get(PYTHON, "")
        python = shutil.which(command)
        if python is None:
            problem = f"is {command!r}, which is not an executable" if command else "is not set"
            raise PolyloomError(
                f"--comet: {PYTHON} {problem}. COMET needs its own virtual environment: create one, run {_INSTALL} in "
                "it, and set this variable to its bin/python."
            )
        # To a file: nobody reads a pipe while the process works, and it would block once the pipe is full.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603 - the user chooses the program
            [python, str(Path(__file__).with_name("comet_worker.py")), checkpoint],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, encoding="utf-8",
        )  # fmt: skip
        try:
            reply = self._read_reply()  # once the checkpoint is loaded
            if "missing" in reply:
                raise PolyloomError(
                    f"--comet: {python} has no COMET ({reply['missing']}). Install it there: {_INSTALL}"
                )
            if "unusable" in reply:
                raise PolyloomError(
                    f"--comet {checkpoint}: cannot be loaded ({reply['unusable']}). Known: a .ckpt file, with "
                    "hparams.yaml in the folder above its own, or a name such as Unbabel/wmt22-comet-da, from the "
                    "Hugging Face Hub."
                )
        except BaseException:
            self.close()
            raise
        signature = f"comet:{reply['version']}|checkpoint:{reply['sha256'][:12]}"
        self.metric = replace(COMET, settings=lambda _language: signature)

    def measure(self, records: Sequence[Record], translations: Sequence[str]) -> dict[Metric, Array]:
        """Score translations of the sources of pairs against their targets; return the statistics of `COMET`."""
        pairs = [record for record in records if isinstance(record, Bitext)]
        triples = [{"src": p.source, "mt": t, "ref": p.target} for p, t in zip(pairs, translations, strict=True)]
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(triples) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended: `_read_reply` raises an error with its stderr
        scores = np.array(self._read_reply()["scores"], np.float64)
        if scores.shape != (len(triples),) or not np.isfinite(scores).all():
            num_scores = int(np.isfinite(scores).sum())
            raise PolyloomError(f"--comet: {len(triples)} translations, but {num_scores} finite scores.")
        # A metric is a function of sums, and statistics are not negative: both parts are summed apart (see `COMET`).
        return {self.metric: np.stack([scores.clip(min=0), (-scores).clip(min=0), np.ones_like(scores)], axis=1)}

    def _read_reply(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            reply: Mapping[str, Any] = json.loads(line)
            return reply
        self._stderr.seek(0)
        message = self._stderr.read().decode(errors="replace").strip()[-_TAIL:]
        raise PolyloomError(
            f"--comet: COMET's process ended (exit {self._process.wait()}). Its stderr: {message or 'empty'}"
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
