"""Find the files of a backbone or tokenizer, and check them before Transformers reads them.

The files are not trusted. Configurations are of limited size and need no more memory than the weights hold, files are
regular ones of the folder, and no other model than this one is loaded.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polyloom.errors import BackboneError
from polyloom.io.untrusted import read_limited, require_regular

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
TOKENIZER = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.spm",
)

_MAX_CONFIG = 1 << 20
# Largest values of settings that are sizes; the first pattern that fits counts. A configuration of one kilobyte could
# otherwise make Transformers allocate all memory before any weight is read.
_LIMITS = {
    re.compile(r".*layers"): 500,
    re.compile(r"num_labels"): 100_000,
    re.compile(r"(num|n|d|max)_.*|.*(size|dim|heads|positions?|embeddings|buckets|groups)"): 10_000_000,
}
_ADAPTER = "adapter_config.json"  # with this file, Transformers loads the model that it names instead


def find_folder(name: str | Path, patterns: Iterable[str]) -> Path:
    """Return the folder of a model: a directory, or the files of a model on the Hub that match the patterns."""
    patterns = [CONFIG, "generation_config.json", *patterns]
    if Path(name).is_dir():
        folder = Path(name)
    else:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 - not for local folders

        folder = Path(snapshot_download(str(name), allow_patterns=patterns))
    if (folder / _ADAPTER).exists():
        raise BackboneError(
            f"backbone.name: {str(folder)!r} is an adapter ({_ADAPTER}) for another model. Name that model; see "
            "polyloom import."
        )
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        try:
            require_regular(path)
        except OSError as error:
            raise BackboneError(f"backbone.name: {path} {error}") from error
    return folder


def check_config(folder: Path) -> None:
    """Raise an error if a configuration is no JSON object of limited size, or has sizes that no model has."""
    path = folder / CONFIG
    try:
        config = json.loads(read_limited(path, _MAX_CONFIG))
    except FileNotFoundError as error:
        raise BackboneError(f"backbone.name: {path} is not there.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BackboneError(f"backbone.name: {path} cannot be read ({error}).") from error
    if not isinstance(config, dict):
        raise BackboneError(f"backbone.name: {path} is not an object of JSON.")
    check_sizes(config, f"backbone.name: {path}")


def check_sizes(config: Mapping[str, Any], place: str) -> None:
    """Raise an error if a configuration has a size that no model has."""
    for key, value in config.items():
        limits = [limit for pattern, limit in _LIMITS.items() if pattern.fullmatch(str(key))]
        if limits and isinstance(value, int | float) and not -1 <= value <= limits[0]:
            limit = limits[0]
            raise BackboneError(f"{place}: {key} is {value!r:.20}. At most {limit:,} is accepted.")


def num_elements(folder: Path) -> int:
    """Count the elements of a model's safetensors files, without reading them."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - imports torch

    files = sorted({path for pattern in WEIGHTS[:2] for path in folder.glob(pattern)})
    if not files:
        raise BackboneError(
            f"backbone.name: {str(folder)!r} has no model.safetensors. Pickles (.bin) are not read: save the model "
            "with `save_pretrained` of a current Transformers, which writes safetensors."
        )
    total = 0
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                total += sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118 - no mapping
        except (OSError, ValueError, SafetensorError) as error:
            raise BackboneError(f"backbone.name: {path} cannot be read ({error}).") from error
    return total
