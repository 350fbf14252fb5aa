"""Push adapters to the Hugging Face Hub, and pull them; files that could hold code are not downloaded."""

import shutil
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from polyloom.errors import ExportError
from polyloom.io.atomic import atomic_dir

PATTERNS = ["*.safetensors", "*.json", "*.md", "*.model", "*.txt"]  # no pickles, no code


def push(folder: Path, repo: str, *, private: bool = False) -> str:
    """Upload a folder of exported adapters; return its address."""
    # Everything in the folder would be published, so a folder with anything else is refused rather than filtered.
    if not any(folder.rglob("*.safetensors")):
        raise ExportError(f"{folder}: no adapter here. Write one: polyloom export RUN ner/tr -o {folder}")
    other = [p for p in folder.rglob("*") if p.is_file() and not any(p.match(pattern) for pattern in PATTERNS)]
    if other:
        raise ExportError(f"{folder}: {other[0].name} is no part of an adapter. Remove it, or export to a new folder.")
    try:
        api = HfApi()
        api.create_repo(repo, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Adapters exported by Polyloom")
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ExportError(
            f"push {repo}: {_first(error)} Are you logged in (hf auth login), and is it yours?"
        ) from error
    return str(commit.commit_url)


def pull(repo: str, into: Path, *, revision: str | None = None) -> Path:
    """Download a repository of adapters into a new folder."""
    if into.exists():
        raise ExportError(f"{into}: exists already. Choose another name or remove it.")
    with atomic_dir(into) as partial:
        download(repo, into=partial, revision=revision)
        shutil.rmtree(partial / ".cache", ignore_errors=True)  # notes of huggingface_hub on the download
    return into


def download(repo: str, *, into: Path | None = None, revision: str | None = None) -> Path:
    """Download a repository of adapters, by default into the cache of `huggingface_hub`; return the folder."""
    try:
        path = Path(snapshot_download(repo, revision=revision, local_dir=into, allow_patterns=PATTERNS))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ExportError(f"pull {repo}: {_first(error)} Is its name right (owner/name)?") from error
    if not any(path.rglob("*.safetensors")):
        raise ExportError(f"pull {repo}: it has no safetensors. Pickles are not downloaded.")
    return path


def _first(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [repr(error)])[0]
    return text if text.endswith(".") else f"{text}."
