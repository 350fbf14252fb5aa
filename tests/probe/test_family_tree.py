"""Languages whose tree is known: what a hypernetwork learns of them from raw text alone has that tree's shape."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import cophenet
from scipy.spatial.distance import squareform

from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.synthetic import Family
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.loading import load_run_dir
from polyloom.probe.languages import language_vectors, probe_languages
from polyloom.workflows.export import export_run
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.shared import lines_of

FAMILY = Family()
SHUFFLES = 999


def train(folder: Path, name: str, languages: Sequence[str], **settings: Any) -> Path:
    recipe = {
        "languages": list(languages), "tasks": {"mlm": {}}, "mixture": {"datasets_per_batch": min(6, len(languages))},
        "data": {"train": {f"mlm/{x}": f"synthetic:{x}/train[:500]" for x in languages}},
        "train": {"steps": settings.pop("steps"), "rows_per_batch": 48, "max_length": 48, "dropout": False},
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(json.dumps(recipe | settings))
    train_recipe(load_recipe(folder / f"{name}.yaml"), folder / name)
    return folder / name


@pytest.mark.nightly
def test_embeddings_recover_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "results"))
    texts = {language: lines_of(f"synthetic:{language}/train[:500]") for language in FAMILY.names}
    train_vocabulary(texts, tmp_path / "vocabulary", config=VocabularyConfig(size=900, mask=True))
    config = {
        "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 920,
        "intermediate_size": 128, "max_position_embeddings": 64, "pad_token_id": 1, "initializer_range": 0.05,
    }  # fmt: skip
    backbone = {"config": config, "tokenizer": str(tmp_path / "vocabulary")}
    # It has read one language: the others are up to their adapters.
    plain = train(tmp_path, "full", ["boza"], backbone=backbone, method={"name": "full"}, optim={"lr": 3e-3}, steps=300)
    export_run(load_run_dir(plain), [Condition("mlm", "boza")], tmp_path / "out", backbone=True)
    method = {"name": "hyperx", "adapter_size": 32, "projection_size": 16, "hidden_size": 32, "embedding_size": 8}
    run = train(
        tmp_path, "hyperx", FAMILY.names, backbone={"name": str(tmp_path / "out" / "backbone")}, method=method,
        optim={"lr": 1e-2, "warmup_steps": 20, "groups": {"embeddings": 1e-1}}, steps=500,
    )  # fmt: skip
    found = probe_languages(language_vectors(Run.load(run).model))
    heights_NN = squareform(cophenet(found["linkage"]))
    truth_NN = np.array([[FAMILY.distance(a, b) for b in found["languages"]] for a in found["languages"]])
    value, chance = agreement(heights_NN, truth_NN)
    record_property("cophenetic correlation", value)
    assert value > 0.6, f"{value:.2f}: four seeds had 0.74 to 0.82"
    assert value > max(chance), f"shuffled languages reach {max(chance):.2f}"


def agreement(heights_NN: Any, truth_NN: Any) -> tuple[float, list[float]]:
    """Correlation of the heights at which languages are joined with their distance; and that of shuffled languages."""
    pairs, draw = np.triu_indices(len(truth_NN), 1), np.random.default_rng(0)
    orders = [np.arange(len(truth_NN)), *(draw.permutation(len(truth_NN)) for _ in range(SHUFFLES))]
    value, *chance = (
        float(np.corrcoef(heights_NN[pairs], truth_NN[np.ix_(order, order)][pairs])[0, 1]) for order in orders
    )
    return value, chance
