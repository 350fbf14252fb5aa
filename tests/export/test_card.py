"""Model cards: the Hub reads their metadata, and people their text."""

import pytest
import torch
from huggingface_hub import ModelCard

from polyloom.conditions import Condition
from polyloom.export.adapter import Adapter
from polyloom.export.card import card
from polyloom.weights import Block, Site, Weights

WEIGHTS = Weights((Block("lora", "projections", (Site("encoder", 0),), {"q_down": torch.zeros(1, 1, 30, 40)}),))
ABOUT = {
    "method": "hyperx", "backbone": 'local/"quoted": name',
    "scores": [{"metric": "F1", "value": 71.236, "signature": "f1|b:1"}], "licences": {"ud:no_x/train": None},
}  # fmt: skip
IDENTITY = {"model_type": "bert", "frozen_sha256": "0123456789abcdef"}


@pytest.mark.parametrize(
    ("to", "library", "use"),
    [
        ("polyloom", "polyloom", "polyloom predict out ner/no\n"),
        ("adapterhub", "adapters", r'from_pretrained("local/\"quoted\": name")'),
        ("adapterhub", "adapters", 'for folder in ["out/language", "out/task"]]'),
        ("peft", "peft", 'from_pretrained(base_model, "out")'),
    ],
)
def test_a_card_has_metadata_use_labels_scores_and_data(to, library, use):
    adapter = Adapter(Condition("ner", "no"), WEIGHTS, about=ABOUT, labels=("O", "B-LOC"), identity=IDENTITY)
    text = card(adapter, file_format=to, path="out", folders=["out/language", "out/task"])
    assert ModelCard(text).data.to_dict() == {
        "library_name": library, "language": ["no"], "base_model": ABOUT["backbone"], "tags": ["polyloom", "hyperx"],
    }  # fmt: skip
    assert use in text
    for part in ("1,200 parameters", "hash 0123456789ab)", "`O`, `B-LOC`\n", "- F1 71.24 (`f1|b:1`)\n"):
        assert part in text
    assert text.endswith("## Data\n\n- `ud:no_x/train`: licence unknown\n")


@pytest.mark.parametrize("to", ["polyloom", "adapterhub", "peft"])
def test_a_card_of_an_adapter_without_scores_and_labels_says_so(to):
    text = card(Adapter(Condition("mt", "en", "de"), WEIGHTS), file_format=to, path="out")
    assert "en → de" in text
    assert "## Labels" not in text
    assert "`polyloom evaluate` computes them" in text
    assert text.endswith("## Data\n\nNot known.\n")
