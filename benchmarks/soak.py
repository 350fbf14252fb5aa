"""What hours of traffic do to a server: its memory and its latency while 200,000 conditions are asked for (R16).

    python benchmarks/soak.py --minutes 20 --json benchmarks/results/soak.json

The model is small, so that many rows pass. 50,000 languages and four tasks are asked for by Zipf's law, at half of what
the server can answer, with room for few of them in the cache. The first quarter of the time is warm-up. Of the rest,
memory has a slope, and latency in the last third is compared with that in the first. Beside it stands how
long a fixed piece of work took in both, since a machine that others use too is not always equally fast.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.serving import Http, closed, make_run, memory_of, open_loop, rows_of, server, summary, zipf

LANGUAGES = 50_000
WINDOW = 10.0  # seconds


async def soak(port: int, process: int, *, languages: int, minutes: float) -> list[dict[str, Any]]:
    """Send rows for some minutes; return memory and latency of every window."""
    http, rows = Http(port), rows_of(zipf(languages), 0)
    capacity = await closed(http.ask, rows, WINDOW)
    windows, start = [], time.monotonic()
    while time.monotonic() < start + 60 * minutes:
        found = await open_loop(http.ask, rows, rate=0.5 * capacity, seconds=WINDOW)
        failed = sum(one["outcome"] != "answered" for one in found)
        about = {"hours": (time.monotonic() - start) / 3600, "megabytes": memory_of(process), "failed": failed}
        windows.append(about | summary(found) | {"loop_ms": loop_milliseconds()})
    return windows


def loop_milliseconds() -> float:
    """Time the same piece of work: a machine that others use too is not always equally fast."""
    start = time.perf_counter()
    sum(number * number for number in range(500_000))
    return 1e3 * (time.perf_counter() - start)


def judge(windows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the slope of memory and the drift of latency after the warm-up."""
    later = windows[len(windows) // 4 :]
    third = max(1, len(later) // 3)
    slope = statistics.linear_regression([w["hours"] for w in later], [w["megabytes"] for w in later]).slope
    ends = later[:third], later[-third:]
    first, last = (statistics.median(w["p99_ms"] for w in some) for some in ends)
    machine = [statistics.median(w["loop_ms"] for w in some) for some in ends]
    return {
        "rows": sum(w["count"] for w in windows), "failed": sum(w["failed"] for w in windows),
        "megabytes_per_hour": slope, "megabytes_grown": later[-1]["megabytes"] - later[0]["megabytes"],
        "p99_last_over_first": last / first,
        "loop_last_over_first": machine[1] / machine[0],
    }  # fmt: skip


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--languages", type=int, default=LANGUAGES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), languages=options.languages, layers=2, width=64)
        with server(run, **{"threads": 1, "cache-mb": 16}) as (port, process):
            windows = asyncio.run(soak(port, process, languages=options.languages, minutes=options.minutes))
    found = judge(windows)
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps({"summary": found, "windows": windows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
