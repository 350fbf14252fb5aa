"""Under load, nobody gets another's answer."""

import contextlib
import http.client
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi")

from polyloom.config import load_recipe
from polyloom.data.catalog import resolve
from polyloom.data.records import Tagged
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.serve.test_engine import random_rows
from tests.serve.test_web import Served
from tests.shared import DATA, needs_data


def ask_all(port, rows, seed):
    """Ask for rows, some at a time; return their results in order.

    Each request has a connection of its own: the server closes those that are idle for some seconds.
    """
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    while len(found) < len(rows):
        some = rows[len(found) : len(found) + draw.randint(1, 40)]
        body = {"rows": [{"condition": condition, "input": list(value)} for condition, value in some]}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("POST", "/v1/predict", json.dumps(body), {"Content-Type": "application/json"})
            answered = json.loads(connection.getresponse().read())["results"]
        assert [one["index"] for one in answered] == list(range(len(some)))
        found += answered
    return found


def assert_served_as_predicted(run, clients, *options):
    """Let clients ask a server at once; every answer is that of a serial run."""
    server = Served(run.path, *options)
    with ThreadPoolExecutor(len(clients)) as pool:
        found = list(pool.map(ask_all, [server.port] * len(clients), clients, range(len(clients))))
    server.stop()
    different = 0
    for rows, results in zip(clients, found, strict=True):
        expected = run.predict([value for _, value in rows], [condition for condition, _ in rows])
        for (condition, _), result, prediction in zip(rows, results, expected, strict=True):
            assert result["condition"] == condition
            found_here = result["prediction"]
            wanted = json.loads(json.dumps(vars(prediction)))
            scores = [found_here.pop(name) for name in ("score", "scores") if name in found_here]
            assert scores == [
                pytest.approx(wanted.pop(name), abs=1e-4) for name in ("score", "scores") if name in wanted
            ]
            different += found_here != wanted
    assert different == 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_nobody_gets_anothers_answer(run, count):
    """R3 and R5: eight clients at once, rows of random tasks, languages and lengths."""
    assert_served_as_predicted(run, [random_rows(count, seed) for seed in range(8)], "--max-batch-tokens", 512)


@needs_data
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_nobody_gets_anothers_answer_of_a_real_run(pretrained, tmp_path):
    """Real sentences of five languages, in a real backbone that has begun to learn to tag them, and a small cache."""
    recipe = load_recipe("mini/hyperx", [f"backbone.name={pretrained}", f"data.root={DATA}", "train.steps=20"])
    train_recipe(recipe, tmp_path / "run")
    sentences = {}
    for language in recipe.languages:
        (corpus,) = recipe.data.test[f"pos/{language}"]
        records = resolve(corpus, root=DATA).records("tags")
        sentences[language] = [record.words for record in records if isinstance(record, Tagged)]

    def rows(seed):
        draw = random.Random(seed)
        languages = draw.choices(recipe.languages, k=1000)
        return [(f"{draw.choice(('pos', 'ner'))}/{name}", draw.choice(sentences[name])) for name in languages]

    clients = [rows(seed) for seed in range(8)]
    assert_served_as_predicted(Run.load(tmp_path / "run"), clients, "--cache-mb", 16)
