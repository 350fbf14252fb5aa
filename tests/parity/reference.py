"""The reference side of the parity tests: `adapters` 1.3.0, in its own virtual environment, without polyloom.

    python reference.py DIRECTORY...

Every directory holds a case, written by `side.py`: `case.json` (backbone, adapters, runs), `weights.safetensors` (the
backbone's and the adapters' tensors under AdapterHub's names) and `inputs.safetensors`. The answers are written next to
them, as `answers.safetensors`, with names such as ``flexible/en+pos/logits``.

Runs have one of two heads. `static` is the model of Transformers (`BertForMaskedLM`) after `adapters.init`, `flexible`
the library's own model class with a head of the same weights: only the latter undoes invertible adapters.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

# The names of a head's parts in Transformers, and in a flexible head; None: left out, as a copy or as zero.
HEADS: dict[str, dict[str, str | None]] = {
    "bert": {
        "cls.predictions.transform.dense.": "heads.lm.0.",
        "cls.predictions.transform.LayerNorm.": "heads.lm.2.",
        "cls.predictions.decoder.": "heads.lm.3.",
        "cls.predictions.bias": None,
    },
    "xlm-roberta": {
        "lm_head.dense.": "heads.lm.0.",
        "lm_head.layer_norm.": "heads.lm.2.",
        "lm_head.decoder.": "heads.lm.3.",
        "lm_head.bias": None,
    },
    "mbart": {"lm_head.": "heads.lm.0.", "final_logits_bias": None},
}
CLASSES = {
    "bert": ("BertForMaskedLM", "BertAdapterModel"),
    "xlm-roberta": ("XLMRobertaForMaskedLM", "XLMRobertaAdapterModel"),
    "mbart": ("MBartForConditionalGeneration", "MBartAdapterModel"),
}


def collect(output: Any) -> dict[str, Tensor]:
    """Name the tensors of a model's output that are compared: logits and the hidden states of all layers."""
    found: dict[str, Tensor] = {"logits": output["logits"]}
    if output.get("encoder_last_hidden_state") is not None:
        found["encoder.last"] = output["encoder_last_hidden_state"]
    for key, stack in {
        "hidden_states": "hidden",
        "encoder_hidden_states": "encoder",
        "decoder_hidden_states": "decoder",
    }.items():
        found |= {f"{stack}.{layer}": states for layer, states in enumerate(output.get(key) or ())}
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


def composition(active: Any) -> Any:
    """Read ``"en"``, ``{"stack": [...]}`` or ``{"split": [...], "sizes": [...]}``."""
    from adapters.composition import BatchSplit, Stack

    if isinstance(active, str):
        return active
    if "stack" in active:
        return Stack(*map(composition, active["stack"]))
    return BatchSplit(*map(composition, active["split"]), batch_sizes=active["sizes"])


def build(case: Mapping[str, Any], weights: Mapping[str, Tensor], head: str) -> Any:
    """Make the model with its adapters and load all weights, refusing any that is missing or left over."""
    import adapters
    import transformers

    model_type = case["backbone"]["model_type"]
    config = transformers.AutoConfig.for_model(**case["backbone"])
    static, flexible = CLASSES[model_type]
    if head == "static":
        model = getattr(transformers, static)(config)
        adapters.init(model)
    else:
        model = getattr(adapters, flexible)(config)
        add_head = model.add_seq2seq_lm_head if model_type == "mbart" else model.add_masked_lm_head
        add_head("lm")
        weights = rename(weights, HEADS[model_type])
    for name, options in case["adapters"].items():
        model.add_adapter(name, config=adapters.SeqBnConfig(**options))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    # A pooler, which no head here uses, and a second name of the word embeddings.
    missing = [name for name in missing if ".pooler." not in name and ".prompt_tuning." not in name]
    if missing or unexpected:
        raise SystemExit(f"{model_type}, {head}: missing {missing}, unexpected {unexpected}")
    return model.eval()


def rename(weights: Mapping[str, Tensor], parts: Mapping[str, str | None]) -> dict[str, Tensor]:
    """Give the tensors of a head their names in a flexible head."""
    renamed = {}
    for name, tensor in weights.items():
        part = next((part for part in parts if name.startswith(part)), None)
        if part is None:
            renamed[name] = tensor
        elif (new := parts[part]) is not None:
            renamed[new + name.removeprefix(part)] = tensor
    return renamed


@torch.no_grad()
def answer(directory: Path) -> None:
    """Run everything a case asks for."""
    case = json.loads((directory / "case.json").read_text())
    weights = load_file(directory / "weights.safetensors")
    inputs = load_file(directory / "inputs.safetensors")
    probe = inputs.pop("probe")
    answers: dict[str, Tensor] = {}
    for head in sorted({run["head"] for run in case["runs"].values()}):
        model = build(case, weights, head)
        for name, run in case["runs"].items():
            if run["head"] != head:
                continue
            model.set_active_adapters(composition(run["active"]))
            if head == "flexible":
                model.active_head = "lm"
            output = model(**inputs, output_hidden_states=True, return_dict=True)
            answers |= {f"{name}/{key}": tensor for key, tensor in collect(output).items()}
    for name, block in model.base_model.invertible_adapters.items():
        answers |= {f"nice/{name}/forward": block(probe), f"nice/{name}/inverse": block(probe, rev=True)}
    save_file(answers, directory / "answers.safetensors")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        answer(Path(argument))
