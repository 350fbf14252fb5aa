"""COMET in a Python of its own: its scores are COMET's, none is lost, and whatever goes wrong there is said here.

Two kinds of tests. Those with the real package need a virtual environment with it (POLYLOOM_COMET_PYTHON) and score
with a tiny model with random weights: what its numbers are worth is not at stake, that they are COMET's own is. The
others put a stand-in for the package before this Python; all but the package is real.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.records import Bitext
from polyloom.errors import PolyloomError
from polyloom.evaluate.comet import PYTHON, Comet
from polyloom.evaluate.matrix import Matrix, Result
from polyloom.figures.bars import draw_groups
from polyloom.figures.matrices import draw_directions
from polyloom.metrics.score import COMET, Score, signature
from polyloom.metrics.significance import bootstrap_interval, paired_bootstrap
from polyloom.workflows.train import train_recipe
from tests.shared import polyloom
from tests.tasks.test_translation import sentence

REAL = os.environ.get(PYTHON, "")
RECORDS = [Bitext(sentence(i) if i % 7 else "", sentence(i + 100)) for i in range(40)]
WRITTEN = [sentence(i + 200) if i % 5 else "" for i in range(40)]

# The mean over letters of "code modulo 7, minus 4": positive and negative, and different for every text.
STAND_IN = """
from pathlib import Path

print("a library that prints")

def download_model(name):
    raise KeyError(f"Model '{name}' not supported by COMET.")

class Model:
    def eval(self):
        return self

    def predict(self, samples, batch_size, gpus, progress_bar):
        print("and prints again")
        if any("die" == s["mt"] for s in samples):
            raise SystemError("out of something")
        self.scores = [sum(ord(c) % 7 - 4 for c in s["mt"]) / (len(s["mt"]) or 1) for s in samples]
        if any("lose" == s["mt"] for s in samples):
            self.scores.pop()
        return self

def load_from_checkpoint(path):
    return Model()
"""


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the stand-in takes for a checkpoint."""
    package = tmp_path / "site"
    (package / "comet").mkdir(parents=True)
    (package / "comet" / "__init__.py").write_text(STAND_IN)
    (package / "unbabel_comet-0.0.dist-info").mkdir()
    (package / "unbabel_comet-0.0.dist-info" / "METADATA").write_text("Name: unbabel-comet\nVersion: 0.0\n")
    monkeypatch.setenv(PYTHON, sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(package), prepend=os.pathsep)
    (tmp_path / "model.ckpt").write_text("weights")
    return tmp_path / "model.ckpt"


def score(comet: Comet, records, written) -> Score:
    ((metric, statistics_NP),) = comet.measure(records, written).items()
    signed = signature(metric, statistics_NP, condition="mt/en/de", corpus="c", sha256="0" * 64)
    return Score(metric, statistics_NP, signed)


def of_sentences(scored: Score) -> np.ndarray:
    return scored.statistics_NP[:, 0] - scored.statistics_NP[:, 1]


# -- the real package --------------------------------------------------------------------------------------------------

MAKE = """
import json, sys, torch
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast
from comet.models import RegressionMetric

folder, triples = Path(sys.argv[1]), json.loads(sys.stdin.read())
tokenizer = Tokenizer(models.Unigram())
tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>")
tokenizer.train_from_iterator([text for one in triples for text in one.values()], trainer)
ends = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
XLMRobertaTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "encoder")
XLMRobertaConfig(
    vocab_size=70, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    initializer_range=0.5, max_position_embeddings=64,
).save_pretrained(folder / "encoder")
torch.manual_seed(0)
settings = {"pretrained_model": str(folder / "encoder"), "hidden_sizes": [8], "layer_transformation": "softmax"}
model = RegressionMetric(**settings, load_pretrained_weights=False)
(folder / "checkpoints").mkdir()
stored = {"state_dict": model.state_dict(), "hyper_parameters": settings, "pytorch-lightning_version": "2.0.0"}
torch.save(stored, folder / "checkpoints" / "model.ckpt")
(folder / "hparams.yaml").write_text("class_identifier: regression_metric")
found = model.predict(triples, gpus=0, progress_bar=False)
print("\\n" + json.dumps({"scores": found.scores, "system": found.system_score}))
"""


