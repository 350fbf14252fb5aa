"""A decoder learns languages: a LoRA for each is generated, trained on packed text and scored in bits per byte."""

import json
import subprocess
import sys

import pytest

from polyloom.evaluate.matrix import Matrix
from polyloom.workflows.run import Run
from polyloom.workflows.train import train
from tests.tiny_decoder import decoder_recipe


def bits_per_byte(matrix: Matrix) -> dict[str, float]:
    scores = {str(condition): result.scores for condition, result in matrix.results.items()}
    assert all([score.metric.name for score in some] == ["bits_per_byte", "perplexity"] for some in scores.values())
    return {condition: some[0].value for condition, some in scores.items()}


@pytest.mark.nightly
def test_both_languages_are_learnt_though_they_contradict_each_other(tmp_path):
    run = train(decoder_recipe(tmp_path), tmp_path / "run")
    scores = bits_per_byte(run.evaluate())
    assert scores.keys() == {"lm/aa", "lm/bb"}
    # The first word is one of eight, then all is known but where it ends: about 5 bits for a line of 28 bytes, 0.2
    # for each. Not to know the language costs a bit more for the second word, and words alone 0.9 for each byte.
    assert max(scores.values()) < 0.45, scores
    other = Run.load(tmp_path / "run").evaluate({"lm/aa": f"{tmp_path}/bb-test.txt"})
    assert bits_per_byte(other)["lm/aa"] > 5 * scores["lm/bb"], "the language matters"
    aa, bb = run.generate(["ba do fi", "lem ko gu"], ["lm/aa", "lm/bb"], max_new_tokens=6)
    assert (aa.split()[0], bb.split()[0]) == ("gu", "fi")
    command = [sys.executable, "-m", "polyloom", "generate", str(tmp_path / "run"), "lm/aa", "--max-new-tokens", "6"]
    piped = subprocess.run([*command, "--json"], input="ba do fi\n", capture_output=True, text=True, check=True)
    assert json.loads(piped.stdout) == {"prompt": "ba do fi", "text": aa}
