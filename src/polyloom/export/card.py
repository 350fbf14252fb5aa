"""Write the model card of an adapter: what it is, how to use it, its labels, scores and training data."""

from collections.abc import Sequence

from polyloom.export.adapter import Adapter

TEMPLATE = """---
{{ card_data }}
---

# {{ adapter.condition }}

An adapter for the task `{{ adapter.condition.task }}` in {{ adapter.condition.languages | join(" → ") }}
{%- if adapter.about.method %}, made by `{{ adapter.about.method }}`{% endif %}.
It has {{ "{:,}".format(size) }} parameters.
Its backbone is {{ adapter.about.backbone or "not named" }} ({{ adapter.identity.model_type }},
hash {{ (adapter.identity.frozen_sha256 or "")[:12] }}).

## Use
{% if to == "polyloom" %}
```bash
echo 'text' | polyloom predict {{ path }} {{ adapter.condition }}
{%- elif to == "adapterhub" %}
```python
model = adapters.AutoAdapterModel.from_pretrained({{ (adapter.about.backbone or "") | tojson }})
names = [model.load_adapter(folder, use_safetensors=True) for folder in {{ folders | tojson }}]
model.set_active_adapters(adapters.composition.Stack(*names))
{%- else %}
```python
model = peft.PeftModel.from_pretrained(base_model, {{ path | tojson }})
{%- endif %}
```
{% if adapter.labels %}
## Labels

`{{ adapter.labels | join("`, `") }}`
{% endif %}
## Scores
{% for score in adapter.about.scores or () %}
- {{ score.metric }} {{ "%.2f" | format(score.value) }} (`{{ score.signature }}`)
{%- else %}
None are stored with the run. `polyloom evaluate` computes them.
{%- endfor %}

## Data
{% for name, licence in (adapter.about.licences or {}).items() %}
- `{{ name }}`: {{ licence or "licence unknown" }}
{%- else %}
Not known.
{%- endfor %}
"""


def card(adapter: Adapter, *, to: str, path: str, folders: Sequence[str] = ()) -> str:
    """Return the card in Markdown, with the metadata that the Hugging Face Hub reads."""
    from huggingface_hub import ModelCard, ModelCardData  # noqa: PLC0415 - only exports need it

    library, tags = "adapters" if to == "adapterhub" else to, ["polyloom", *filter(None, [adapter.about.get("method")])]
    head = ModelCardData(library_name=library, language=list(adapter.condition.languages), tags=tags)
    head.base_model = adapter.about.get("backbone") or None
    size = sum(tensor.numel() for block in adapter.weights.blocks for tensor in block.tensors.values())
    names = {"path": path, "folders": list(folders) or [path]}
    return f"{ModelCard.from_template(head, None, TEMPLATE, adapter=adapter, size=size, to=to, **names)}\n"
