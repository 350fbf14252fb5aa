"""What adapters cost a search, what mixed directions gain, and how far CTranslate2 is ahead with one dense model.

    python -m benchmarks.translation decode --json benchmarks/results/translation_decode.json
    python -m benchmarks.translation peer --python CT2_PYTHON --json benchmarks/results/translation_peer.json

Random weights, 24 pieces in and 24 out in every row (the end is never the best piece), so that all variants do the same
work; their outputs are compared wherever they must be equal. CPU time of one thread, in turns, 40 rounds; all times are
kept, and the minimum and the 20th percentile are told.

    bare         the Transformers model without any hook         bare_alone   the same, one row at a time
    one          one direction, its weights ready                alone        one direction at a time, weights ready
    mixed        32 directions, their weights ready (a cache)    anew         32 directions, weights made for this batch
    written      mixed, by `Model.write`                         into         32 sources into one target
    four         four directions of eight rows each, in turn
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

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

ROWS, SOURCE, NEW = 32, 24, 24
ALONE = 4  # rows that a round takes one at a time; all take the same work, so 32 take eight times as long
END, WARMUP = 2, 2
SIZES = {"base": ("transformer-base", 32_000, 128), "mini": ("transformer-mini", 8_000, 32)}
LANGUAGES = tuple(f"l{i}" for i in range(ROWS + 1))
CONDITIONS = [Condition("mt", "l0", language) for language in LANGUAGES[1:]]
INTO = [Condition("mt", language, "l0") for language in LANGUAGES[1:]]
Times = dict[str, list[float]]


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


def make_model(case: Case, method: MethodConfig) -> Model:
    """A model with random weights whose texts vary and do not end."""
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
    """The Transformers model alone, without hooks."""
    bare = AutoModelForSeq2SeqLM.from_config(model.backbone.model.config)
    bare.load_state_dict(model.backbone.model.state_dict())
    return bare.to(model.backbone.model.dtype).eval()


def make_inputs(case: Case) -> dict[str, Tensor]:
    """Random sources, and a first piece for every decoder."""
    torch.manual_seed(1)
    high = SIZES[case.size][1]
    return {
        "input_ids": torch.randint(5, high, (case.rows, SOURCE)),
        "attention_mask": torch.ones(case.rows, SOURCE, dtype=torch.long),
        "decoder_input_ids": torch.randint(5, high, (case.rows, 1)),
    }


def options(case: Case, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """For `generate`."""
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
        self.turn = 0

    def weights(self, conditions: list[Condition]) -> Weights:
        """Made beforehand, in the backbone's data type."""
        return self.model.weights(conditions).to(self.model.backbone.model.dtype)

    def search(self, rows: list[Condition], weights: Weights | None) -> Tensor:
        """All rows at once, with adapters."""
        found: Tensor = self.model.generate(self.inputs, rows, weights=weights, **options(self.case, self.inputs))
        return found

    def bare(self) -> Tensor:
        """All rows at once, without."""
        found: Tensor = self.bare_model.generate(**self.inputs, **options(self.case, self.inputs))
        return found

    def written(self) -> list[list[int]]:
        """As evaluation and prediction do it."""
        decoding = Decoding(beams=self.case.beams, max_ratio=0.0, max_extra=self.case.new)
        batch = Batch(self.inputs, self.conditions, {})
        return self.model.generate_ids(batch, eos_id=END, decoding=decoding, weights=self.ready_mixed)

    def some(self) -> list[int]:
        """The rows of this turn."""
        return [(self.turn * ALONE + i) % self.case.rows for i in range(ALONE)]

    def alone(self) -> Tensor:
        """Some rows, one at a time."""
        return torch.cat(
            [
                self.model.generate(
                    self.rows[i],
                    [self.conditions[i]],
                    weights=self.ready[self.conditions[i]],
                    **options(self.case, self.rows[i]),
                )
                for i in self.some()
            ]
        )

    def bare_alone(self) -> Tensor:
        """The same without adapters."""
        return torch.cat(
            [self.bare_model.generate(**self.rows[i], **options(self.case, self.rows[i])) for i in self.some()]
        )

    def variants(self) -> dict[str, Callable[[], Any]]:
        """By name."""
        return {
            "bare": self.bare,
            "one": lambda: self.search(self.same, self.ready[self.same[0]]),
            "mixed": lambda: self.search(self.conditions, self.ready_mixed),
            "anew": lambda: self.search(self.conditions, None),
            **{name: partial(self.search, self.shared[name], weights) for name, weights in self.ready_shared.items()},
            "written": self.written,
            "alone": self.alone,
            "bare_alone": self.bare_alone,
        }

    def check(self) -> None:
        """Adapters that add nothing say what the bare model says; the others say something else, and not always one."""
        (block,) = self.ready_mixed.blocks
        silent = {name: t * (not name.startswith("up")) for name, t in block.tensors.items()}
        bare, mixed = self.bare(), self.search(self.conditions, self.ready_mixed)
        assert torch.equal(bare, self.search(self.conditions, Weights((replace(block, tensors=silent),))))
        assert not torch.equal(bare, mixed)
        assert len(set(mixed.flatten().tolist())) > 2 * self.case.rows, "texts that hardly vary would prove nothing"
        assert bare.shape == (self.case.rows, 1 + self.case.new), "no text has ended"
        if self.case.dtype == "float32":  # rows that share weights say what they say with weights of their own
            for name, weights in self.ready_shared.items():
                shared, own = (self.search(self.shared[name], one) for one in (weights, Weights(weights.blocks)))
                assert torch.equal(shared, own)

    def check_round(self, made: Mapping[str, Any]) -> float:
        """What was just timed is the same text; return the share of the bare model's rows that are so alone, too.

        Sums of other batch shapes round otherwise: in bf16, and in fp32 where two pieces are as good as equal.
        """
        if self.case.dtype == "float32":
            assert torch.equal(made["mixed"], made["anew"])
            assert torch.equal(made["mixed"][self.some()], made["alone"])
        if self.case.beams == 1:  # the last piece is the end there
            assert torch.equal(torch.tensor(made["written"]), made["mixed"][:, 1 : self.case.new])
        return float((made["bare"][self.some()] == made["bare_alone"]).all(-1).float().mean())


