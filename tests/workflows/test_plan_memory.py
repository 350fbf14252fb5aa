"""Memory per device: weights counted as FSDP shards them, activations as autograd keeps them, all as measured."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from polyloom.backbones import backbone_from_config
from polyloom.cli.render.plan import gibibytes
from polyloom.cli.render.tables import markdown
from polyloom.config import load_recipe, parse_recipe
from polyloom.methods import METHODS
from polyloom.model import Model
from polyloom.training.distributed import ProcessGroup, parallelize
from polyloom.training.loop import Objective
from polyloom.workflows.planning import DeviceMemory, plan_memory
from polyloom.workflows.planning.memory import _empty_model, layer_bytes
from tests.decoder_sizes import DECODERS, PARAMETERS, settings
from tests.reliability.forks import alone
from tests.shared import free_port, nightly, polyloom
from tests.tiny_decoder import decoder_recipe

ROOT = Path(__file__).parents[2]
DEVICES = (2, 8, 64)
LLAMA: Mapping[str, Any] = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 1024, "max_position_embeddings": 512,
}  # fmt: skip


def chosen(memory: list[DeviceMemory]) -> DeviceMemory:
    (one,) = [setting for setting in memory if setting.chosen]
    return one


def sharded_bytes(name: str, devices: int) -> dict[str, int]:
    """Shard a model on the meta device as training does; count the bytes of this process."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    model = _empty_model(parse_recipe(settings(name)))
    total = sum(p.numel() for p in model.backbone.parameters())
    group = ProcessGroup(size=devices, device="meta")
    parallelize(Objective(model), model, process_group=group, strategy="fsdp")
    found = {"total": total, "backbone": 0, "copied": 0}
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        found["backbone" if isinstance(parameter, DTensor) else "copied"] += local.numel() * local.element_size()
    found["trained"] = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return found


@pytest.mark.parametrize("devices", [DEVICES[0], *nightly(*DEVICES[1:])])
@pytest.mark.parametrize("name", list(DECODERS)[1:])
def test_weights_are_counted_as_fsdp_shards_them(tmp_path: Path, name: str, devices: int) -> None:
    found = alone(lambda: sharded_bytes(name, devices), tmp_path)
    planned = chosen(plan_memory(parse_recipe(settings(name)), devices=devices))
    assert found["total"] == PARAMETERS[name]
    assert planned.backbone == found["backbone"]
    assert planned.learned == found["copied"] + 4 * found["trained"]  # gradient, message, two moments


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_those_that_autograd_keeps(dtype: torch.dtype, attention: str) -> None:
    backbone = backbone_from_config(LLAMA)
    backbone.model.set_attn_implementation(attention)
    backbone.model.to(dtype)
    config = METHODS["hyper-stack"].config_type(block="lora", targets="all-linear", adapter_size=4)  # type: ignore[call-arg]
    model = Model(backbone, config, languages=["aa", "bb"], tasks=["lm"])
    weights = model.weights(["lm/aa"] * 4)
    others = {t.untyped_storage().data_ptr() for t in model.parameters()}
    others |= {t.untyped_storage().data_ptr() for block in weights.blocks for t in block.tensors.values()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids_BT, position_BT = torch.randint(0, 64, (4, 128)), torch.arange(128).expand(4, 128)
    with backbone.using(weights, num_rows=4), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backbone.hidden(input_ids=ids_BT, position_ids=position_BT)
    found = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in others)
    planned = 4 * 4 * 128 * layer_bytes(backbone, size=dtype.itemsize, length=128)
    assert 0.9 <= planned / found <= 1.1


