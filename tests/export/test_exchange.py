"""What we export answers the same in the other library, and what that library saves answers the same with us."""

import json
import os
import subprocess
import sys
from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from polyloom.backbones import Backbone, identity_of
from polyloom.conditions import Condition
from polyloom.export.adapter import Adapter, generate_adapters, load_adapters_into
from polyloom.export.adapterhub import FORMS, read_adapterhub, write_adapterhub
from polyloom.export.peft import OTHER_HEADS, read_peft, write_peft
from polyloom.methods import METHODS
from polyloom.methods.base import AdapterMethod
from polyloom.methods.madx import StackedMethod
from polyloom.model import Model
from tests.contracts.tiny import CONFIGS, LANGUAGES, has_two_stacks, is_decoder, tiny_backbone, tiny_config, tiny_inputs
from tests.covering import covering

PYTHON = os.environ.get("POLYLOOM_ADAPTERS_PYTHON")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not PYTHON, reason="POLYLOOM_ADAPTERS_PYTHON is not set: see CONTRIBUTING.md"),
]
LABELS = ("ADJ", "NOUN", "VERB")
WHOLE_LORA = {"block": "lora", "targets": "all-linear", "alpha": 9.0, "rslora": True}
STACKED = tuple(name for name, method in METHODS.items() if issubclass(method, StackedMethod))
ADAPTER_METHODS = [name for name, method in METHODS.items() if issubclass(method, AdapterMethod)]
CLASSES = {
    "bert": "BertForTokenClassification", "roberta": "RobertaForTokenClassification",
    "xlm-roberta": "XLMRobertaForTokenClassification", "distilbert": "DistilBertForTokenClassification",
    "deberta-v2": "DebertaV2ForTokenClassification", "modernbert": "ModernBertForMaskedLM",
    "m2m_100": "M2M100ForConditionalGeneration", "mbart": "MBartForConditionalGeneration",
    "marian": "MarianMTModel", "t5": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration",
    "llama": "LlamaForTokenClassification", "qwen2": "Qwen2ForTokenClassification",
    "qwen3": "Qwen3ForTokenClassification", "gemma2": "Gemma2ForTokenClassification",
    "gemma3_text": "Gemma3ForCausalLM",
}  # fmt: skip


