"""Files that are not what they seem: all are refused with a reason, no code is run, nothing crashes."""

import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyloom.backbones import load_backbone
from polyloom.checkpoint import MANIFEST, TENSORS
from polyloom.conditions import Condition
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import PolyloomError
from polyloom.export.adapter import Adapter, generate_adapters, read_adapter, write_adapter
from polyloom.export.adapterhub import write_adapterhub
from polyloom.export.peft import write_peft
from polyloom.export.storage import read_safetensors
from polyloom.io.hashes import sha256_of
from polyloom.io.sealed import read_sealed, seal
from polyloom.loading import load_predictor
from polyloom.methods.hyperx import HyperXConfig
from polyloom.model import Model
from polyloom.workflows.import_adapter import import_adapter
from tests.tiny_run import write_backbone

NER = Condition("ner", "tr")
LABELS = ["O", "B-PER", "I-PER"]


Change = Callable[[Path], object]


class Bomb:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(Path(os.environ["POLYLOOM_BOMB"]) / "exploded"),)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A backbone, and good adapters for it in every format."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "backbone").mkdir()
    write_backbone(folder / "backbone")
    about = {
        "settings": {"name": "backbone"}, "max_length": 32, "method": "hyperx",
        "tokenizer": load_tokenizer(folder / "backbone").identity,
    }  # fmt: skip

    def made(**settings: Any) -> tuple[Adapter, Model]:
        backbone = load_backbone(folder / "backbone")
        config = HyperXConfig(adapter_size=4, projection_size=4, hidden_size=4, embedding_size=4, **settings)
        model = Model(backbone, config, languages=["en", "tr"], tasks={"ner": LABELS})
        (adapter,) = generate_adapters(model, [NER], whole=False)
        return Adapter(**{**vars(adapter), "about": about}), model

    adapter, model = made()
    write_adapter(adapter, folder / "own")
    shutil.copytree(folder / "backbone", folder / "own" / "backbone")
    write_adapterhub(adapter, model.backbone.shape, folder / "adapterhub")
    adapter, model = made(block="lora")
    write_peft(adapter, model.backbone, folder / "peft")
    return {name: folder / name for name in ("backbone", "own", "adapterhub", "peft")}


