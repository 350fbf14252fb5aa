"""How many rows a micro-batching server around `adapters` can answer, in the virtual environment of `adapters` 1.3.0.

`benchmarks.serving engine --python` starts it with the rows that the engine answers, and asks for a kind of rows
whenever it is this server's turn; questions and answers are lines of JSON. There is no HTTP, no tokenizer and no queue:
64 rows always wait, and each answer is followed by the next row at once. A batch has rows of one language, since
`set_active_adapters` is for the whole model: the language of the row that has waited longest, with all others of it.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adapters
import torch
import transformers

WAITING = 64
TOKENS = 4096  # of a batch, padding included


def make_model(layers: int, width: int, languages: list[str]) -> Any:
    """Build a model of random weights with an adapter of 48 units for each language."""
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 64, intermediate_size=4 * width
    )
    model = transformers.BertModel(config).eval()
    adapters.init(model)
    for name in languages:
        model.add_adapter(name, config=adapters.SeqBnConfig(reduction_factor=width / 48))
    return model


@torch.inference_mode()
def answer(model: Any, source: Iterator[tuple[str, int]], seconds: float) -> float:
    """Answer rows (language, number of tokens) for some seconds; return rows per second."""
    answered, waiting = 0, [next(source) for _ in range(WAITING)]
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        language, batch, left = waiting[0][0], list[int](), []
        for row in waiting:
            if row[0] == language and (len(batch) + 1) * max([*batch, row[1]]) <= TOKENS:
                batch.append(row[1])
            else:
                left.append(row)
        model.set_active_adapters(language)
        mask = torch.arange(max(batch)) < torch.tensor(batch)[:, None]
        model(input_ids=mask.long(), attention_mask=mask.long())
        answered += len(batch)
        waiting = left + [next(source) for _ in batch]
    return answered / (time.monotonic() - start)


def main() -> None:
    """Read the kind of rows; answer such rows for some seconds, and print how many in a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="JSON: kinds of traffic, each a list of [language, tokens]")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds = {kind: [tuple(row) for row in rows] for kind, rows in json.loads(options.rows.read_text()).items()}
    languages = sorted({language for rows in kinds.values() for language, _ in rows})
    model = make_model(options.layers, options.width, languages)
    sources = {kind: itertools.cycle(rows) for kind, rows in kinds.items()}
    for line in sys.stdin:
        print(answer(model, sources[json.loads(line)["kind"]], options.seconds), flush=True)


if __name__ == "__main__":
    main()
