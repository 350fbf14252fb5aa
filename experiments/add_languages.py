"""Add languages to trained runs, and measure which donors suit them."""

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from experiments.run import in_parallel
from experiments.storage import read_plan, write_result

PLAN = read_plan("add-languages")
TEXT, SENTENCES = 100, 100  # lines that donors are suggested from, tagged sentences that known languages are scored on


class Addition(NamedTuple):
    """One language added to one run; without a language, the scores of donors for all languages of the run."""

    method: str
    language: str = ""
    lines: int = 0
    init_from: str = ""

    @property
    def name(self) -> str:
        """The name of the result's file."""
        if not self.language:
            return f"{self.method}-donors"
        return f"{self.method}-{self.language}-{self.lines}-{self.init_from}"


def additions() -> Iterator[Addition]:
    """Yield all additions of the plan."""
    for method, about in PLAN["runs"].items():
        if method != "mt":
            yield Addition(method)
        for language in about["languages"]:
            for lines in PLAN["lines"]:
                for init_from in about["init_from"]:
                    yield Addition(method, language, lines, init_from)


def add_all(*, runs: Path, results: Path, workers: int, only: str) -> None:
    """Run the additions that have no result yet."""
    folder = results / "add-languages"
    chosen = [addition for addition in additions() if only in addition.name]
    missing = [addition for addition in chosen if not (folder / f"{addition.name}.json").exists()]
    print(f"add-languages: {len(chosen)} additions, {len(missing)} to do", file=sys.stderr)
    in_parallel(partial(run_addition, runs=runs, folder=folder), missing, workers=workers)


def run_addition(addition: Addition, runs: Path, folder: Path) -> str:
    """Add a language or score donors, write the result and return its name."""
    from polyloom.workflows.run import Run  # noqa: PLC0415 - slow import

    run = Run.load(runs / PLAN["runs"][addition.method]["run"])
    result = add(run, addition) if addition.language else {"donors": score_donors(run)}
    write_result(folder / f"{addition.name}.json", addition._asdict() | result)
    return addition.name


def add(run: Any, addition: Addition) -> dict[str, Any]:
    """Add a language, and check that no other parameter has changed."""
    import torch  # noqa: PLC0415 - slow import

    from polyloom.data.typology import read_typology  # noqa: PLC0415
    from polyloom.workflows.add_language import AddLanguageConfig, NewLanguageData, add_language  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415

    about, lines = PLAN["data"][addition.language], f"[:{addition.lines}]"
    text = about["text"] + lines if "text" in about else None
    pairs = {"mt/eng": about["pairs"] + lines} if "pairs" in about else {}
    data = NewLanguageData(text=text, examples=pairs, test=about["test"])
    init_from: Any = addition.init_from
    settings = AddLanguageConfig(init_from=init_from, steps=PLAN["steps"])
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        added = add_language(
            run, addition.language, Path(folder), data=data, settings=settings, typology=read_typology()
        )
        after = Run.load(Path(folder)).model.state_dict()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name][: len(tensor)] if tensor.dim() else after[name]), name
    return {
        "like": list(added.like), "donors": added.donors, "before": added.before, "after": added.after,
        "held_out": added.held_out,
        "seconds": added.seconds, "unknown": added.unknown,
    }  # fmt: skip


def score_donors(run: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Treat every language as new, and score its text and its tags with the weights of every other language."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.workflows.add_language import part, suggest_donors  # noqa: PLC0415

    corpora, new = read_plan("corpora"), "new"
    known = {x: (corpora["text"][x], corpora["test"][f"pos/{x}"]) for x in run.model.method.languages}
    known |= {x: (about["text"], about["test"]["pos"]) for x, about in PLAN["data"].items() if "text" in about}
    run.model.method.add_language(new)
    by_language = {}
    for language, (text, test) in known.items():
        tagged = resolve(test) if language in PLAN["data"] else part(resolve(test), 0, SENTENCES)
        corpus_of = {"mlm": part(resolve(text), 0, TEXT), "pos": tagged}
        scores = {
            task: dict(suggest_donors(run, new, {Condition(task, new): [corpus]})) for task, corpus in corpus_of.items()
        }
        donors = [donor for donor in scores["pos"] if donor != language]
        by_language[language] = {donor: {task: scores[task][donor] for task in scores} for donor in donors}
        print(language, file=sys.stderr, flush=True)
    return by_language