def change_json(file: str, change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(path: Path) -> None:
        content = json.loads(read_sealed(path / file) if file == MANIFEST else (path / file).read_text())
        change(content)
        text = json.dumps(content)
        (path / file).write_text(seal(text) if file == MANIFEST else text)

    return apply


def manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    return change_json(MANIFEST, change)


def tensors(file: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def apply(path: Path) -> None:
        content = load_file(path / file)
        change(content)
        save_file(content, path / file)
        sign(path)

    return apply


def raw(file: str, content: bytes) -> Change:
    def apply(path: Path) -> None:
        (path / file).write_bytes(content)
        sign(path)

    return apply


def sign(path: Path) -> None:
    """Make a manifest agree with what is there, and seal it: whoever means harm can do that too."""
    if (path / MANIFEST).exists():
        change_json(MANIFEST, lambda m: m.update(tensors_sha256=sha256_of(path / TENSORS)))(path)


def pickled(file: str) -> Change:
    return lambda path: raw(file, pickle.dumps(Bomb()))(path)  # noqa: PLW0108 - only a test knows where it goes off


def put(keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(content: dict[str, Any]) -> None:
        *way, last = keys.split("/")
        for key in way:
            content = content[key]
        content[last] = value

    return apply


DEEP = b"[" * 100_000
OWN: dict[str, Change] = {
    "a pickle": pickled(TENSORS),
    "nothing": raw(TENSORS, b""),
    "a header longer than the file": raw(TENSORS, struct.pack("<Q", 1 << 40) + b"{}"),
    "a header that is no JSON": raw(TENSORS, struct.pack("<Q", 4) + b"\xff\xfe{}"),
    "a deep header": raw(TENSORS, struct.pack("<Q", len(DEEP)) + DEEP),
    "tensors beyond the end": raw(
        TENSORS,
        struct.pack("<Q", 60) + b'{"block.0.down":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'[:60].ljust(60),
    ),
    "not a number": tensors(TENSORS, lambda t: t["block.0.up"].fill_(float("nan"))),
    "infinite": tensors(TENSORS, lambda t: t["head.classifier.weight"].fill_(float("inf"))),
    "integers": tensors(TENSORS, lambda t: t.update({"block.0.down_bias": t["block.0.down_bias"].long()})),
    "half precision": tensors(TENSORS, lambda t: t.update({"block.0.up": t["block.0.up"].half()})),
    "another width": tensors(TENSORS, lambda t: t.update({"block.0.up": torch.zeros(2, 33, 4)})),
    "fewer layers": tensors(TENSORS, lambda t: t.update({"block.0.up": t["block.0.up"][:1].contiguous()})),
    "a tensor too many": tensors(TENSORS, lambda t: t.update({"block.0.extra": torch.zeros(2, 2)})),
    "a tensor that belongs to nothing": tensors(TENSORS, lambda t: t.update({"other": torch.zeros(2, 2)})),
    "a tensor too few": tensors(TENSORS, lambda t: t.pop("block.0.down")),
    "a parameter that the backbone has not": tensors(TENSORS, lambda t: t.update({"backbone.x": torch.zeros(2)})),
    "a head of another size": tensors(TENSORS, lambda t: t.update({"head.classifier.bias": torch.zeros(4)})),
    "no manifest's format": manifest(put("format", 99)),
    "a manifest that is a list": lambda path: (path / MANIFEST).write_text(seal("[]")),
    "a deep manifest": lambda path: (path / MANIFEST).write_text(seal(DEEP.decode())),
    "a manifest without a seal": lambda path: (path / MANIFEST).write_text(read_sealed(path / MANIFEST)),
    "a condition that leaves its folder": manifest(put("adapter/condition", "../../etc/passwd")),
    "a kind of block that nobody knows": manifest(lambda m: m["adapter"]["blocks"][0].update(kind="exec")),
    "a placement that nobody knows": manifest(lambda m: m["adapter"]["blocks"][0].update(placement="__class__")),
    "a layer that is not there": manifest(lambda m: m["adapter"]["blocks"][0].update(sites=["encoder.0", "encoder.9"])),
    "a layer twice": manifest(lambda m: m["adapter"]["blocks"][0].update(sites=["encoder.0", "encoder.0"])),
    "a layer that is no number": manifest(lambda m: m["adapter"]["blocks"][0].update(sites=["encoder.0", "encoder.x"])),
    "labels that are no list": manifest(put("adapter/labels", "OBI")),
    "more labels than the head has": manifest(put("adapter/labels", [*LABELS, "B-LOC"])),
    "another backbone": manifest(put("backbone/frozen_sha256", "0" * 64)),
    "another tokenizer": manifest(put("about/tokenizer", "0" * 64)),
    "code with the backbone": manifest(
        put("about/settings", {"config": {"model_type": "bert", "auto_map": {"AutoModel": "e.M"}}, "tokenizer": "x"})
    ),
    "an inner setting of Transformers": manifest(
        put("about/settings", {"config": {"model_type": "bert", "_attn_implementation_internal": "a"}, "tokenizer": ""})
    ),
    "a setting that does not exist": manifest(put("about/settings/trust_remote_code", True)),
    "settings that are a list": manifest(put("about/settings", ["x"])),
}  # fmt: skip
HUB: dict[str, Change] = {
    "a pickle": pickled("adapter.safetensors"),
    "only a pickle": lambda path: (path / "adapter.safetensors").rename(path / "pytorch_adapter.bin"),
    "a config that is no object": lambda path: (path / "adapter_config.json").write_text("3"),
    "an activation of another kind": change_json("adapter_config.json", put("config/non_linearity", "swish")),
    "another model": change_json("adapter_config.json", put("model_type", "roberta")),
    "hypercomplex layers": change_json("adapter_config.json", put("config/phm_layer", True)),
    "a parallel adapter": change_json("adapter_config.json", put("config/is_parallel", True)),
    "a name that is elsewhere": change_json("adapter_config.json", put("name", "../../x")),
    "not a number": tensors("adapter.safetensors", lambda t: next(iter(t.values())).fill_(float("nan"))),
    "a layer too few": tensors("adapter.safetensors", lambda t: t.pop(min(t))),
    "a head of two layers": change_json("head_config.json", put("config/layers", 2)),
    "labels without numbers": change_json("head_config.json", put("config/label2id", None)),
    "a label missing": change_json("head_config.json", put("config/label2id", {"O": 0, "B-PER": 2})),
}
LORA: dict[str, Change] = {
    "a pickle": pickled("adapter_model.safetensors"),
    "DoRA": change_json("adapter_config.json", put("use_dora", True)),
    "another tuner": change_json("adapter_config.json", put("peft_type", "IA3")),
    "a rank that is a text": change_json("adapter_config.json", put("r", "4")),
    "other ranks in some layers": change_json("adapter_config.json", put("rank_pattern", {"query": 2})),
    "another projection": tensors(
        "adapter_model.safetensors", lambda t: t.update({"base_model.model.x.lora_A.weight": torch.zeros(4, 4)})
    ),
    "a projection too few": tensors("adapter_model.safetensors", lambda t: t.pop(min(t))),
}


@pytest.mark.parametrize(
    "kind", [*(f"own: {k}" for k in OWN), *(f"hub: {k}" for k in HUB), *(f"lora: {k}" for k in LORA)]
)
def test_a_hostile_file_is_refused_with_a_reason(kind, places, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_BOMB", str(tmp_path))
    format_, _, name = kind.partition(": ")
    source = {"own": "own", "hub": "adapterhub", "lora": "peft"}[format_]
    path = tmp_path / "adapter"
    shutil.copytree(places[source], path)
    {"own": OWN, "hub": HUB, "lora": LORA}[format_][name](path)
    with pytest.raises(PolyloomError, match=r"\w+.*\w+"):
        use(format_, path, places["backbone"])
    assert not (tmp_path / "exploded").exists()
    assert not (tmp_path / "new").exists()


def use(format_: str, path: Path, backbone: Path) -> None:
    if format_ == "own":
        load_predictor(path)
    else:
        import_adapter([path], NER, path.parent / "new", backbone=str(backbone), labels=LABELS)


def test_what_was_not_touched_is_read(places, tmp_path):
    load_predictor(places["own"])
    for name in ("adapterhub", "peft"):
        import_adapter([places[name]], NER, tmp_path / name, backbone=str(places["backbone"]), labels=LABELS)


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_damaged_headers_are_refused_or_harmless(tmp_path, count):
    save_file({"block.0.up": torch.ones(2, 3), "block.0.up_bias": torch.ones(3)}, tmp_path / "good.safetensors")
    content = (tmp_path / "good.safetensors").read_bytes()
    size = 8 + struct.unpack("<Q", content[:8])[0]
    draw, read = random.Random(0), 0
    file = tmp_path / "damaged.safetensors"
    for _ in range(count):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(size)
            damaged[place] = draw.choice(
                (draw.randrange(256), damaged[place] ^ (1 << draw.randrange(8)), *b'019-{}[]",')
            )
        file.write_bytes(damaged if draw.random() < 0.9 else damaged[: draw.randrange(len(damaged))])
        try:
            found = read_safetensors(file)
        except PolyloomError:
            continue
        read += 1
        assert all(t.dtype == torch.float32 and t.isfinite().all() for t in found.values())
    assert read < count / 2


def test_a_damaged_file_with_a_matching_hash_is_refused_or_answers(places, tmp_path):
    path = tmp_path / "adapter"
    shutil.copytree(places["own"], path)
    content, draw = (path / TENSORS).read_bytes(), random.Random(1)
    size = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(300):
        damaged = bytearray(content)
        damaged[draw.randrange(size)] = draw.randrange(256)
        (path / TENSORS).write_bytes(damaged)
        sign(path)
        try:
            read_adapter(path)
        except PolyloomError:
            continue
