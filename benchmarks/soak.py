"""What hours of traffic do to a server: its memory and its latency while 200,000 conditions are asked for (R16).

    python benchmarks/soak.py --minutes 20 --json benchmarks/results/soak.json

The model is small, so that many rows pass. 50,000 languages and four tasks are asked for by Zipf's law, at half of what
the server can answer, with room for few of them in the cache. First its queue is filled, because memory has to grow to
that of the largest batches once. The first quarter of the time is warm-up. Of the rest, memory has a slope, and latency
in the last third is compared with that in the first: of all windows, and of those in which other machines of the host
took less than 2 % of the processors' time. Beside it stands how long a fixed piece of work took.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.serving import Http, closed, make_run, memory_of, open_loop, rows_of, server, summary, zipf

from polyloom.errors import OverloadedError

LANGUAGES = 50_000
WINDOW = 10.0  # seconds
DISTURBED = 0.02  # share of the processors' time that others took


async def soak(port: int, process: int, *, languages: int, minutes: float) -> list[dict[str, Any]]:
    """Send rows for some minutes; return memory and latency of every window."""
    http, rows = Http(port), rows_of(zipf(languages), 0)
    capacity = await closed(http.ask, rows, WINDOW)
    await open_loop(http.ask, rows, rate=3 * capacity, seconds=WINDOW)
    windows, start = [], time.monotonic()
    while time.monotonic() < start + 60 * minutes:
        stolen = stolen_seconds()
        found = await open_loop(http.ask, rows, rate=0.5 * capacity, seconds=WINDOW)
        outcomes = Counter(one["outcome"] for one in found)
        about = {
            "hours": (time.monotonic() - start) / 3600, "megabytes": memory_of(process),
            "failed": outcomes.total() - outcomes["answered"], "refused": outcomes[OverloadedError.__name__],
        }  # fmt: skip
        machine = {"loop_ms": loop_milliseconds(), "stolen_seconds": stolen_seconds() - stolen}
        windows.append(about | summary(found) | machine)
    return windows


def stolen_seconds() -> float:
    """Return how long processors of this machine have waited for others of its host."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def loop_milliseconds() -> float:
    """Time the same piece of work: a machine that others use too is not always equally fast."""
    start = time.perf_counter()
    sum(number * number for number in range(500_000))
    return 1e3 * (time.perf_counter() - start)


def judge(windows: list[dict[str, Any]]) -> dict[str, Any]:
    """Judge what comes after the warm-up: all windows, and those in which the machine was ours."""
    later = windows[len(windows) // 4 :]
    return {"all": _judge(later), "undisturbed": _judge([w for w in later if not is_disturbed(w)])}


def is_disturbed(window: dict[str, Any]) -> bool:
    """Whether others took a part of the machine that matters."""
    return bool(window["stolen_seconds"] > DISTURBED * WINDOW * (os.cpu_count() or 1))


def _judge(windows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the slope of memory and the drift of latency."""
    if len(windows) < 2:
        return {"windows": len(windows)}
    third = max(1, len(windows) // 3)
    slope = statistics.linear_regression([w["hours"] for w in windows], [w["megabytes"] for w in windows]).slope

    def drift(of: str) -> float:
        first, last = (statistics.median(float(w[of]) for w in some) for some in (windows[:third], windows[-third:]))
        return last / first

    return {
        "windows": len(windows), "rows": sum(w["count"] for w in windows), "failed": sum(w["failed"] for w in windows),
        "megabytes_per_hour": slope, "megabytes_grown": windows[-1]["megabytes"] - windows[0]["megabytes"],
        **{f"{what}_last_over_first": drift(f"{what}_ms") for what in ("p50", "p99", "loop")},
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
