"""A crawl of sixty languages becomes a dataset for each: without near-duplicates, the same bytes after a kill."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.readers.bitext import Filter
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import DataError
from polyloom.training.published import open_published
from polyloom.workflows.train import train_recipe
from tests.tiny_decoder import decoder_recipe

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "web" / "fineweb2.py"
LANGUAGES = [f"l{number}" for number in range(60)]
TASKS, DOCUMENTS = 4, 1200  # of all languages; one in ten is there twice
pytestmark = pytest.mark.timeout(600)


def documents() -> list[dict[str, str]]:
    """Make up documents: each begins with its language, and has words of that language."""
    draw = random.Random(0)
    rows = []
    for number in range(DOCUMENTS):
        language = LANGUAGES[number % len(LANGUAGES)]
        words = [f"{language}{draw.choice('aeiou')}{draw.choice('bdfgk')}{draw.randrange(99)}" for _ in range(40)]
        rows.append({"id": str(number), "text": " ".join([language, *words]), "language": language})
    again = [row | {"id": f"{row['id']}-again", "text": row["text"] + " end"} for row in rows[::10]]
    draw.shuffle(rows)
    return rows + again


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The crawl, and a model with its tokenizer."""
    place: Path = tmp_path_factory.mktemp("crawl")
    decoder_recipe(place)
    rows = documents()
    (place / "crawl").mkdir()
    for task in range(TASKS):
        pq.write_table(pa.Table.from_pylist(rows[task::TASKS]), place / "crawl" / f"{task}.parquet")
    return place


def command(place: Path, name: str, *more: str) -> list[str]:
    into = place / name / "datasets"
    into.mkdir(parents=True, exist_ok=True)
    options = {
        "crawl": place / "crawl", "work": place / name / "work", "into": into.as_uri(), "tokenizer": place / "decoder",
        "task": "lm", "tasks": TASKS, "workers": 1,
    }  # fmt: skip
    listed = [f"--{key}={value}" for key, value in options.items()]
    return [sys.executable, str(SCRIPT), *listed, *more]


def content(place: Path, name: str) -> dict[str, bytes]:
    folder = place / name / "datasets"
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def whole(place) -> dict[str, bytes]:
    """The datasets, written without interruption."""
    subprocess.run(command(place, "whole"), check=True, capture_output=True, cwd=ROOT)
    return content(place, "whole")


def test_every_language_has_its_own_documents_once(place, whole):
    tokenizer = load_tokenizer(place / "decoder")
    corpora = {Condition("lm", language): [f"crawl:{language}"] for language in LANGUAGES}
    url = (place / "whole" / "datasets").as_uri()
    datasets = open_published(corpora, url, tokenizer=tokenizer, rules=Filter())
    assert sum(map(len, datasets.values())) == DOCUMENTS
    texts = {row["text"] for row in documents()}
    for condition, dataset in datasets.items():
        found = [
            tokenizer.decode(np.asarray(row["tokens"]).tolist()[1:-1]) for row in dataset.rows(range(len(dataset)))
        ]
        assert all(text.split()[0] == condition.source for text in found)
        assert texts.issuperset(found)
        assert len({text.removesuffix(" end") for text in found}) == DOCUMENTS // len(LANGUAGES)


def test_a_recipe_trains_from_them(place, whole, tmp_path):
    recipe = json.loads((place / "recipe.yaml").read_text())
    recipe |= {"languages": LANGUAGES[:2], "data": {"train": {f"lm/{name}": f"crawl:{name}" for name in LANGUAGES[:2]}}}
    recipe["data"]["prepared"] = (place / "whole" / "datasets").as_uri()
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    train_recipe(load_recipe(tmp_path / "recipe.yaml", ["train.steps=2"]), tmp_path / "run")


def test_killed_tasks_run_again_and_the_result_is_the_same_bytes(place, whole):
    for pipeline in ("encode", "write"):
        process = subprocess.Popen(command(place, "killed"), cwd=ROOT, stderr=subprocess.DEVNULL)
        done = place / "killed" / "work" / "logs" / pipeline / "completions"
        while not done.is_dir() and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert 0 < len(list(done.iterdir())) < TASKS
    subprocess.run(command(place, "killed"), check=True, capture_output=True, cwd=ROOT)
    assert content(place, "killed") == whole


def test_a_share_that_is_missing_is_not_passed_over(place, whole):
    from polyloom.workflows.crawl import WriteDatasets

    folder = place / "whole" / "work" / "encoded"
    share = folder / "shares" / "00001.json"
    text = share.read_text()
    try:
        share.unlink()
        with pytest.raises(DataError, match=r"3 tasks are done, of \[4\]"):
            WriteDatasets(str(folder), place.as_uri(), corpus="crawl").run()
        share.write_text(text)
        (language,) = sorted(json.loads(text)["hashes"])[:1]
        (folder / "encoded" / language / "00001").write_bytes(b"other")
        with pytest.raises(DataError, match="damaged, or written by another run"):
            WriteDatasets(str(folder), place.as_uri(), corpus="crawl").run()
    finally:
        share.write_text(text)


@pytest.mark.nightly
def test_ray_writes_the_same_bytes(place, whole):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 80 << 20})
    try:
        environ = os.environ | {"RAY_ADDRESS": cluster.address}
        subprocess.run(command(place, "ray", "--ray"), check=True, capture_output=True, cwd=ROOT, env=environ)
    finally:
        cluster.shutdown()
    assert content(place, "ray") == whole
