"""How many rows two replicas on Ray answer, against one, and against the same server without Ray.

    RAY_AUTH_MODE=disabled python benchmarks/serving_ray.py --json benchmarks/results/serving_ray.json

The model has the size of XLM-R base and random weights; 64 callers ask one row after another over HTTP. Every replica
has one thread. The callers and Ray's proxy run on the same machine and take a part of it, so two replicas need more
than two cores to be twice as fast.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import ray
from benchmarks.serving import Http, closed, make_run, rows_of, server, zipf
from ray import serve

from polyloom.serve.ray import NAME, build_application
from polyloom.serve.web.server import ServerSettings

LANGUAGES = 2500


def rate(port: int, seconds: float) -> float:
    """Return answers per second, after a warm-up that fills the caches."""
    http, rows = Http(port), rows_of(zipf(LANGUAGES), 0)

    async def measure() -> float:
        await closed(http.ask, rows, seconds / 2)
        return await closed(http.ask, rows, seconds)

    return asyncio.run(measure())


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    port, rates = 19_000 + os.getpid() % 1000, dict[str, list[float]](alone=[], one=[], two=[])
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), languages=LANGUAGES, layers=options.layers, width=options.width)
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        settings = ServerSettings(runs=[str(run)], threads=1, allow_path=["/"])
        for _ in range(options.rounds):
            with server(run, threads=1) as (alone, _):
                rates["alone"].append(rate(alone, options.seconds))
            for name, replicas in (("one", 1), ("two", 2)):
                serve.run(build_application(settings, replicas=replicas), name=NAME)
                rates[name].append(rate(port, options.seconds))
            serve.delete(NAME)
        ray.shutdown()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    found: dict[str, Any] = {
        "cores": os.cpu_count(), "rows_per_second": rates, "two_over_one": medians["two"] / medians["one"],
        "ray_over_alone": medians["one"] / medians["alone"],
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
