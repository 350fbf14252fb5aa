"""Searches of translations: what adapters cost, what mixed directions gain, and how far CTranslate2 is ahead.

Random weights, 24 pieces in and 24 out in every row (the end is never the best piece), so that all variants do the same
work; their outputs are compared wherever they must be equal. CPU time of one thread, in turns; all times are kept, and
the minimum and the 20th percentile are reported.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from benchmarks.measure import (
    Json,
    Peer,
    PeerPython,
    Rounds,
    Times,
    Tiny,
    command,
    interleave,
    low,
    make_app,
    report,
    use_one_thread,
)
from polyloom.backbones import backbone_from_config
from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.config.recipe import PRESETS
from polyloom.methods.base import MethodConfig
from polyloom.methods.full import DenseConfig
from polyloom.methods.hyper_adapters import HyperAdaptersConfig
from polyloom.model import Model
from polyloom.tasks.batch import Batch
from polyloom.weights import Weights

app = make_app()
ROWS, SOURCE, NEW = 32, 24, 24
ALONE = 4  # rows that a round takes one at a time; all take the same work, so 32 take eight times as long
END, WARMUP = 2, 2
SIZES = {"base": ("transformer-base", 32_000, 128), "mini": ("transformer-mini", 8_000, 32)}
LANGUAGES = tuple(f"l{i}" for i in range(ROWS + 1))
CONDITIONS = [Condition("mt", "l0", language) for language in LANGUAGES[1:]]
INTO = [Condition("mt", language, "l0") for language in LANGUAGES[1:]]


@dataclass(frozen=True)
class Case:
    """What is measured: a size of `SIZES`, how many beams, in which data type."""

    size: str
    beams: int
    dtype: str = "float32"
    rows: int = ROWS
    new: int = NEW


CASES = {f"{size}-{beams}": Case(size, beams) for size in SIZES for beams in (1, 5)} | {
    f"base-{beams}-bf16": Case("base", beams, "bfloat16") for beams in (1, 5)
}
TINY_CASES = [Case("mini", beams, rows=8, new=8) for beams in (1, 5)]
Cases = Annotated[list[str] | None, typer.Option("--case", help=f"One of {', '.join(CASES)}; default: all.")]


def make_model(case: Case, method: MethodConfig) -> Model:
    """Return a model with random weights whose texts vary and do not end."""
    preset, vocabulary, _ = SIZES[case.size]
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": END, "decoder_start_token_id": END}
    torch.manual_seed(0)
    # With tied embeddings a random model repeats its last piece for ever.
    backbone = backbone_from_config(
        {**PRESETS[preset], **special, "vocab_size": vocabulary, "tie_word_embeddings": False}
    )
    with torch.no_grad():
        for name, parameter in backbone.model.named_parameters():
            if ".layers." in name and parameter.dim() == 2:
                parameter.mul_(4.0)
        backbone.model.lm_head.weight[END] = 0.0
    model = Model(backbone, method, languages=LANGUAGES, tasks=["mt"]).eval()
    backbone.to(getattr(torch, case.dtype))
    return model


def bare_copy(model: Model) -> Any:
    """Return the Transformers model alone, without hooks."""
    bare = AutoModelForSeq2SeqLM.from_config(model.backbone.model.config)
    bare.load_state_dict(model.backbone.model.state_dict())
    return bare.to(model.backbone.model.dtype).eval()


def make_inputs(case: Case) -> dict[str, Tensor]:
    """Return random sources, and a first piece for every decoder."""
    torch.manual_seed(1)
    high = SIZES[case.size][1]
    return {
        "input_ids": torch.randint(5, high, (case.rows, SOURCE)),
        "attention_mask": torch.ones(case.rows, SOURCE, dtype=torch.long),
        "decoder_input_ids": torch.randint(5, high, (case.rows, 1)),
    }


def options(case: Case, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `generate`."""
    starts = inputs["decoder_input_ids"][:, 0].tolist()
    return {
        "num_beams": case.beams, "do_sample": False, "max_new_tokens": case.new, "eos_token_id": END,
        "decoder_start_token_id": starts,
    }  # fmt: skip


