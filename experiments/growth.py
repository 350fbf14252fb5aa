"""Languages added to trained runs, and whose weights suit them: ``python experiments/growth.py --runs RUNS``.

The runs are those of ``python experiments/run.py transfer mt-analysis``. What is finished is not run again. Results are
JSON in docs/results/growth, one file for each language, amount of text and beginning, and one for each run's donors.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from job import HERE, RESULTS
from run import one_thread

from polyloom.io.yaml import read_settings

PLAN = read_settings(HERE / "growth.yaml")
TEXT, SENTENCES = 100, 100  # lines by which donors are suggested, sentences by which those of known ones are judged


class Trainer(NamedTuple):
    """One language added to one run; without a language, the donors of all that the run knows."""

    method: str
    language: str = ""
    lines: int = 0
    begin: str = ""

    @property
    def name(self) -> str:
        """Of the file with its result."""
        return f"{self.method}-{self.language}-{self.lines}-{self.begin}" if self.language else f"{self.method}-donors"


def fits() -> Iterator[Trainer]:
    """All of them."""
    for method, about in PLAN["runs"].items():
        if method != "mt":
            yield Trainer(method)
        for language in about["languages"]:
            for lines in PLAN["lines"]:
                for begin in about["begin"]:
                    yield Trainer(method, language, lines, begin)


def work(fit: Trainer, runs: Path, results: Path) -> str:
    """Add it, or judge donors; write the result."""
    from polyloom.workflows.run import Run  # noqa: PLC0415 - seconds to import

    run = Run.load(runs / PLAN["runs"][fit.method]["run"])
    result = add(run, fit) if fit.language else {"donors": judge(run)}
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{fit.name}.json").write_text(json.dumps(fit._asdict() | result, indent=1) + "\n", encoding="utf-8")
    return fit.name


def add(run: Any, fit: Trainer) -> dict[str, Any]:
    """What a language gains; nothing else may change."""
    import torch  # noqa: PLC0415 - seconds to import

    from polyloom.data.typology import read_typology  # noqa: PLC0415
    from polyloom.workflows.add_language import AddLanguageConfig, NewLanguageData, add_language  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415

    about, some = PLAN["data"][fit.language], f"[:{fit.lines}]"
    text = about["text"] + some if "text" in about else None
    pairs = {"mt/eng": about["pairs"] + some} if "pairs" in about else {}
    data = NewLanguageData(text=text, examples=pairs, test=about["test"])
    settings: Any = AddLanguageConfig(init_from=fit.begin, steps=PLAN["steps"])  # type: ignore[arg-type]
    known = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        grown = add_language(run, fit.language, Path(folder), data=data, settings=settings, typology=read_typology())
        learnt = Run.load(Path(folder)).model.state_dict()
    for name, tensor in known.items():  # all that was there is as it was, in what was written
        assert torch.equal(tensor, learnt[name][: len(tensor)] if tensor.dim() else learnt[name]), name
    return {
        "like": list(grown.like), "donors": grown.donors, "before": grown.before, "after": grown.after,
        "held_out": grown.held_out,
        "seconds": grown.seconds, "unknown": grown.unknown,
    }  # fmt: skip


def judge(run: Any) -> dict[str, dict[str, dict[str, float]]]:
    """For every language, as if it were new, how well others' weights predict its text and its tags."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.workflows.add_language import part, suggest_donors  # noqa: PLC0415

    corpora, new = read_settings(HERE / "corpora.yaml"), "new"
    known = {x: (corpora["text"][x], corpora["test"][f"pos/{x}"]) for x in run.model.method.languages}
    known |= {x: (about["text"], about["test"]["pos"]) for x, about in PLAN["data"].items() if "text" in about}
    run.model.method.add_language(new)
    found = {}
    for language, (text, test) in known.items():
        new_test = resolve(test) if language in PLAN["data"] else part(resolve(test), 0, SENTENCES)
        some = {"mlm": part(resolve(text), 0, TEXT), "pos": new_test}
        held = {task: {Condition(task, new): [corpus]} for task, corpus in some.items()}
        scores = {task: dict(suggest_donors(run, new, corpora)) for task, corpora in held.items()}
        donors = [donor for donor in scores["pos"] if donor != language]
        found[language] = {donor: {task: scores[task][donor] for task in scores} for donor in donors}
        print(language, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Do what is not done yet, some at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder with the runs of transfer")
    parser.add_argument("--results", type=Path, default=RESULTS / "growth", help="folder for results")
    parser.add_argument("--jobs", type=int, default=2, help="fits at a time, of one thread each")
    parser.add_argument("--only", default="", help="fits whose names contain this")
    options = parser.parse_args()
    left = [fit for fit in fits() if options.only in fit.name and not (options.results / f"{fit.name}.json").exists()]
    print(f"{len(left)} to do", file=sys.stderr)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), initializer=one_thread) as pool:
        waiting = [pool.submit(work, fit, options.runs, options.results) for fit in left]
        for number, future in enumerate(as_completed(waiting), start=1):
            print(f"[{number}/{len(left)}] {future.result()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
