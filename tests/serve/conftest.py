import json

import pytest

from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.workflows.train import train
from tests.shared import lines_of
from tests.tiny_run import tiny_recipe

TASKS = ("mlm", "pos", "ner", "dep", "nli", "qa")
TRANSLATED = ("boza", "kepa", "bame")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the recipes, the backbone and the runs are."""
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="session")
def run(folder):
    """A run of five tasks that has learnt how two languages differ."""
    return train(tiny_recipe(folder, tasks=TASKS), folder / "hyper")


@pytest.fixture(scope="session")
def translator(folder):
    """A run that translates, badly, from one language into two others."""
    texts = {name: lines_of(f"synthetic:{name}/train[:300]") for name in TRANSLATED}
    train_vocabulary(texts, folder / "vocabulary", config=VocabularyConfig(size=300), languages=list(TRANSLATED))
    common, *others = TRANSLATED
    recipe = {
        "backbone": {"preset": "transformer-mini", "tokenizer": str(folder / "vocabulary")},
        "method": {"name": "hyper-adapters", "hidden_size": 16, "adapter_size": 8},
        "languages": list(TRANSLATED),
        "tasks": {"mt": {}},
        "directions": [f"{common}/*"],
        "data": {"train": {f"mt/{common}/{other}": f"synthetic:{common}-{other}/train[:300]" for other in others}},
        "optim": {"lr": 3e-3},
        "train": {"steps": 60, "tokens_per_batch": 512, "max_length": 40},
    }
    (folder / "translator.yaml").write_text(json.dumps(recipe))
    return train(folder / "translator.yaml", folder / "translator")
