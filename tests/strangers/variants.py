"""Random variants of files that a stranger could send; every number gives the same variant each time."""

import json
import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from polyloom.checkpoint import MANIFEST, TENSORS
from polyloom.io.hashes import sha256_of
from polyloom.io.sealed import read_sealed, seal, seal_line

# The files, the folder that they are in, and the command that reads them.
TARGETS: dict[str, tuple[str, str]] = {
    "backbone/config.json": ("own", "predict"),
    "backbone/tokenizer.json": ("own", "predict"),
    "backbone/tokenizer_config.json": ("own", "predict"),
    "backbone/model.safetensors": ("own", "predict"),
    f"pos/aa/{MANIFEST}": ("own", "predict"),
    f"pos/aa/{TENSORS}": ("own", "predict"),
    "pos/aa/adapter_config.json": ("adapterhub", "import"),
    "pos/aa/head_config.json": ("adapterhub", "import"),
    "pos/aa/adapter.safetensors": ("adapterhub", "import"),
    "pos/aa/adapter_config.json#peft": ("peft", "import"),
    "checkpoints/NEWEST/polyloom.json": ("run", "predict"),
    "recipe.yaml": ("run", "report"),
    "log.jsonl": ("run", "report"),
    "evaluations/test.json": ("run", "report"),
    "probes/weights.json": ("run", "report"),
}
VALUES: list[Any] = [
    None, True, 0, -1, 1, 3.5, 1e308, -1e308, 2**31, 2**63, 10**30, 10**400, "", "x", "x" * 1_000_000, "\0", "\x1b[2J",
    "a\nb", "\ud800", "../../../../etc/passwd", "/dev/zero", "/etc/shadow", "https://example.org/x", "evil/model",
    "(a+)+$", "{{7*7}}", "<script>alert(1)</script>", [], {}, [[]], [None] * 1000, ["x"] * 100_000, {"x": {}},
    {"": None}, list(range(1000)), float("nan"), float("inf"), "NaN", "pos/zz", "٣",
]  # fmt: skip
EDITS = [b"", b"\0", b"\x1b", b"&a *a", b"!!python/object:os.system ", b"- - - -", b"{", b"\xff", b"9" * 5000, b": "]
KEYS = [
    "auto_map", "_attn_implementation_internal", "base_model_name_or_path", "trust_remote_code", "torch_dtype", "dtype",
    "quantization_config", "tokenizer_class", "num_hidden_layers", "vocab_size", "added_tokens", "normalizer",
    "pre_tokenizer", "format", "labels", "", "__class__",
]  # fmt: skip


def make_variant(number: int, folder: Path) -> tuple[str, str, str]:
    """Damage one file of a copy of everything; return what was done, where, and the command that reads it."""
    draw = random.Random(number)
    target, (place, command) = draw.choice(list(TARGETS.items()))
    file = folder / place / target.partition("#")[0].replace("NEWEST", newest(folder / "run"))
    content = file.read_bytes()
    if draw.random() < 0.2:
        done = _replace(file, draw)
    elif file.suffix == ".safetensors":
        done = _damage_header(file, content, draw)
    elif file.suffix == ".json" and draw.random() < 0.85:
        done = _damage_json(file, draw)
    else:
        done = _damage_lines(file, draw)
    if draw.random() < 0.9:
        _sign(file)
    return f"{target}: {done}", place, command


def newest(run: Path) -> str:
    """The name of the newest checkpoint."""
    return max(path.name for path in (run / "checkpoints").iterdir())


def _replace(file: Path, draw: random.Random) -> str:
    """Put something else in the place of a file."""
    outside = file.parent / ".." / ".." / ".." / "outside"
    contents = {
        "empty": b"", "deep": b"[" * 200_000, "bytes": draw.randbytes(5000), "spaces": b" " * (20 << 20),
        "half": file.read_bytes()[: file.stat().st_size // 2], "UTF-16": b"\xff\xfe" + "{}".encode("utf-16-le"),
    }  # fmt: skip
    others: dict[str, Callable[[], object]] = {
        "pipe": lambda: os.mkfifo(file),
        "device": lambda: file.symlink_to("/dev/zero"),
        "link outside": lambda: file.symlink_to(outside),
        "link to itself": lambda: file.symlink_to(file.name),
        "folder": file.mkdir,
        "gone": lambda: None,
    }
    name = draw.choice([*contents, *others])
    if name in contents:
        file.write_bytes(contents[name])
    else:
        file.rename(outside)
        others[name]()
    return name


def _damage_json(file: Path, draw: random.Random) -> str:
    value = json.loads(read_sealed(file) if file.name == MANIFEST else file.read_text())
    done = _damage_value(value, draw)
    file.write_text(json.dumps(value).encode("utf-8", "replace").decode())
    return done


def _damage_value(value: Any, draw: random.Random) -> str:
    """Change one to three places of plain data."""
    done = []
    for _ in range(draw.randint(1, 3)):
        at, way = value, list[str]()
        while isinstance(at, dict | list) and at and (not way or draw.random() < 0.7):
            parent, key = at, draw.choice(list(at)) if isinstance(at, dict) else draw.randrange(len(at))
            at = at[key]
            way.append(str(key))
        if not way:
            continue
        kind = draw.choice(["set", "set", "set", "drop", "add"])
        new = draw.choice(VALUES)
        if kind == "drop":
            del parent[key]
        elif kind == "add" and isinstance(parent, dict):
            key = draw.choice(KEYS)
            parent[key] = new
        else:
            parent[key] = new
        done.append(f"{kind} {'/'.join(way)[:60]} {new!r:.40}")
    return "; ".join(done)


def _damage_lines(file: Path, draw: random.Random) -> str:
    """Change lines of a log, a recipe or any text."""
    if file.suffix == ".jsonl":
        lines = file.read_text().splitlines()
        at = draw.randrange(len(lines))
        event = json.loads(lines[at])
        del event["crc"]
        done = _damage_value(event, draw)
        lines[at] = seal_line(json.dumps(event))
        file.write_text("\n".join(lines * draw.choice([1, 1, 50])).encode("utf-8", "replace").decode() + "\n")
        return f"line {at}: {done}"
    content = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, 20)):
        at = draw.randrange(len(content))
        content[at : at + draw.choice([0, 1, 5])] = draw.choice(EDITS)
    file.write_bytes(content)
    return "edited"


def _damage_header(file: Path, content: bytes, draw: random.Random) -> str:
    """Change the header of a safetensors file."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    if draw.random() < 0.3:
        wrong = draw.choice([0, 1, size - 1, size + 1, 2**32, 2**63, 2**64 - 1])
        file.write_bytes(struct.pack("<Q", wrong) + content[8:])
        return f"header of {wrong}"
    done = _damage_value(header, draw)
    text = json.dumps(header).encode("utf-8", "replace")
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return done


def _sign(file: Path) -> None:
    """Make hashes agree with what is there now, as whoever means harm can."""
    manifest = file.parent / MANIFEST
    sealed = file.suffix == ".yaml" or file.name == MANIFEST or file.parent.name in ("evaluations", "probes")
    with suppress(OSError, ValueError):
        if not file.is_file() or file.is_symlink():
            return
        if file.name == TENSORS:
            content = json.loads(read_sealed(manifest)) | {"tensors_sha256": sha256_of(file)}
            manifest.write_text(seal(json.dumps(content)))
        elif sealed:
            text = file.read_text()
            file.write_text(seal(text.partition("\n")[2] if text.startswith("# sha256") else text))
