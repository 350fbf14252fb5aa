"""What in-flight batching gains: translations of sentences as they come, short ones and long ones mixed.

    python benchmarks/serving_translation.py --json benchmarks/results/serving_translation.json

A small translator (transformer-mini with hyper-adapters, English with four languages) is trained on Tatoeba's sentences
and on verses of the Bible, which are four times as long, until it ends its translations where a translation ends. Then
an engine answers held-out ones of all eight directions, three sentences to one verse: in flight, and batch by batch.
Both give the same translations. `POLYLOOM_DATA` names the folder with the corpora.
"""

# ruff: noqa: S311, S603 - nothing is secret here, and all commands are our own

import argparse
import asyncio
import itertools
import json
import lzma
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.serving import Row, closed, open_loop, summary

from polyloom.serve import Engine, Limits

ENGLISH, OTHERS = "eng", ("deu", "ita", "nld", "por")
SHORT = 3  # sentences for every verse
Pair = tuple[str, str]


def lines(file: Path) -> list[str]:
    """Read the lines of a compressed file."""
    return lzma.decompress(file.read_bytes()).decode().split("\n")[:-1]


def sentences(data: Path, language: str, split: str) -> Iterator[Pair]:
    """Yield Tatoeba's sentences, in English and in another language."""
    for line in lines(data / f"mt/tatoeba/eng-{language}/{split}.tsv.xz"):
        english, _, other = line.partition("\t")
        yield english, other


def verses(data: Path, language: str, split: str) -> Iterator[Pair]:
    """Yield verses of the Bible, in English and in another language."""
    columns = (lines(data / f"mt/bible/{name}.txt.xz") for name in (ENGLISH, language, "split"))
    for english, other, part in zip(*columns, strict=True):
        if part == split and "<range>" not in (english, other):
            yield english, other


def mixed(data: Path, language: str, split: str) -> list[Pair]:
    """Mix sentences and verses."""
    pairs: list[Pair] = []
    short, long = sentences(data, language, split), verses(data, language, split)
    for verse in long:
        pairs += [pair for pair in (*itertools.islice(short, SHORT), verse) if all(pair)]
    random.Random(0).shuffle(pairs)
    return pairs


def polyloom(*arguments: str) -> None:
    """Run a command; its progress goes to stderr."""
    subprocess.run([sys.executable, "-m", "polyloom", *arguments], check=True, stdout=sys.stderr)


def train_translator(data: Path, folder: Path, steps: int) -> Path:
    """Train the translator, unless it is there."""
    corpora: dict[str, str] = {}
    for language in OTHERS:
        pairs = mixed(data, language, "train")
        (folder / f"{language}.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))
        corpus = f"{folder / language}.tsv#{ENGLISH},{language}"
        corpora |= {f"mt/{ENGLISH}/{language}": corpus, f"mt/{language}/{ENGLISH}": corpus}
    recipe = {
        "backbone": {"preset": "transformer-mini", "tokenizer": str(folder / "vocabulary")},
        "method": {"name": "hyper-adapters", "hidden_size": 64, "adapter_size": 32},
        "languages": [ENGLISH, *OTHERS],
        "tasks": {"mt": {}},
        "directions": [f"{ENGLISH}/*", f"*/{ENGLISH}"],
        "data": {"train": corpora},
        "mixture": {"datasets_per_batch": 4},
        "optim": {"lr": 3e-3, "schedule": "inverse-sqrt", "warmup_steps": 200, "betas": [0.9, 0.98]},
        "train": {"steps": steps, "tokens_per_batch": 4096, "max_length": 128},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    if not (folder / "vocabulary").exists():
        polyloom("data", "vocab", str(folder / "recipe.yaml"), "-o", str(folder / "vocabulary"), "--size", "4000")
    polyloom("train", str(folder / "recipe.yaml"), "-o", str(folder / "run"))
    return folder / "run"


def rows(held_out: Mapping[str, Sequence[Pair]], seed: int) -> Iterator[Row]:
    """Yield texts of all directions for ever."""
    draw = random.Random(seed)
    while True:
        language = draw.choice(OTHERS)
        pair = draw.choice(held_out[language])
        into = draw.random() < 0.5  # into English
        names = (language, ENGLISH) if into else (ENGLISH, language)
        yield "/".join(("mt", *names)), pair[into]


async def measure(run: Path, held_out: Mapping[str, Sequence[Pair]], *, seconds: float, rounds: int) -> dict[str, Any]:
    """Let two engines answer the same rows, in turns; then send rows at a rate that both can answer."""
    found: dict[str, Any] = {"in_flight": {"rows_per_second": []}, "batches": {"rows_per_second": []}}
    texts: dict[str, list[str]] = {name: [] for name in found}

    async def use(name: str, seed: int, rate: float | None = None) -> Any:
        engine = Engine(run, limits=Limits(timeout=600.0), beams=1)
        if name == "batches":
            engine.worker._is_greedy = lambda request: False  # type: ignore[method-assign]  # noqa: ARG005, SLF001
        async with engine:

            async def ask(row: Row) -> None:
                await engine.answer(*row)

            some = itertools.islice(rows(held_out, 0), 64)
            texts[name] = [str(a.prediction) for a in await asyncio.gather(*(engine.answer(*row) for row in some))]
            if rate is None:
                return await closed(ask, rows(held_out, seed), seconds)
            return await open_loop(ask, rows(held_out, seed), rate=rate, seconds=3 * seconds)

    for number in range(rounds):
        for name in found:
            found[name]["rows_per_second"].append(await use(name, number))
        assert texts["in_flight"] == texts["batches"], "translations differ"
    found["words"] = {"median": statistics.median(len(text.split()) for text in texts["in_flight"])}
    found["words"]["longest"] = max(len(text.split()) for text in texts["in_flight"])
    rate = 0.7 * statistics.median(found["batches"]["rows_per_second"])
    for name in texts:
        found[name]["open_loop"] = summary(await use(name, rounds, rate))
    ratios = zip(*(found[name]["rows_per_second"] for name in texts), strict=True)
    return found | {"rate": rate, "in_flight_over_batches": statistics.median(a / b for a, b in ratios)}


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the translator is, or is made; default: a temporary folder")
    parser.add_argument("--steps", type=int, default=500, help="steps of training")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = Path(os.environ["POLYLOOM_DATA"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run = train_translator(data, folder, options.steps)
        held_out = {language: mixed(data, language, "test") for language in OTHERS}
        found = asyncio.run(measure(run, held_out, seconds=options.seconds, rounds=options.rounds))
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