def measure(folder: Path, *, size: int) -> int:
    """Return the largest of the measured peaks of several processes that train `big.yaml` together."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    # Large blocks go back to the system when they are freed, as they would go back to the allocator of a device.
    common |= {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.workflows.memory_worker", f"{folder}/tiny.yaml", f"{folder}/big.yaml"]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | common | {"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(size)
    ]
    return max(int(json.loads(process.communicate()[0])["measured"]) for process in processes)


@pytest.mark.nightly
@pytest.mark.parametrize(("size", "checkpointing"), [(1, False), (2, True)], ids=["one", "two"])
def test_the_plan_is_what_a_step_takes(tmp_path: Path, size: int, checkpointing: bool) -> None:
    recipe = json.loads(decoder_recipe(tmp_path).read_text())
    config = {key: value for key, value in LLAMA.items() if key != "model_type"} | {
        "vocab_size": 16_384, "hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 2048, "eos_token_id": 0,
        "bos_token_id": None,
    }  # fmt: skip
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).save_pretrained(tmp_path / "big")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "decoder").save_pretrained(tmp_path / "big")
    train = recipe["train"] | {"strategy": "fsdp", "gradient_checkpointing": checkpointing, "steps": 2}
    recipe |= {"train": train, "mixture": {"datasets_per_batch": 1}}
    (tmp_path / "tiny.yaml").write_text(json.dumps(recipe))
    recipe |= {
        "backbone": {"name": str(tmp_path / "big")},
        "train": train | {"rows_per_batch": 4 * size, "max_length": 256},
    }
    (tmp_path / "big.yaml").write_text(json.dumps(recipe))
    planned = chosen(plan_memory(load_recipe(tmp_path / "big.yaml"), devices=size))
    found = measure(tmp_path, size=size)
    print(f"{size} processes: {planned.total / 2**20:.0f} MiB planned, {found / 2**20:.0f} MiB measured")
    assert 0.9 <= planned.total / found <= 1.2


def test_rows_are_those_of_the_largest_micro_batch() -> None:
    def rows(devices: int, **train: Any) -> int:
        recipe = settings("Qwen/Qwen2.5-0.5B")
        recipe["train"] |= train
        return plan_memory(parse_recipe(recipe), devices=devices)[0].rows

    assert rows(1, rows_per_batch=6, grad_accum_steps=4) == 2
    assert rows(64, rows_per_batch=6, grad_accum_steps=4) == 1


def table() -> str:
    """Return the table of the docs."""
    columns = (
        "model",
        "devices",
        "backbone",
        "gathered",
        "learned",
        "activations",
        "logits",
        "total",
        "total with ddp",
    )
    rows = []
    for name in DECODERS:
        for devices in DEVICES:
            memory = plan_memory(parse_recipe(settings(name)), devices=devices)
            one, (copied,) = chosen(memory), [m for m in memory if m.strategy == "ddp" and m.gradient_checkpointing]
            assert one.layer <= one.logits
            parts = one.backbone, one.gathered, one.learned + one.generated, one.activations, one.logits, one.total
            rows.append([name.split("/")[1], str(devices), *map(gibibytes, (*parts, copied.total))])
    return markdown(columns, rows)


@pytest.mark.nightly
def test_the_table_of_the_docs_is_what_the_plan_says() -> None:
    text = (ROOT / "docs" / "language-models.md").read_text()
    assert table() in text
    for size in ("8 B", "70 B"):
        memory = plan_memory(parse_recipe(settings(f"meta-llama/Llama-3.1-{size.replace(' ', '')}")), devices=8)
        assert f"{gibibytes(memory[0].activations)} GiB for {size}" in text


def test_the_command_prints_parts_and_their_sum(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps(settings("meta-llama/Llama-3.1-8B")))
    done = polyloom("plan", tmp_path / "recipe.yaml", "--devices", "8")
    assert "1 row of 2,048 tokens" in done
    assert "● fsdp, recompute" in done
    (line,) = [line for line in done.splitlines() if line.startswith("total")]
    found = json.loads(polyloom("plan", tmp_path / "recipe.yaml", "--devices", "8", "--json"))["memory"]
    assert line.split()[1:] == [gibibytes(setting["total"]) for setting in found]
    assert [(s["strategy"], s["gradient_checkpointing"]) for s in found] == [
        ("ddp", False), ("ddp", True), ("fsdp", False), ("fsdp", True)
    ]  # fmt: skip
    for setting in found:
        kept = sum(setting[part] for part in ("backbone", "gathered", "learned", "generated", "activations"))
        assert setting["total"] == kept + max(setting["layer"], setting["logits"])
