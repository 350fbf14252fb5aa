"""A crawl of sixty languages becomes a dataset for each: without near-duplicates, the same bytes after a kill."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
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
from polyloom.io.remote import RemoteFolder
from polyloom.training.published import open_published
from polyloom.workflows.train import train_recipe
from tests.reliability.forks import DIED, die_at, ended, fork
from tests.tiny_decoder import decoder_recipe

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "web" / "fineweb2.py"
LANGUAGES = [f"l{number}" for number in range(60)]
TASKS, DOCUMENTS = 4, 1200  # of all languages; one in ten is there twice


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
        "crawl": place / "crawl", "work": place / name / "work", "to": into.as_uri(), "tokenizer": place / "decoder",
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


class CutOffError(Exception):
    pass


def encode_share(folder, rank, rows, number=None):
    """Encode what one of two tasks has of some documents; perhaps die at a place in the working folder."""
    from datatrove.data import Document

    from polyloom.workflows.crawl import EncodeDocuments

    if number is not None:
        die_at(number, among=lambda at: str(folder) in str(at.target))
    given = (Document(row["text"], row["id"], metadata=row) for row in rows[rank::2])
    list(EncodeDocuments(str(folder), task="lm", tokenizer="").run(given, rank, 2))


def write_datasets(folder):
    """Write the datasets and the catalogue."""
    from polyloom.workflows.crawl import WriteCatalogue, WriteDatasets

    (folder / "datasets").mkdir(exist_ok=True)
    into = (folder / "datasets").as_uri()
    for rank in range(2):
        WriteDatasets(str(folder), into, corpus="crawl").run(None, rank, 2)
    WriteCatalogue(str(folder), into).run()


def test_tasks_that_died_at_any_place_run_again_and_the_result_is_the_same_bytes(place, tmp_path, monkeypatch):
    """The steps that are ours, without datatrove's executor, which runs tasks again that did not end."""
    from polyloom.workflows import crawl

    rows = [row for row in documents() if row["language"] in LANGUAGES[:2]]
    tokenizer = load_tokenizer(place / "decoder")
    monkeypatch.setattr(crawl, "load_tokenizer", lambda _: tokenizer)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where killed tasks leave files
    for rank in range(2):
        encode_share(tmp_path / "whole", rank, rows)
        for number in itertools.count(1):
            if (code := ended(fork(partial(encode_share, tmp_path / "killed", rank, rows, number)))) != DIED:
                break
        assert code == 0
        assert number > 6, "before and after each of the files is made: two of languages, and a note"
    write_datasets(tmp_path / "whole")
    # Object storage has whole files only, and cannot be used in a child of a process that used it. So writing is
    # interrupted between two files, and an error takes the place of death.
    write = RemoteFolder.write
    for number in itertools.count():
        written = itertools.count()

        def write_or_stop(folder, name, content, number=number, written=written):
            if next(written) == number:
                raise CutOffError
            write(folder, name, content)

        monkeypatch.setattr(RemoteFolder, "write", write_or_stop)
        with suppress(CutOffError):
            write_datasets(tmp_path / "killed")
            break
    assert number > 4, "parts and manifests of two datasets, and the catalogue"
    assert content(tmp_path, "killed") == content(tmp_path, "whole")


# The script, which dies when it is about to make a file.
DYING = """
import runpy, sys
from tests.reliability.forks import die_at
file, *sys.argv = sys.argv[1:]
die_at(1, among=lambda at: str(at.target) == file)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.nightly
def test_killed_tasks_run_again_and_the_result_is_the_same_bytes(place, whole):
    """The third task has done its work when it dies, but datatrove has not noted it."""
    for pipeline in ("encode", "write"):
        done = place / "killed" / "work" / "logs" / pipeline / "completions"
        dying = [sys.executable, "-c", DYING, str(done / "00002"), *command(place, "killed")[1:]]
        process = subprocess.Popen(dying, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
        assert process.wait() == DIED
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a process of datatrove that would wait for ever
        assert sorted(path.name for path in done.iterdir()) == ["00000", "00001"]
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
