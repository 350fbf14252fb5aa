"""Both sides of the comparison with AdapterHub's `adapters`: the same weights and inputs, ours and theirs.

`ask` builds our models with large random weights, writes them down under AdapterHub's names, lets `reference.py` answer
in its own virtual environment and returns a `Pair` per case: our model, the inputs, the reference's answers. The parity
tests stand on it, and so does `benchmarks.forward mixed`.

A batch has six rows. The reference runs each stack of adapters alone on all rows; what it says of row i under the
stack of row i's own condition is the right answer for a mixed batch.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from polyloom.backbones import backbone_from_config
from polyloom.conditions import Inventory
from polyloom.methods import build_method
from polyloom.methods.madx import MadXConfig, StackedMethod
from polyloom.model import Model
from polyloom.nn.tables import Bank
from tests.parity.reference import collect

WIDTH = 32
LAYERS = 3
LANGUAGE_SIZE = 8
TASK_SIZE = 4
NUM_ROWS = 6
LANGUAGES = ("en", "sw", "tr")
TASKS = ("pos", "ner")
NO_TASK = "none"  # a task whose adapter is zero: the language adapter alone

_ENCODER = {
    "vocab_size": 100,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "initializer_range": 0.15,
}
BACKBONES: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", "pad_token_id": 0, "layer_norm_eps": 1e-12, **_ENCODER},
    "xlm-roberta": {"model_type": "xlm-roberta", "pad_token_id": 1, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
    | _ENCODER,
    "mbart": {
        "model_type": "mbart",
        "vocab_size": 100,
        "d_model": WIDTH,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS - 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 40,
        "init_std": 0.2,
        "pad_token_id": 1,
        "scale_embedding": True,
    },
}

_BERT_SITE = "encoder.layer.{site.layer}.output.adapters.{name}."
_NAMES = {  # of an adapter at a site, and of an invertible adapter
    "bert": (f"bert.{_BERT_SITE}", "bert.invertible_adapters.{name}."),
    "xlm-roberta": (f"roberta.{_BERT_SITE}", "roberta.invertible_adapters.{name}."),
    "mbart": (
        "model.{site.stack}.layers.{site.layer}.output_adapters.adapters.{name}.",
        "model.encoder.invertible_adapters.{name}.",
    ),
}
_TENSORS = {
    "down": "adapter_down.0.weight",
    "down_bias": "adapter_down.0.bias",
    "up": "adapter_up.weight",
    "up_bias": "adapter_up.bias",
} | {
    f"{net.lower()}_{part}{bias}": f"{net}.{index}.{'bias' if bias else 'weight'}"
    for net in "FG"
    for part, index in {"in": 0, "out": 2}.items()
    for bias in ("", "_bias")
}


@dataclass(frozen=True)
class Case:
    """A backbone with MAD-X in one of its settings."""

    family: str
    invertible: bool
    drop_last_layer: bool = False

    def __str__(self) -> str:
        parts = [self.family, "invertible" if self.invertible else "plain"]
        return "-".join(parts + ["drop-last"] * self.drop_last_layer)


@dataclass(frozen=True)
class Pair:
    """Our model and the reference's answers for the same weights and inputs."""

    case: Case
    model: Model
    inputs: dict[str, Tensor]
    probe: Tensor
    answers: dict[str, Tensor]

    @torch.no_grad()
    def ours(self, rows: Sequence[str]) -> dict[str, Tensor]:
        """What we say, in one batch with one condition per row."""
        return collect(self.model({**self.inputs, "output_hidden_states": True}, rows))

    def theirs(self, run: str) -> dict[str, Tensor]:
        """What the reference says in one of its runs."""
        return {key.removeprefix(f"{run}/"): t for key, t in self.answers.items() if key.startswith(f"{run}/")}

    def alone(self, rows: Sequence[str]) -> dict[str, Tensor]:
        """What the reference says of each row when the row's own stack runs alone."""
        runs = [self.theirs(f"flexible/{stack_name(row)}") for row in rows]
        return {key: torch.stack([run[key][i] for i, run in enumerate(runs)]) for key in runs[0]}


