"""Write folders of JSON and safetensors atomically; read them with limits and without executing code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from polyloom.errors import ExportError
from polyloom.io.atomic import atomic_dir, is_taken
from polyloom.io.untrusted import read_limited, require_regular

MAX_JSON = 4 << 20


def write_folder(path: Path, files: Mapping[str, Any]) -> Path:
    """Write a new folder atomically: tensors to ``.safetensors``, plain data to ``.json``, text or bytes to others."""
    if is_taken(path):
        raise ExportError(f"{path}: exists already. Choose another name or remove it.")
    with atomic_dir(path) as partial:
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
    """Read a JSON object of limited size."""
    try:
        content = json.loads(read_limited(path, MAX_JSON).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ExportError(f"{path}: not an object of JSON.")
    return content


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read tensors as fp32; raise an error unless all values are finite. Pickles are not read."""
    if not path.exists():
        raise ExportError(
            f"{path}: not there. Only safetensors are read, never pickles (.bin): load the adapter in the library that "
            "it is from, and save it again with use_safetensors=True."
        )
    try:
        require_regular(path)
        tensors = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ExportError(f"{path}: cannot be read: {error}") from error
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise ExportError(f"{path}: {name} is not of finite numbers.")
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