@pytest.mark.nightly
@pytest.mark.parity
@pytest.mark.skipif(not REAL, reason=f"{PYTHON} names no Python with unbabel-comet 2.2.7")
def test_scores_are_those_of_comet_itself(tmp_path):
    triples = [{"src": r.source, "mt": t, "ref": r.target} for r, t in zip(RECORDS, WRITTEN, strict=True)]
    command = [REAL, "-c", MAKE, str(tmp_path)]
    made = subprocess.run(command, input=json.dumps(triples), text=True, check=True, capture_output=True)
    theirs = json.loads(made.stdout.splitlines()[-1])
    with Comet(str(tmp_path / "checkpoints" / "model.ckpt")) as comet:
        ours, backwards = score(comet, RECORDS, WRITTEN), score(comet, RECORDS[::-1], WRITTEN[::-1])
    assert np.std(theirs["scores"]) > 0.01, "or any order would do"
    np.testing.assert_allclose(of_sentences(ours), theirs["scores"], atol=1e-5)
    np.testing.assert_allclose(of_sentences(backwards)[::-1], theirs["scores"], atol=1e-5)
    assert ours.value == pytest.approx(100 * theirs["system"], abs=1e-3)
    assert "comet:2.2.7|checkpoint:" in ours.signature


@pytest.mark.nightly
@pytest.mark.parity
@pytest.mark.skipif(not REAL, reason=f"{PYTHON} names no Python with unbabel-comet 2.2.7")
def test_a_checkpoint_that_comet_does_not_know_is_named():
    with pytest.raises(PolyloomError, match=r"--comet no/such: cannot be loaded .*Known: a \.ckpt file"):
        Comet("no/such")


# -- with a stand-in for it --------------------------------------------------------------------------------------------


def test_negative_scores_count_as_what_they_are(checkpoint):
    with Comet(str(checkpoint)) as comet:
        one = score(comet, RECORDS, WRITTEN)
    expected = [sum(ord(c) % 7 - 4 for c in text) / (len(text) or 1) for text in WRITTEN]
    assert min(expected) < 0 < max(expected)
    np.testing.assert_allclose(of_sentences(one), expected)
    assert one.value == pytest.approx(100 * np.mean(expected))
    again = Score.from_dict(json.loads(json.dumps(one.to_dict())))
    assert again.value == one.value
    low, high = bootstrap_interval(again, 0)
    assert low < one.value < high
    # sha256sum of "weights"
    assert one.signature.endswith("|comet:0.0|checkpoint:9a129038d9a0")


def test_scores_of_other_checkpoints_are_not_compared(checkpoint, tmp_path):
    (tmp_path / "other.ckpt").write_text("other weights")
    scores = []
    for path in (checkpoint, checkpoint, tmp_path / "other.ckpt"):
        with Comet(str(path)) as comet:
            scores.append(score(comet, RECORDS, WRITTEN))
    assert paired_bootstrap(scores[0], scores[1], seed=0).difference == 0
    with pytest.raises(PolyloomError, match="comparison: checkpoint is 9a129038d9a0 for one score"):
        paired_bootstrap(scores[0], scores[2], seed=0)


def test_a_process_that_dies_has_the_last_word(checkpoint):
    with Comet(str(checkpoint)) as comet:
        with pytest.raises(PolyloomError, match=r"(?s)ended \(exit 1\)\. Its stderr: .*SystemError: out of something"):
            comet.measure(RECORDS[:1], ["die"])
        with pytest.raises(PolyloomError, match="process ended"):
            comet.measure(RECORDS[:1], ["and is not asked again"])


def test_lost_scores_are_not_passed_over(checkpoint):
    with Comet(str(checkpoint)) as comet, pytest.raises(PolyloomError, match="2 translations, but 1 finite scores"):
        comet.measure(RECORDS[:2], ["lose", "one"])