def stack_name(condition: str) -> str:
    """The reference's name for the stack of a condition ``task/language``."""
    task, language = condition.split("/")
    return language if task == NO_TASK else f"{language}+{task}"


def difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest absolute difference of the logits, and of the hidden states of all layers."""
    if ours.keys() != theirs.keys():
        raise ValueError(f"outputs are not the same: {sorted(ours)} and {sorted(theirs)}")
    each = {name: float((ours[name] - theirs[name]).abs().max()) for name in ours}
    return {"logits": each.pop("logits"), "hidden": max(each.values())}


# -- the side-by-side -------------------------------------------------------------------------------------------------


def split(*languages: str, stacked: bool) -> dict[str, Any]:
    """A composition for a mixed batch: a split of stacks, or a stack on top of a split."""
    sizes = [NUM_ROWS // len(languages)] * len(languages)
    if stacked:
        return {"split": [{"stack": [language, TASKS[0]]} for language in languages], "sizes": sizes}
    return {"stack": [{"split": list(languages), "sizes": sizes}, TASKS[0]]}


SPLITS = {
    "BatchSplit(Stack(en, pos), Stack(sw, pos))": split("en", "sw", stacked=True),
    "Stack(BatchSplit(en, sw), pos)": split("en", "sw", stacked=False),
}
SPLIT_ROWS = [f"{TASKS[0]}/{language}" for language in ("en", "sw") for _ in range(NUM_ROWS // 2)]


def side_by_side(pair: Pair) -> list[dict[str, Any]]:
    """The error of a mixed batch on either side, against the reference's own answer for each language alone."""
    right = pair.alone(SPLIT_ROWS)
    ours = difference(pair.ours(SPLIT_ROWS), right)
    return [
        {
            "backbone": pair.case.family,
            "invertible": pair.case.invertible,
            "composition": name,
            "adapters": difference(pair.theirs(f"flexible/{name}"), right),
            "polyloom": ours,
        }
        for name in SPLITS
    ]


# -- asking the reference ---------------------------------------------------------------------------------------------


