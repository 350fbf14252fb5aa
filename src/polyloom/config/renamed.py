"""Accept settings under their former names, with a message that names the new one."""

from collections.abc import Iterator, Mapping
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
    upgraded, messages = _renamed_keys(settings, TOP_KEYS, "")
    for section, names in RENAMED.items():
        _upgrade_section(upgraded, section, names, messages)
    for part, keys in (("stages", RENAMED), ("tasks", None)):
        entries = upgraded.get(part)
        if not isinstance(entries, dict):
            continue
        upgraded[part] = entries = dict(entries)
        for name, entry in entries.items():
            if not isinstance(entry, dict):
                continue
            if keys is None:
                # Every task of a stored recipe had the settings of translation, empty in all others.
                used = {key: value for key, value in entry.items() if key not in TRANSLATION_KEYS or value}
                entries[name], notes = _renamed_keys(used, TASK_KEYS, f"{part}.{name}.")
                messages += notes
            else:
                entries[name] = stage = dict(entry)
                for section, names in keys.items():
                    _upgrade_section(stage, section, names, messages, prefix=f"{part}.{name}.")
    if isinstance(upgraded.get("data"), dict):
        upgraded["data"] = _renamed_corpora(upgraded["data"], messages)
    return upgraded, list(dict.fromkeys(messages))


def _upgrade_section(
    settings: dict[str, Any], section: str, names: Mapping[str, str], messages: list[str], *, prefix: str = ""
) -> None:
    if isinstance(settings.get(section), dict):
        settings[section], notes = _renamed_keys(settings[section], names, f"{prefix}{section}.")
        messages += notes


def _renamed_keys(
    settings: Mapping[str, Any], names: Mapping[str, str], prefix: str
) -> tuple[dict[str, Any], list[str]]:
    # A key that is there under both names stays as it is: the parser reports the former one as unknown.
    used = {old: new for old, new in names.items() if old in settings and new not in settings}
    renamed = {used.get(key, key): value for key, value in settings.items()}
    return renamed, [f"{prefix}{old} is now called {prefix}{new}." for old, new in used.items()]


def _renamed_corpora(value: Any, messages: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed_corpora(item, messages) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed_corpora(item, messages) for item in value]
    for old, new in _prefixes(value):
        messages.append(f"corpora named {old}… are now called {new}…")
        return new + value.removeprefix(old)
    return value


def _prefixes(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield from ((old, new) for old, new in CORPUS_PREFIXES.items() if value.startswith(old))