def test_what_is_missing_is_said(checkpoint, monkeypatch):
    with pytest.raises(PolyloomError, match=r"--comet wmt99: cannot be loaded \(KeyError.*Known: a \.ckpt file"):
        Comet("wmt99")
    (checkpoint.parent / "site" / "comet" / "__init__.py").write_text("import pkg_resources_of_long_ago")
    with pytest.raises(
        PolyloomError,
        match=r"has no COMET \(No module named 'pkg_resources_of_long_ago'\)\. Install it there: pip install",
    ):
        Comet(str(checkpoint))
    monkeypatch.setenv(PYTHON, "/no/such/python")
    with pytest.raises(PolyloomError, match="is '/no/such/python', which is not an executable"):
        Comet(str(checkpoint))
    monkeypatch.delenv(PYTHON)
    with pytest.raises(PolyloomError, match=r"is not set\. COMET needs its own virtual environment"):
        Comet(str(checkpoint))


def test_figures_of_scores_at_and_below_zero_are_drawn(tmp_path):
    for values in ([0.0, 0.0], [-0.5, -0.25], [-0.5, 0.5]):
        parts = ([[max(value, 0), max(-value, 0), 1.0]] for value in values)
        results = [Result((Score(COMET, np.array(some), ""),), zero_shot=False) for some in parts]
        matrix = Matrix({Condition("mt", "en", f"l{i}"): result for i, result in enumerate(results)})
        draw_groups(matrix, tmp_path / "groups.png", metric="comet")
        draw_directions(matrix, tmp_path / "grid.png", metric="comet")


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt nothing, of two directions and one that is not trained."""
    folder = tmp_path_factory.mktemp("mt")
    for pair, count in (("en-de", 60), ("en-fr", 30), ("de-fr", 5)):
        for side, name in enumerate(pair.split("-")):
            (folder / f"{pair}.{name}").write_text("".join(f"{sentence(i + 1000 * side)}\n" for i in range(count)))
    corpora = {f"mt/{a}/{b}": f"{folder}/{a}-{b}.{{{a},{b}}}" for a, b in (("en", "de"), ("en", "fr"))}
    settings = {
        "backbone": {"preset": "transformer-mini", "tokenizer": str(folder / "vocabulary")},
        "method": {"name": "dense"},
        "languages": ["en", "de", "fr"],
        "tasks": {"mt": {}},
        "data": {
            "train": corpora,
            "test": corpora | {"mt/de/fr": f"{folder}/de-fr.{{de,fr}}"},
            "allow": ["test-in-train"],
        },
        "train": {"steps": 1, "rows_per_batch": 2, "max_length": 32},
    }
    (folder / "recipe.yaml").write_text(json.dumps(settings))
    polyloom("data", "vocab", folder / "recipe.yaml", "-o", folder / "vocabulary", "--size", 60)
    train_recipe(load_recipe(folder / "recipe.yaml"), folder / "run")
    return folder / "run"


def test_the_command_adds_comet_levels_and_figures(run, checkpoint, tmp_path):
    options = (
        "--beams",
        1,
        "--signatures",
        "--comet",
        checkpoint,
        "--levels",
        40,
        60,
        "--figure",
        tmp_path / "scores.svg",
    )
    told = polyloom("evaluate", run, *options)
    assert "mt bleu" in told
    assert "mt comet" in told
    assert "|comet:0.0|checkpoint:9a129038d9a0" in told
    assert [line.split()[0:2] for line in told.splitlines() if line.startswith(("En→X ", "X→Y"))] == [
        ["En→X", "2"], ["En→X", "high"], ["En→X", "low"], ["X→Y⁰", "1"],
    ]  # fmt: skip
    assert "fewer than 40 training pairs" in told
    assert re.search(r"^bleu: source . target +en +de +fr$", told, flags=re.MULTILINE)
    assert {file.name for file in tmp_path.glob("scores-*")} == {
        f"scores-{kind}-{metric}.svg" for kind in ("groups", "directions") for metric in ("bleu", "chrf", "comet")
    }
    stored = Matrix.read(run / "evaluations" / "test.json").results[Condition("mt", "en", "fr")]
    assert [(s.metric.name, s.count) for s in stored.scores] == [("bleu", 30), ("chrf", 30), ("comet", 30)]
    assert "comet" in polyloom("compare", run, run)


def test_the_command_fails_before_it_translates(run, monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)
    complaint = polyloom("evaluate", run, "--comet", "Unbabel/wmt22-comet-da", fails=True)
    assert complaint.startswith(f"--comet: {PYTHON} is not set.")