@dataclass
class Case:
    """A model, the adapter that was exported from it, and what both sides say."""

    name: str
    family: str
    format: str
    place: Path
    model: Model
    adapter: Adapter
    folders: tuple[Path, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def condition(self) -> Condition:
        """That of the adapter."""
        return self.adapter.condition

    @property
    def backbone(self) -> Backbone:
        """A fresh backbone."""
        return tiny_backbone(self.family)

    @torch.no_grad()
    def ours(self, model: Model) -> dict[str, Tensor]:
        """Last hidden states, and logits of the head."""
        inputs = case_inputs(self.family)
        rows = [self.condition] * len(inputs["input_ids"])
        with model.backbone.using(model.weights(rows), num_rows=len(rows)):
            hidden = model.backbone.hidden(**inputs)
        for task in {"pos", "cls"} & model.tasks.keys():
            read = hidden if task == "pos" else hidden[:, 0]
            return {"hidden": hidden, "logits": model.get_submodule(f"heads.{task}.classifier")(read)}
        return {"hidden": hidden, "logits": model(inputs, rows).logits}

    def theirs(self) -> dict[str, Tensor]:
        """What the other library said."""
        return load_file(self.place / "answers.safetensors")

    def described(self, backbones: Path) -> dict[str, Any]:
        """For `theirs.py`."""
        theirs = FORMS[self.family].model_class if self.format == "adapterhub" else CLASSES[self.family]
        if self.condition.task == "lm":
            theirs = theirs.replace("TokenClassification", "CausalLM")
        # The library cannot save adapters with a norm of their own as safetensors: its norm has two names.
        norm = any("norm_weight" in block.tensors for block in self.adapter.weights.blocks)
        return {
            "format": self.format, "class": theirs, "backbone": str(backbones / self.family), "place": str(self.place),
            "folders": list(map(str, self.folders)), "num_labels": len(self.adapter.labels),
            "save": "" if norm else str(self.place / "again"),
        }  # fmt: skip


def case_inputs(family: str) -> dict[str, Tensor]:
    """Without left padding, which libraries count positions in differently."""
    inputs = tiny_inputs(family)
    return {name: t[::3].contiguous() if is_decoder(family) else t for name, t in inputs.items()}


def condition_of(method: str, family: str, task: str) -> Condition:
    """A language, or two where the method or a translation needs a pair."""
    # One invertible adapter serves both stacks there, so stacked methods have one language.
    pair = method in ("badx", "pair-adapters") or (task == "mt" and method not in STACKED)
    return Condition(task, "en", "tr") if pair else Condition(task, "tr")


def make(method: str, family: str, settings: dict[str, Any], *, task: str, format_: str, place: Path) -> Case:
    """Build and export; the backbone has nothing trained, so that adapters alone make the difference."""
    # Where there are no labels, there is no head.
    labels = None if task in ("mt", "lm") or (format_ == "peft" and family in OTHER_HEADS) else LABELS
    config = tiny_config(method, **settings)
    model = Model(tiny_backbone(family), config, languages=LANGUAGES, tasks={task: labels}).eval()
    torch.manual_seed(11)
    for parameter in (*model.method.parameters(), *model.heads.parameters()):
        parameter.data.normal_(std=0.3)
    (adapter,) = generate_adapters(model, [condition_of(method, family, task)], whole=False)
    place.mkdir(parents=True)
    if format_ == "adapterhub":
        folders = tuple(write_adapterhub(adapter, model.backbone.shape, place / "adapter"))
    else:
        folders = (write_peft(adapter, model.backbone, place / "adapter"),)
    name = "-".join([format_, task, method, family, *map(str, settings.values())])
    return Case(name, family, format_, place, model, adapter, folders)


Made = tuple[str, str, str, dict[str, Any], str]  # task, method, family, settings, format


def every_case() -> list[Made]:
    """List every method on every family that a format can hold: tags, or translation where there are two stacks.

    Decoders also have a language model. Text classification is added for one method, where their classifiers read the
    first token as ours do.
    """
    found: list[Made] = []
    for method in ADAPTER_METHODS:
        for family in CONFIGS:
            task = "mt" if has_two_stacks(family) else "pos"
            if family in FORMS:
                refused = {"layer"} if method in STACKED and FORMS[family].post_norm else set()
                placements = [p for p in tiny_backbone(family).shape.placements if p not in refused]
                found += [(task, method, family, {"placement": placement}, "adapterhub") for placement in placements]
            lora = WHOLE_LORA if method == "hyperx" else {"block": "lora"}
            stacked = {"invertible": False, "drop_last_layer": True} if method in STACKED else {}
            found.append((task, method, family, lora | stacked, "peft"))
    encoders = [name for name in FORMS if not has_two_stacks(name) and not is_decoder(name)]
    found += [("cls", "hyperx", family, {}, "adapterhub") for family in encoders]
    found += [("pos", "hyperx", family, {"norm": "after"}, "adapterhub") for family in encoders]
    return found + [("lm", "hyperx", family, WHOLE_LORA, "peft") for family in CONFIGS if is_decoder(family)]


def facts(case: Made) -> set[Hashable]:
    """Method, family, task and each setting, with the format."""
    task, method, family, settings, format_ = case
    return {(fact, format_) for fact in (task, method, family, *settings.items())}


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.nightly)])
def cases(request, tmp_path_factory):
    """All cases, or some that show every fact, answered by the other side in one process."""
    place = tmp_path_factory.mktemp("exchange")
    chosen = [
        one.values[0] for one in covering(every_case(), facts, name=str) if request.param == "all" or not one.marks
    ]
    every = [
        make(method, family, settings, task=task, format_=format_, place=place / str(number))
        for number, (task, method, family, settings, format_) in enumerate(chosen)
    ]
    for family in {case.family for case in every}:
        tiny_backbone(family).model.save_pretrained(place / "backbones" / family)
    for case in every:
        save_file(case_inputs(case.family), case.place / "inputs.safetensors")
    for format_, python in {"adapterhub": str(PYTHON), "peft": sys.executable}.items():
        described = [case.described(place / "backbones") for case in every if case.format == format_]
        (place / "cases.json").write_text(json.dumps(described))
        command = [python, str(Path(__file__).with_name("theirs.py")), str(place / "cases.json")]
        environment = {"PATH": os.environ.get("PATH", ""), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        run = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
    return every


def test_what_we_export_answers_the_same_there(cases):
    wrong = []
    for case in cases:
        ours, theirs = case.ours(case.model), case.theirs()
        # The library ties mT5's output to its input embeddings, which are two in mT5.
        tied = (case.format, case.family) == ("adapterhub", "mt5")
        key = "logits" if "logits" in theirs and not tied else "hidden"
        with torch.no_grad():
            bare = tiny_backbone(case.family).hidden(**case_inputs(case.family))
        assert (ours["hidden"] - bare).abs().max() > 1e-2, f"{case}: the adapter does nothing"
        difference, size = (ours[key] - theirs[key]).abs().max(), ours[key].abs().max()
        if not difference <= 1e-6 * max(1.0, float(size)):
            wrong.append(f"{case}: {float(difference):.2g} of {float(size):.2g}")
    assert not wrong, f"{len(wrong)} of {len(cases)}: " + "; ".join(wrong)


def test_what_they_save_answers_the_same_here(cases):
    read = 0
    for case in cases:
        again = case.place / "again"
        if not again.exists():
            continue
        backbone = case.backbone
        if case.format == "adapterhub":
            folders = [
                again / folder.name if len(case.folders) > 1 else next(again.iterdir()) for folder in case.folders
            ]
            adapter = read_adapterhub(folders, case.condition, backbone.shape)
        else:
            adapter = read_peft(again, case.condition, backbone, labels=case.adapter.labels)
        model = load_adapters_into([replace(adapter, identity=identity_of(backbone))], backbone)
        ours, before = case.ours(model), case.ours(case.model)
        joined = case.format == "peft" and len(case.adapter.weights.blocks) > 1  # two LoRAs became one: sums round
        for key in ours:
            difference = (ours[key] - before[key]).abs().max()
            assert difference <= (1e-6 * before[key].abs().max() if joined else 0.0), f"{case}: {key}"
        read += 1
    assert read > min(100, len(cases) / 2)
