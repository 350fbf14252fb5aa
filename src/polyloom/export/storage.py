"""Small folders of JSON and safetensors: written whole or not at all, read with bounds and without trust."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from polyloom.errors import ExportError
from polyloom.io.atomic import new_folder

MAX_JSON = 4 << 20


def write_folder(path: Path, files: Mapping[str, Any]) -> Path:
    """Write a new folder: what ends in ``.safetensors`` is tensors, in ``.json`` JSON, all else text or bytes."""
    if path.exists():
        raise ExportError(f"{path}: exists already. Choose another name or remove it.")
    with new_folder(path) as partial:
        for name, content in files.items():
            if name.endswith(".safetensors"):
                plain = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in content.items()}
                save_file(plain, partial / name, metadata={"format": "pt"})
            elif isinstance(content, bytes):
                (partial / name).write_bytes(content)
            else:
                text = json.dumps(content, indent=2, ensure_ascii=False) + "\n" if name.endswith(".json") else content
                (partial / name).write_text(text, encoding="utf-8")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """An object of JSON, of bounded size."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise ExportError(f"{path}: larger than any such file.")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ExportError(f"{path}: not an object of JSON.")
    return found


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Finite tensors, as 32-bit numbers. Pickles are not read."""
    if not path.exists():
        raise ExportError(
            f"{path}: not there. Only safetensors are read, never pickles (.bin): load the adapter in the library that "
            "it is from, and save it again with use_safetensors=True."
        )
    try:
        tensors = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ExportError(f"{path}: cannot be read: {error}") from error
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise ExportError(f"{path}: {name} is not of finite numbers.")
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
