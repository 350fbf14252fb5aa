"""The card of an adapter: what it is, for whom, from what, how good, how to use it."""

from collections.abc import Mapping, Sequence
from typing import Any

from polyloom.export.adapter import Adapter

USES = {
    "polyloom": ["```", "echo 'text' | polyloom predict {path} {condition}", "```"],
    "adapterhub": [
        "```python",
        "model = adapters.AutoAdapterModel.from_pretrained({backbone!r})",
        "names = [model.load_adapter(folder, use_safetensors=True) for folder in {folders}]",
        "model.set_active_adapters(adapters.composition.Stack(*names))",
        "```",
    ],
    "peft": ["```python", "model = peft.PeftModel.from_pretrained(base_model, {path!r})", "```"],
}


def card(adapter: Adapter, *, to: str, path: str, folders: Sequence[str] = ()) -> str:
    """A model card in Markdown with the head that the Hugging Face Hub reads."""
    about, condition = adapter.about, adapter.condition
    backbone = about.get("backbone", "")
    head = {
        "library_name": {"polyloom": "polyloom", "adapterhub": "adapters", "peft": "peft"}[to],
        "language": list(condition.languages), "base_model": backbone, "tags": ["polyloom", str(about.get("method"))],
    }  # fmt: skip
    lines = ["---", *(f"{key}: {_yaml(value)}" for key, value in head.items() if value), "---", ""]
    size = sum(t.numel() for block in adapter.weights.blocks for t in block.tensors.values())
    lines += [f"# {condition}", "", f"Task `{condition.task}`, {' → '.join(condition.languages)}."]
    lines += [f"Made by `{about.get('method')}`: {size:,} numbers at the layers of {backbone or 'its backbone'}", ""]
    lines += [f"({adapter.identity.get('model_type')}, hash {adapter.identity.get('frozen_sha256', '')[:12]}).", ""]
    lines += ["## Use", "", *(line.format(**_names(adapter, path, folders)) for line in USES[to]), ""]
    if adapter.labels:
        lines += ["## Labels", "", ", ".join(f"`{label}`" for label in adapter.labels), ""]
    lines += ["## Scores", "", *_scores(about), "", "## Data", "", *_data(about), ""]
    return "\n".join(lines)


def _names(adapter: Adapter, path: str, folders: Sequence[str]) -> dict[str, Any]:
    backbone = adapter.about.get("backbone", "")
    return {"path": path, "condition": adapter.condition, "backbone": backbone, "folders": list(folders) or [path]}


def _scores(about: Mapping[str, Any]) -> list[str]:
    scores = about.get("scores") or []
    found = [f"- {score['metric']} {score['value']:.2f} (`{score['signature']}`)" for score in scores]
    return found or ["None are stored with the run: `polyloom evaluate` makes them."]


def _data(about: Mapping[str, Any]) -> list[str]:
    licences: Mapping[str, str | None] = about.get("licences") or {}
    return [f"- `{name}`: {licence or 'licence unknown'}" for name, licence in licences.items()] or ["Not known."]


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_yaml(one) for one in value) + "]"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
