"""The other side of the exchange: `adapters` and `peft` in a virtual environment of their own, without polyloom.

    python theirs.py CASES.json

Every case names a backbone (a directory that Transformers loads), adapters to load onto it and inputs. What the library
answers is written to ``answers.safetensors`` in the case's directory: ``logits`` of a head, or last hidden states.
Where ``save`` is a directory, the adapters are saved there by the library, for us to read.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def load_adapters(case: dict[str, Any]) -> Any:
    """An AdapterHub model with a stack of adapters."""
    import adapters
    from adapters.composition import Stack

    model = getattr(adapters, case["class"]).from_pretrained(case["backbone"])
    names = [model.load_adapter(folder, use_safetensors=True) for folder in case["folders"]]
    model.set_active_adapters(Stack(*names))
    if case["save"]:
        Path(case["save"]).mkdir()
        for name in names:
            model.save_adapter(f"{case['save']}/{name}", name, use_safetensors=True)
    return model


def load_peft(case: dict[str, Any]) -> Any:
    """A Transformers model with a LoRA."""
    import peft
    import transformers

    (folder,) = case["folders"]
    options = {"num_labels": case["num_labels"]} if case["num_labels"] else {}
    base = getattr(transformers, case["class"]).from_pretrained(case["backbone"], **options)
    model = peft.PeftModel.from_pretrained(base, folder)
    if case["save"]:
        model.save_pretrained(case["save"])
    return model


@torch.no_grad()
def answer(case: dict[str, Any]) -> None:
    """Run one case."""
    torch.manual_seed(0)
    model = {"adapterhub": load_adapters, "peft": load_peft}[case["format"]](case).eval()
    place = Path(case["place"])
    output = model(**load_file(place / "inputs.safetensors"), return_dict=True, output_hidden_states=True)
    found = {}
    if output.get("logits") is not None:
        found["logits"] = output["logits"]
    hidden = output.get("last_hidden_state")
    if hidden is None:
        hidden = (output.get("decoder_hidden_states") or output.get("hidden_states"))[-1]
    found["hidden"] = hidden
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, place / "answers.safetensors")


if __name__ == "__main__":
    for one in json.loads(Path(sys.argv[1]).read_text()):
        answer(one)