def ask(python: str, directory: Path, cases: Iterable[Case]) -> dict[Case, Pair]:
    """Build our side of every case and have the reference answer all of them in one process.

    Args:
        python: The interpreter of the virtual environment with `adapters`.
        directory: Where to exchange files.
        cases: What to compare.
    """
    asked = {case: (directory / str(case), build(case), make_inputs(case)) for case in cases}
    for case, (place, model, inputs) in asked.items():
        place.mkdir(parents=True)
        (place / "case.json").write_text(json.dumps(describe(case), indent=1))
        save_file(adapterhub_tensors(case, model), place / "weights.safetensors")
        save_file(inputs, place / "inputs.safetensors")
    script = str(Path(__file__).with_name("reference.py"))
    environment = {"PATH": os.environ.get("PATH", ""), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [python, script, *(str(place) for place, _, _ in asked.values())],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise RuntimeError(f"{python} {script} failed:\n{run.stdout}\n{run.stderr}")
    pairs = {}
    for case, (place, model, inputs) in asked.items():
        probe = inputs.pop("probe")
        pairs[case] = Pair(case, model, inputs, probe, load_file(place / "answers.safetensors"))
    return pairs


def versions(python: str) -> dict[str, str]:
    """The releases that take part in one of the two virtual environments."""
    code = (
        "import importlib.metadata as m, json; names = {d.name for d in m.distributions()}; "
        "print(json.dumps({n: m.version(n) for n in ('adapters', 'polyloom', 'torch', 'transformers') if n in names}))"
    )
    run = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(run.stdout)
    return found


def build(case: Case) -> Model:
    """Our model, with random weights so large that nothing is one, zero or negligible by accident."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        backbone = backbone_from_config(BACKBONES[case.family])
        for name, parameter in backbone.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(mean=float("norm" in name.lower() and name.endswith("weight")), std=0.2)
        config = MadXConfig(
            adapter_size=LANGUAGE_SIZE,
            task_adapter_size=TASK_SIZE,
            invertible=case.invertible,
            drop_last_layer=case.drop_last_layer,
        )
        inventory = Inventory.of(LANGUAGES, (*TASKS, NO_TASK))
        model = Model(backbone, build_method(config, shape=backbone.shape, inventory=inventory))
        for name, parameter in model.method.named_parameters():
            parameter.normal_(std=0.3 if name.startswith("invertible") else 0.2)
        assert isinstance(model.method, StackedMethod)
        for parameter in model.method.task_adapters.parameters():
            parameter[model.method.tasks.row(NO_TASK)].zero_()
    return model.eval()


def make_inputs(case: Case) -> dict[str, Tensor]:
    """Six rows of different lengths, padded, and a probe of hidden states for the invertible adapters."""
    generator = torch.Generator().manual_seed(1)
    inputs = {}
    for prefix, length in {"": 11, "decoder_": 9}.items() if case.family == "mbart" else [("", 11)]:
        lengths = torch.randint(3, length + 1, (NUM_ROWS, 1), generator=generator)
        lengths[0] = length
        mask = torch.arange(length) < lengths
        ids = torch.randint(5, 100, (NUM_ROWS, length), generator=generator)
        inputs[f"{prefix}input_ids"] = ids.where(mask, BACKBONES[case.family]["pad_token_id"])
        inputs[f"{prefix}attention_mask"] = mask.long()
    return inputs | {"probe": torch.randn(2, 7, WIDTH, generator=generator)}


def describe(case: Case) -> dict[str, Any]:
    """The case for `reference.py`: backbone, adapters and runs."""
    last = [LAYERS - 1, 2 * LAYERS - 2] if case.family == "mbart" else [LAYERS - 1]
    language = {"reduction_factor": WIDTH / LANGUAGE_SIZE, "leave_out": last if case.drop_last_layer else []}
    task = {"reduction_factor": WIDTH / TASK_SIZE}
    if case.invertible:
        language |= {"inv_adapter": "nice", "inv_adapter_reduction_factor": 2}
    # With a layer left out, the reference's BatchSplit is a KeyError.
    runs: dict[str, Any] = {} if case.drop_last_layer else dict(SPLITS)
    for name in LANGUAGES:
        runs |= {name: name} | {f"{name}+{task}": {"stack": [name, task]} for task in TASKS}
    listed = {f"flexible/{name}": {"head": "flexible", "active": active} for name, active in runs.items()}
    listed["static/en+pos"] = {"head": "static", "active": runs["en+pos"]}
    return {
        "backbone": BACKBONES[case.family],
        "adapters": dict.fromkeys(LANGUAGES, language) | dict.fromkeys(TASKS, task),
        "runs": listed,
    }


def adapterhub_tensors(case: Case, model: Model) -> dict[str, Tensor]:
    """The backbone's tensors and the adapters' under AdapterHub's names."""
    method = model.method
    assert isinstance(method, StackedMethod)
    at_site, invertible = _NAMES[case.family]
    named = dict(model.backbone.model.state_dict())
    for names, bank, sites in (
        (LANGUAGES, method.language_adapters, method.language_sites),
        (TASKS, method.task_adapters, method.shape.sites),
    ):
        for row, name in enumerate(names):
            for index, site in enumerate(sites):
                named |= _row(bank, row, index, at_site.format(site=site, name=name))
    if case.invertible:
        for row, name in enumerate(LANGUAGES):
            named |= _row(method.invertible_adapters, row, 0, invertible.format(name=name))
    return {name: tensor.detach().clone().contiguous() for name, tensor in named.items()}


def _row(bank: Bank, row: int, index: int, prefix: str) -> dict[str, Tensor]:
    return {prefix + _TENSORS[name]: bank.get_parameter(name)[row, index] for name in bank.names}
