"""Train adapters with Hugging Face's Trainer, save them, and load them again; nothing is downloaded.

The same token is tagged differently in two languages, so that only a model that looks at the condition can learn it.

python examples/hf_trainer.py
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import polyloom as pl

CONFIG = {
    "model_type": "bert", "vocab_size": 12, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


class Tagger(nn.Module):
    """A Polyloom model with the inputs and outputs that the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        method = pl.HyperXConfig(adapter_size=16, projection_size=16)
        backbone = pl.backbone_from_config(CONFIG)  # its output layer is tied to its embeddings
        self.model = pl.Model(backbone, method, languages=["en", "tr"], tasks={"pos": ["NOUN", "VERB"]})

    def forward(self, input_ids: Tensor, labels: Tensor, conditions: list[str]) -> dict[str, Tensor]:
        """Compute the loss and the logits; every row has its own condition."""
        logits = self.model.task_logits({"input_ids": input_ids}, conditions)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch: tensors, and the list of conditions."""
    batch: dict[str, Any] = {key: torch.stack([e[key] for e in examples]) for key in ("input_ids", "labels")}
    return batch | {"conditions": [example["condition"] for example in examples]}


def main() -> None:
    """Train, save, load."""
    examples = []
    for ids in torch.randint(4, 12, (400, 6), generator=torch.Generator().manual_seed(1)):
        examples.append({"input_ids": ids, "labels": ids % 2, "condition": "pos/en"})
        examples.append({"input_ids": ids, "labels": 1 - ids % 2, "condition": "pos/tr"})
    tagger = Tagger()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), max_steps=150, per_device_train_batch_size=32, learning_rate=5e-3, save_steps=150,
            logging_steps=50, remove_unused_columns=False, report_to="none", use_cpu=True, disable_tqdm=True,
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = transformers.Trainer(tagger, arguments, train_dataset=examples, data_collator=collate)
        trainer.train()
        batch = collate(examples[:6])
        with torch.no_grad():
            logits = tagger.eval()(**batch)["logits"]
        print(f"right: {(logits.argmax(-1) == batch['labels']).float().mean():.0%}")

        # What the Trainer saved loads like the weights of any module.
        again = Tagger()
        again.load_state_dict(load_file(folder / "checkpoint-150" / "model.safetensors"))
        with torch.no_grad():
            assert torch.equal(again.eval()(**batch)["logits"], logits)

        # A checkpoint of Polyloom holds only what was trained, and names its backbone by a hash.
        path = pl.save_checkpoint(tagger.model, folder / "adapters")
        model = pl.load_checkpoint(path, again.model.backbone).eval()
        with torch.no_grad():
            assert torch.equal(model.task_logits({"input_ids": batch["input_ids"]}, batch["conditions"]), logits)


if __name__ == "__main__":
    main()
