"""Accept settings under their former names, with a message that names the new one."""

from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, Mapping[str, str]] = {
    "mixture": {"kind": "strategy", "cells_per_batch": "datasets_per_batch"},
    "optim": {"clip": "max_grad_norm"},
    "train": {
        "fill": "pack_sequences",
        "vocabulary": "mlm_candidates",
        "accumulate": "grad_accum_steps",
        "keep": "keep_last",
    },
}
TASK_KEYS = {"marks": "language_tokens", "token_of": "language_token_aliases"}
TRANSLATION_KEYS = (*TASK_KEYS, *TASK_KEYS.values())
TOP_KEYS = {"start": "init_from"}
CORPUS_PREFIXES = {"artificial:": "synthetic:"}


def upgrade(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Rename former keys and corpus names of a recipe.

    Args:
        settings: A recipe as plain data.

    Returns:
        The recipe with today's keys, and one message for each name that changed.
    """
    messages: list[str] = []
    upgraded = _upgrade_sections(_rename_keys(settings, TOP_KEYS, "", messages), "", messages)
    for name, stage in _entries(upgraded, "stages"):
        upgraded["stages"][name] = _upgrade_sections(stage, f"stages.{name}.", messages)
    for name, task in _entries(upgraded, "tasks"):
        # Every task of a stored recipe had the settings of translation, empty in all others.
        used = {key: value for key, value in task.items() if key not in TRANSLATION_KEYS or value}
        upgraded["tasks"][name] = _rename_keys(used, TASK_KEYS, f"tasks.{name}.", messages)
    method = upgraded.get("method")
    if isinstance(method, dict) and isinstance(method.get("norm"), bool):
        norm = "before" if method["norm"] else "none"
        messages.append(f"method.norm: {str(method['norm']).lower()} is now called {norm}.")
        upgraded["method"] = method | {"norm": norm}
    if isinstance(upgraded.get("data"), dict):
        upgraded["data"] = _renamed_corpora(upgraded["data"], messages)
    return upgraded, list(dict.fromkeys(messages))


def _entries(settings: dict[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    """Copy a section of named entries, and list the entries that are mappings; the parser reports any others."""
    if not isinstance(settings.get(section), dict):
        return []
    settings[section] = dict(settings[section])
    return [(name, entry) for name, entry in settings[section].items() if isinstance(entry, dict)]


def _upgrade_sections(settings: Mapping[str, Any], prefix: str, messages: list[str]) -> dict[str, Any]:
    return {
        section: _rename_keys(value, RENAMED[section], f"{prefix}{section}.", messages)
        if section in RENAMED and isinstance(value, dict)
        else value
        for section, value in settings.items()
    }


def _rename_keys(
    settings: Mapping[str, Any], names: Mapping[str, str], prefix: str, messages: list[str]
) -> dict[str, Any]:
    # A key that is there under both names stays as it is: the parser reports the former one as unknown.
    used = {old: new for old, new in names.items() if old in settings and new not in settings}
    messages += [f"{prefix}{old} is now called {prefix}{new}." for old, new in used.items()]
    return {used.get(key, key): value for key, value in settings.items()}


def _renamed_corpora(value: Any, messages: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed_corpora(item, messages) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed_corpora(item, messages) for item in value]
    for old, new in CORPUS_PREFIXES.items():
        if isinstance(value, str) and value.startswith(old):
            messages.append(f"corpora named {old}… are now called {new}…")
            return new + value.removeprefix(old)
    return value
