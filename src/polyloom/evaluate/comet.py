"""COMET beside BLEU and chrF: a learnt metric, asked in a virtual environment of its own.

Rei et al. (2020, 2022). unbabel-comet 2.2.7 needs NumPy 1 and Transformers 4, so it can never be installed beside
Polyloom; ``POLYLOOM_COMET_PYTHON`` names a Python that has it. One process loads the checkpoint once and scores all.
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
_INSTALL = "pip install 'unbabel-comet==2.2.7' 'setuptools<81'"
_TAIL = 600  # letters of what a process said before it died


class Comet:
    """A COMET checkpoint, loaded in another Python until it is closed.

    Args:
        checkpoint: A ``.ckpt`` file, or a name such as ``Unbabel/wmt22-comet-da``, which COMET fetches if it must.

    Attributes:
        metric: `COMET`, signed with the version of the package and the hash of the checkpoint.
    """

    def __init__(self, checkpoint: str) -> None:
        named = os.environ.get(PYTHON, "")
        python = shutil.which(named)
        if python is None:
            wrong = f"names {named!r}, which is no program" if named else "is not set"
            raise PolyloomError(
                f"--comet: {PYTHON} {wrong}. COMET needs a virtual environment of its own: make one, in it {_INSTALL}, "
                "and let this variable name its bin/python."
            )
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603 - a program that the user names
            [python, str(Path(__file__).with_name("comet_worker.py")), checkpoint],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._talk, encoding="utf-8",
        )  # fmt: skip
        try:
            self._hello(checkpoint, python)
        except BaseException:
            self.close()
            raise

    def _hello(self, checkpoint: str, python: str) -> None:
        hello = self._listen()
        if "missing" in hello:
            raise PolyloomError(f"--comet: {python} has no COMET ({hello['missing']}). There: {_INSTALL}")
        if "unusable" in hello:
            raise PolyloomError(
                f"--comet {checkpoint}: cannot be loaded ({hello['unusable']}). Known: a .ckpt file, with hparams.yaml "
                "in the folder above its own, or a name such as Unbabel/wmt22-comet-da, from the Hugging Face Hub."
            )
        signed = f"comet:{hello['version']}|checkpoint:{hello['sha256'][:12]}"
        self.metric = replace(COMET, settings=lambda _language: signed)

    def judge(self, records: Sequence[Record], translations: Sequence[str]) -> dict[Metric, Array]:
        """Parts of `COMET` for translations of pairs' sources, the pairs' targets being the references."""
        pairs = [record for record in records if isinstance(record, Bitext)]
        triples = [{"src": p.source, "mt": t, "ref": p.target} for p, t in zip(pairs, translations, strict=True)]
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(triples) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: what it said last is told when there is no answer
        scores = np.array(self._listen()["scores"], np.float64)
        if scores.shape != (len(triples),) or not np.isfinite(scores).all():
            found = int(np.isfinite(scores).sum())
            raise PolyloomError(f"--comet: {len(triples)} translations, but {found} scores that are numbers.")
        return {self.metric: np.stack([scores.clip(min=0), (-scores).clip(min=0), np.ones_like(scores)], axis=1)}

    def _listen(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            answer: Mapping[str, Any] = json.loads(line)
            return answer
        self._talk.seek(0)
        said = self._talk.read().decode(errors="replace").strip()[-_TAIL:]
        raise PolyloomError(
            f"--comet: COMET's process ended (exit {self._process.wait()}). It said: {said or 'nothing'}"
        )

    def close(self) -> None:
        """Let the process end."""
        self._process.kill()
        self._process.communicate()
        self._talk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