class Search:
    """All variants of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = make_model(
            case, HyperAdaptersConfig(hidden_size=102, adapter_size=SIZES[case.size][2], init="hyper")
        )
        self.bare_model = bare_copy(self.model)
        self.inputs = make_inputs(case)
        self.conditions = CONDITIONS[: case.rows]
        self.rows = [{name: t[i : i + 1] for name, t in self.inputs.items()} for i in range(case.rows)]
        self.same = [self.conditions[0]] * case.rows
        self.ready = {c: self.weights([c]) for c in self.conditions}
        self.ready_mixed = self.weights(self.conditions)
        self.shared = {"into": INTO[: case.rows], "four": [self.conditions[i % 4] for i in range(case.rows)]}
        self.ready_shared = {name: self.weights(conditions) for name, conditions in self.shared.items()}

    def weights(self, conditions: list[Condition]) -> Weights:
        """Return weights in the backbone's data type."""
        return self.model.weights(conditions).to(self.model.backbone.model.dtype)

    def search(self, rows: list[Condition], weights: Weights | None) -> Tensor:
        """Search all rows at once, with adapters."""
        pieces: Tensor = self.model.generate(self.inputs, rows, weights=weights, **options(self.case, self.inputs))
        return pieces

    def bare(self) -> Tensor:
        """Search all rows at once, without adapters."""
        pieces: Tensor = self.bare_model.generate(**self.inputs, **options(self.case, self.inputs))
        return pieces

    def written(self) -> list[list[int]]:
        """Search as evaluation and prediction do."""
        decoding = Decoding(beams=self.case.beams, max_ratio=0.0, max_extra=self.case.new)
        batch = Batch(self.inputs, self.conditions, {})
        return self.model.generate_ids(batch, eos_id=END, decoding=decoding, weights=self.ready_mixed)

    def some(self, turn: int) -> list[int]:
        """Return the rows that are searched alone in a turn."""
        return [(turn * ALONE + i) % self.case.rows for i in range(ALONE)]

    def alone(self, turn: int) -> Tensor:
        """Search some rows, one at a time."""
        pieces = []
        for i in self.some(turn):
            row, condition = self.rows[i], self.conditions[i]
            ready = self.ready[condition]
            pieces.append(self.model.generate(row, [condition], weights=ready, **options(self.case, row)))
        return torch.cat(pieces)

    def bare_alone(self, turn: int) -> Tensor:
        """Search the same rows without adapters."""
        rows = [self.rows[i] for i in self.some(turn)]
        return torch.cat([self.bare_model.generate(**row, **options(self.case, row)) for row in rows])

    def variants(self) -> dict[str, Callable[[int], Any]]:
        """Return all variants, as functions of the number of the turn."""
        return {
            "bare": lambda _: self.bare(),
            "one": lambda _: self.search(self.same, self.ready[self.same[0]]),
            "mixed": lambda _: self.search(self.conditions, self.ready_mixed),
            "anew": lambda _: self.search(self.conditions, None),
            "into": lambda _: self.search(self.shared["into"], self.ready_shared["into"]),
            "four": lambda _: self.search(self.shared["four"], self.ready_shared["four"]),
            "written": lambda _: self.written(),
            "alone": self.alone,
            "bare_alone": self.bare_alone,
        }

    def check(self) -> None:
        """Adapters that add nothing write what the bare model writes; others write other texts, which vary."""
        (block,) = self.ready_mixed.blocks
        silent = {name: t * (not name.startswith("up")) for name, t in block.tensors.items()}
        bare, mixed = self.bare(), self.search(self.conditions, self.ready_mixed)
        assert torch.equal(bare, self.search(self.conditions, Weights((replace(block, tensors=silent),))))
        assert not torch.equal(bare, mixed)
        assert len(set(mixed.flatten().tolist())) > 2 * self.case.rows, "texts that hardly vary would prove nothing"
        assert bare.shape == (self.case.rows, 1 + self.case.new), "no text has ended"
        if self.case.dtype == "float32":  # rows that share weights write what they write with their own
            for name, weights in self.ready_shared.items():
                shared, own = (self.search(self.shared[name], one) for one in (weights, Weights(weights.blocks)))
                assert torch.equal(shared, own)

    def check_round(self, turn: int, texts: Mapping[str, Any]) -> float:
        """Check that the variants of a turn wrote the same; return the share of the bare model's rows that do so alone.

        Batches of other shapes round differently: in bf16, and in fp32 where two pieces are almost equally good.
        """
        if self.case.dtype == "float32":
            assert torch.equal(texts["mixed"], texts["anew"])
            assert torch.equal(texts["mixed"][self.some(turn)], texts["alone"])
        if self.case.beams == 1:  # the last piece is the end there
            assert torch.equal(torch.tensor(texts["written"]), texts["mixed"][:, 1 : self.case.new])
        return float((texts["bare"][self.some(turn)] == texts["bare_alone"]).all(-1).float().mean())


@torch.inference_mode()
def decode(case: Case, *, rounds: int) -> dict[str, Any]:
    """Time all variants of a case, in turns."""
    search = Search(case)
    search.check()
    equal = []

    def check(turn: int, texts: dict[str, Any]) -> None:
        equal.append(search.check_round(turn, texts))

    times = interleave(search.variants(), rounds=rounds, clock=time.process_time, warmup=WARMUP, after_round=check)
    return {
        "case": asdict(case), "summary": summarize_decode(case, times), "bare rows as alone": float(np.mean(equal)),
        "seconds": times,
    }  # fmt: skip


def summarize_decode(case: Case, times: Times) -> dict[str, dict[str, float]]:
    """Return ratios of the minima and of the 20th percentiles."""
    summary, against_bare = {}, ("one", "into", "four", "mixed", "anew", "written")
    for key in ("minimum", "p20"):
        cost = {variant: low(seconds)[key] for variant, seconds in times.items()}
        share = case.rows / ALONE
        summary[key] = {
            **{f"{variant} / bare": cost[variant] / cost["bare"] for variant in against_bare},
            "alone / bare_alone": cost["alone"] / cost["bare_alone"],
            "directions at once": share * cost["alone"] / cost["mixed"],
            "rows at once, bare": share * cost["bare_alone"] / cost["bare"],
            "tokens per second, mixed": case.rows * case.new / cost["mixed"],
            "tokens per second, bare": case.rows * case.new / cost["bare"],
        }
    return summary


