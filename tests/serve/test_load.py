"""Under load, nobody gets another's answer."""

import http.client
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.serve.test_engine import asked
from tests.serve.test_web import Served


def ask_all(port, rows, seed):
    """Ask for rows over one connection, some at a time; return their results in order."""
    draw, connection = random.Random(seed), http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    found: list[dict[str, Any]] = []
    while len(found) < len(rows):
        some = rows[len(found) : len(found) + draw.randint(1, 40)]
        body = {"rows": [{"condition": condition, "input": list(value)} for condition, value in some]}
        connection.request("POST", "/v1/predict", json.dumps(body), {"Content-Type": "application/json"})
        answered = json.loads(connection.getresponse().read())["results"]
        assert [one["index"] for one in answered] == list(range(len(some)))
        found += answered
    connection.close()
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_nobody_gets_anothers_answer(run, count):
    """R3 and R5: eight clients at once, rows of random tasks, languages and lengths."""
    clients = [asked(count, seed) for seed in range(8)]
    server = Served(run.path, "--max-batch-tokens", 512, "--timeout", 600)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask_all, [server.port] * 8, clients, range(8)))
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
