"""Rows of five languages and two tasks in one batch, each with its own adapter; nothing is downloaded.

python examples/mixed_batch.py
"""

import torch

import polyloom as pl

# Any Transformers model of a known family. Here a small one with random weights; `pl.load_backbone` loads a real one.
backbone = pl.backbone_from_config(
    {"model_type": "xlm-roberta", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 4,
     "num_attention_heads": 4, "intermediate_size": 128},
)  # fmt: skip
model = pl.Model(
    backbone,
    pl.HyperXConfig(adapter_size=16),  # or MadXConfig(), BadXConfig(), HyperAdaptersConfig(), …
    languages=["en", "tr", "sw", "yo", "no"],
    tasks={"pos": 17, "ner": 7},  # numbers of labels, or their names
).eval()

batch = {"input_ids": torch.randint(4, 1000, (6, 12))}
rows = ["pos/en", "ner/tr", "pos/sw", "ner/yo", "pos/no", "pos/en"]

with torch.no_grad():
    together = model(batch, rows).logits  # of the vocabulary; `model.task_logits` gives those of a task
    alone = [model({"input_ids": batch["input_ids"][i : i + 1]}, rows[i : i + 1]).logits for i in range(6)]
print(f"mixed batch against each row alone: largest difference {(together - torch.cat(alone)).abs().max():.1e}")

with torch.no_grad():
    tags = model.task_logits({"input_ids": batch["input_ids"][:2]}, ["pos/en", "pos/tr"])
print(f"logits of pos: {tuple(tags.shape)}")

# A new language is one new embedding; nothing else changes.
model.method.add_language("gn", like="tr")
with torch.no_grad():
    assert torch.equal(model(batch, rows).logits, together)
print(f"languages now: {', '.join(model.method.languages)}")

# An unknown name is an error that lists the known ones.
try:
    model(batch, ["pos/en"] * 5 + ["pos/tur"])
except pl.PolyloomError as error:
    print(error)
