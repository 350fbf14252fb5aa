"""Which layers' weights know their language to what end: ``python experiments/layers.py runs/transfer/hyperx-multi-0``.

Tags of finished runs are scored with a language's own weights in some layers and English's in all others, and with a
stranger's in the lower ones. Results are JSON in docs/results/layers, one file a run; what has one is not scored again.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from job import HERE, RESULTS
from torch import Tensor

from polyloom.methods import Method
from polyloom.runs import load_run
from polyloom.settings import read_settings
from polyloom.types import ConditionIds, Site

PEERS = read_settings(HERE / "corpora.yaml")["peer"]
SETS: Mapping[str, Callable[[int, int], bool]] = {
    "none": lambda _layer, _count: False,
    "lower": lambda layer, count: layer < count // 2,
    "upper": lambda layer, count: layer >= count // 2,
    "all": lambda _layer, _count: True,
}


def own_weights_in(method: Method, chosen: Callable[[int, int], bool]) -> None:
    """From now on, only these layers have the weights of the language that is asked for."""
    source, count = method.languages.row("en"), len(method.shape.sites)

    def stack_languages(ids: ConditionIds, sites: Sequence[Site]) -> Tensor:
        own_KS = type(method).stack_languages(method, ids, sites)
        keep_S = torch.tensor([chosen(site.layer, count) for site in sites])
        return torch.where(keep_S, own_KS, source)

    method.stack_languages = stack_languages  # type: ignore[method-assign]


def main() -> None:
    """Score every run that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.results / "layers"
    for path in options.runs:
        if (folder / f"{path.name}.json").exists():
            continue
        run = load_run(path)
        tags = {name: corpora for name, corpora in run.recipe.data.test.items() if name.startswith("pos/")}
        cells = {}
        for name, chosen in SETS.items():
            own_weights_in(run.model.method, chosen)
            cells[name] = run.evaluate(tags).to_dict()["cells"]
        own_weights_in(run.model.method, SETS["lower"])
        cells["peer"] = {
            name: run.evaluate({(donor := f"pos/{PEERS[name[4:]]}"): corpora}).to_dict()["cells"][donor]
            for name, corpora in tags.items()
            if name[4:] in PEERS
        }
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"run": path.name, "cells": cells}, ensure_ascii=False, separators=(",", ":"))
        (folder / f"{path.name}.json").write_text(text + "\n", encoding="utf-8")
        means = {name: sum(c["scores"][0]["value"] for c in some.values()) / len(some) for name, some in cells.items()}
        print(path.name, {name: round(mean, 1) for name, mean in means.items()})


if __name__ == "__main__":
    main()