@torch.inference_mode()
def decode(case: Case, *, rounds: int) -> dict[str, Any]:
    """Time all variants of a case, in turns."""
    search = Search(case)
    search.check()
    times: Times = {}
    equal = []
    for number in range(WARMUP + rounds):
        search.turn, made = number, {}
        for name, run in search.variants().items():
            began = time.process_time()
            made[name] = run()
            if number >= WARMUP:
                times.setdefault(name, []).append(time.process_time() - began)
        equal.append(search.check_round(made))
    share = float(np.mean(equal))
    return {
        "case": asdict(case),
        "summary": summarize_decode(case, times),
        "bare rows as alone": share,
        "seconds": times,
    }


def summarize_decode(case: Case, times: Times) -> dict[str, dict[str, float]]:
    """Ratios of the minima and of the 20th percentiles."""
    found, against_bare = {}, ("one", "into", "four", "mixed", "anew", "written")
    for key, low in {"minimum": 0, "p20": 20}.items():
        cost = {variant: float(np.percentile(values, low)) for variant, values in times.items()}
        share = case.rows / ALONE
        found[key] = {
            **{f"{variant} / bare": cost[variant] / cost["bare"] for variant in against_bare},
            "alone / bare_alone": cost["alone"] / cost["bare_alone"],
            "directions at once": share * cost["alone"] / cost["mixed"],
            "rows at once, bare": share * cost["bare_alone"] / cost["bare"],
            "tokens per second, mixed": case.rows * case.new / cost["mixed"],
            "tokens per second, bare": case.rows * case.new / cost["bare"],
        }
    return found