@torch.inference_mode()
def compare(case: Case, python: Path, *, rounds: int) -> dict[str, Any]:
    """Search with one dense model, by Transformers, by Polyloom and by CTranslate2; all rows at once, and one alone."""
    model, inputs = make_model(case, DenseConfig()), make_inputs(case)
    bare = bare_copy(model)
    times: Times = {}
    equal: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bare.save_pretrained(folder)
        with Peer(python, "peer_ctranslate2", folder) as peer:
            size = peer.ask(convert=True)
            for number in range(WARMUP + rounds):
                for name, seconds, ids in searches(case, model, bare, inputs, peer):
                    if number >= WARMUP:
                        times.setdefault(name, []).append(seconds)
                    if name == "transformers":
                        reference = ids
                    elif ids is not None:
                        same = (ids == reference[: len(ids)]).all(-1).float().mean()
                        equal.setdefault(name, []).append(float(same))
    assert min(equal["polyloom"]) == 1.0
    assert min(equal["float32"]) == 1.0, "CTranslate2 in fp32 must write the same"
    costs = {name: low(seconds) for name, seconds in times.items()}
    shares = {name: min(values) for name, values in equal.items()}
    return {"case": asdict(case), "bytes": size, "equal rows": shares, "costs": costs, "seconds": times}


def searches(
    case: Case, model: Model, bare: Any, inputs: dict[str, Tensor], peer: Peer
) -> Iterator[tuple[str, float, Any]]:
    """Yield name, CPU seconds and pieces of every variant. CTranslate2 measures its own seconds."""
    rows: list[Condition | str] = [CONDITIONS[0]] * case.rows
    first = {name: tensor[:1] for name, tensor in inputs.items()}
    works: dict[str, Callable[[], Tensor]] = {
        "transformers": lambda: bare.generate(**inputs, **options(case, inputs)),
        "polyloom": lambda: model.generate(inputs, rows, **options(case, inputs)),
        "transformers, one row": lambda: bare.generate(**first, **options(case, first)),
    }
    for name, work in works.items():
        started = time.process_time()
        ids = work()
        yield name, time.process_time() - started, ids[:, 1:]
    sources, starts = inputs["input_ids"].tolist(), inputs["decoder_input_ids"][:, 0].tolist()
    for kind in ("float32", "int8"):
        for name, count in ((kind, case.rows), (f"{kind}, one row", 1)):
            answer = peer.ask(kind=kind, beams=case.beams, new=case.new, sources=sources[:count], starts=starts[:count])
            yield name, answer["seconds"], torch.tensor(answer["ids"])
        yield f"{kind}, loading", peer.ask(kind=kind, load=True)["seconds"], None


@command(app)
def adapters(names: Cases = None, *, rounds: Rounds = 40, tiny: Tiny = False, file: Json = None) -> None:
    """What adapters cost a search, and what mixed directions gain.

    python -m benchmarks.decoding adapters --json benchmarks/results/decoding_adapters.json

    bare         the Transformers model without any hook         bare_alone   the same, one row at a time
    one          one direction, its weights ready                alone        one direction at a time, weights ready
    mixed        32 directions, their weights ready (a cache)    anew         32 directions, weights made for this batch
    written      mixed, by `generate_ids`                        into         32 sources into one target
    four         four directions of eight rows each, in turn
    """
    run(cases_of(names, tiny=tiny), partial(decode, rounds=rounds), file)


@command(app)
def ctranslate2(
    names: Cases = None, *, python: PeerPython = None, rounds: Rounds = 40, tiny: Tiny = False, file: Json = None
) -> None:
    """How far CTranslate2 is ahead with one dense model. Its environment needs `torch` and `transformers`, too.

    python -m benchmarks.decoding ctranslate2 --python PYTHON --json benchmarks/results/decoding_ctranslate2.json
    """
    if python is None:
        raise typer.BadParameter("name the Python of an environment with ctranslate2", param_hint="--python")
    cases = [case for case in cases_of(names, tiny=tiny) if case.dtype == "float32"]
    run(cases, partial(compare, python=python, rounds=rounds), file)


def cases_of(names: list[str] | None, *, tiny: bool) -> list[Case]:
    """Return the cases of the command line."""
    if unknown := set(names or []) - CASES.keys():
        raise typer.BadParameter(f"no case {', '.join(sorted(unknown))}", param_hint="--case")
    return TINY_CASES if tiny else [CASES[name] for name in names or CASES]


def run(cases: list[Case], measure: Callable[[Case], dict[str, Any]], file: Path | None) -> None:
    """Measure case by case, and write what there is after each."""
    use_one_thread()
    results: list[dict[str, Any]] = []
    for case in cases:
        results.append(measure(case))
        report(results, file, summary={key: value for key, value in results[-1].items() if key != "seconds"})


if __name__ == "__main__":
    app()
