"""A frozen decoder in shards, its learned weights in copies: the same run as with copies of all, and as one process."""

import pytest
import torch
import transformers
from torch.distributed.tensor import DTensor

from polyloom.checkpoint import read_training
from polyloom.config import load_recipe
from polyloom.rundir import RunDir
from polyloom.workflows.train import prepare_training
from tests.reliability.forks import together
from tests.reliability.tiny import changed, distance, tiny_fit, weights
from tests.shared import nightly
from tests.tiny_decoder import decoder_recipe

STORED = {"name": "madx", "block": "lora", "targets": ["q", "v", "down"], "adapter_size": 4, "invertible": False}
QWEN = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 48, "max_position_embeddings": 64, "eos_token_id": 0, "tie_word_embeddings": True,
    "initializer_range": 0.2,
}  # fmt: skip


def setup_of(folder, *, dtype="fp32", checkpointing=False, strategy="ddp", **sections):
    train = {"steps": 6, "save_every": 3, "strategy": strategy, "gradient_checkpointing": checkpointing}
    settings = {f"train.{key}": value for key, value in train.items()}
    settings |= {"train.rows_per_batch": 6, "train.max_length": 24, "train.grad_accum_steps": 2}
    settings |= {"backbone.dtype": dtype, "optim.lr": 2e-3, "optim.eps": 1e-4} | sections
    return prepare_training(load_recipe(folder / "recipe.yaml", settings))


def trained(setup, run, process_group):
    start = weights(setup)
    tiny_fit(setup, run, process_group=process_group).run()
    sharded = {name for name, parameter in setup.model.named_parameters() if isinstance(parameter, DTensor)}
    frozen = {f"backbone.{name}" for name, _ in setup.model.backbone.named_parameters()}
    optimizer, _ = read_training(RunDir(run).checkpoint(6))
    end = weights(setup)
    return {
        "weights": end,
        "optimizer": optimizer,
        "sharded": sorted(sharded),
        "frozen": sorted(frozen),
        "changed": sorted(changed(start, end)),
    }


def compare(tmp_path, **settings):
    """Train with shards, with copies and alone; check that shards are those of the backbone, and all end alike."""

    def run(name, strategy, size):
        setup = setup_of(tmp_path, strategy=strategy, **settings)
        return together(lambda group: trained(setup, tmp_path / name, group), tmp_path / f"{name}-found", size=size)

    (one,), (copies, _), (shards, other) = run("one", "fsdp", 1), run("ddp", "ddp", 2), run("fsdp", "fsdp", 2)
    assert shards["sharded"] == shards["frozen"]
    assert not copies["sharded"]
    assert not changed(shards["weights"], other["weights"])
    assert shards["changed"]
    assert shards["changed"] == one["changed"] == copies["changed"]
    assert not set(shards["changed"]) & set(shards["frozen"])
    # A bf16 backbone rounds the sums of a batch of three rows otherwise than those of six.
    exact, near = (1e-6, 1e-4) if settings.get("dtype", "fp32") == "fp32" else (1e-6, 2e-3)
    for part in ("weights", "optimizer"):
        assert distance(copies[part], shards[part]) <= exact
        assert distance(one[part], shards[part]) <= near
    assert all(t.dtype == torch.float32 for n, t in shards["weights"].items() if n not in shards["frozen"])


@pytest.mark.parametrize("checkpointing", [*nightly(False), True])
@pytest.mark.parametrize("dtype", ["fp32", *nightly("bf16")])
def test_generated_lora_on_shards_of_llama(tmp_path, dtype, checkpointing):
    decoder_recipe(tmp_path)
    compare(tmp_path, dtype=dtype, checkpointing=checkpointing)


def test_stored_lora_on_shards_of_qwen_with_tied_embeddings(tmp_path):
    decoder_recipe(tmp_path)
    size = transformers.AutoConfig.from_pretrained(tmp_path / "decoder").vocab_size
    config = transformers.Qwen2Config(vocab_size=size, **QWEN)
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path / "decoder")
    compare(tmp_path, checkpointing=True, method=STORED)