class Peer:
    """CTranslate2 in a process of its own, asked line by line."""

    def __init__(self, python: Path, folder: Path) -> None:
        script = Path(__file__).with_name("translation_ct2.py")
        self.process = subprocess.Popen(  # noqa: S603 - the interpreter that the caller names
            [python, script, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CT2_USE_EXPERIMENTAL_PACKED_GEMM": "0"},
        )  # fmt: skip

    def ask(self, **question: Any) -> dict[str, Any]:
        """One question, one answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the process with CTranslate2 has ended; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@torch.inference_mode()
def peer(case: Case, *, rounds: int, python: Path) -> dict[str, Any]:
    """One dense model, by Transformers, by Polyloom and by CTranslate2; all rows at once, and one at a time."""
    model, inputs = make_model(case, DenseConfig()), make_inputs(case)
    bare = bare_copy(model)
    with tempfile.TemporaryDirectory() as folder:
        bare.save_pretrained(folder)
        other = Peer(python, Path(folder))
        size = other.ask(convert=True)
        times: Times = {}
        equal: dict[str, list[float]] = {}
        for number in range(WARMUP + rounds):
            for name, spent, ids in _turn(case, model, bare, inputs, other):
                if number >= WARMUP:
                    times.setdefault(name, []).append(spent)
                if name == "transformers":
                    reference = ids
                elif ids is not None:
                    same = (ids == reference[: len(ids)]).all(-1).float().mean()
                    equal.setdefault(name, []).append(float(same))
        other.close()
    assert min(equal["polyloom"]) == 1.0
    assert min(equal["float32"]) == 1.0, "CTranslate2 in fp32 must say the same"
    costs = {name: {"minimum": min(v), "p20": float(np.percentile(v, 20))} for name, v in times.items()}
    shares = {name: min(values) for name, values in equal.items()}
    return {"case": asdict(case), "bytes": size, "equal rows": shares, "costs": costs, "seconds": times}


def _turn(
    case: Case, model: Model, bare: Any, inputs: dict[str, Tensor], other: Peer
) -> Iterator[tuple[str, float, Any]]:
    """Name, CPU seconds and pieces of every variant."""
    rows: list[Condition | str] = [CONDITIONS[0]] * case.rows
    first = {name: tensor[:1] for name, tensor in inputs.items()}
    mine: dict[str, Callable[[], Tensor]] = {
        "transformers": lambda: bare.generate(**inputs, **options(case, inputs)),
        "polyloom": lambda: model.generate(inputs, rows, **options(case, inputs)),
        "transformers, one row": lambda: bare.generate(**first, **options(case, first)),
    }
    for name, run in mine.items():
        began = time.process_time()
        ids = run()
        yield name, time.process_time() - began, ids[:, 1:]
    question = {"beams": case.beams, "new": case.new, "sources": inputs["input_ids"].tolist()}
    starts = inputs["decoder_input_ids"][:, 0].tolist()
    for kind in ("float32", "int8"):
        for name, count in ((kind, case.rows), (f"{kind}, one row", 1)):
            asked = question | {"sources": question["sources"][:count], "starts": starts[:count]}  # type: ignore[index]
            answer = other.ask(kind=kind, **asked)
            yield name, answer["seconds"], torch.tensor(answer["ids"])
        yield f"{kind}, loading", other.ask(kind=kind, load=True)["seconds"], None


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decode", "peer"])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="sizes and beams; default: all")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--python", type=Path, default=os.environ.get("POLYLOOM_CT2_PYTHON"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for case in map(CASES.__getitem__, arguments.cases):
        if arguments.what == "decode":
            results.append(decode(case, rounds=arguments.rounds))
        elif case.dtype == "float32":
            results.append(peer(case, rounds=arguments.rounds, python=arguments.python))
        else:
            continue
        print(json.dumps({k: v for k, v in results[-1].items() if k != "seconds"}, indent=1), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
