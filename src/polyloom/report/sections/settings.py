"""Settings and commands: what the runs were made with, and how to make them again."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from polyloom.report.elements import Row, Section, Table, TableCell, listed
from polyloom.report.sources import PROBES, Source

# Settings of recipes that the table of facts shows under another name.
_FACTS = {"method.name", "backbone.name", "backbone.preset", "languages", "train.seed"}


def settings_section(sources: Sequence[Source]) -> Section:
    """Build a table with a column for each run."""
    facts = [_facts(source) for source in sources]
    if len(sources) > 1:
        for key, values in differing_settings(sources).items():
            if key not in _FACTS:
                for of_run, value in zip(facts, values, strict=True):
                    of_run[key] = _text(value)

    # Of one run all facts are shown that it has, of several only those that differ.
    rows: list[Row] = []
    for key in dict.fromkeys(key for of_run in facts for key in of_run):
        texts = [of_run.get(key) or "" for of_run in facts]
        if any(texts) and (len(facts) == 1 or len(set(texts)) > 1):
            rows.append([key, *(text or "–" for text in texts)])
    table = Table("Settings of the runs", ["", *(source.name for source in sources)], rows, classes="facts")
    return Section("settings", "Settings", {"table": table, "several": len(sources) > 1})


def differing_settings(sources: Sequence[Source]) -> dict[str, list[Any]]:
    """Find the settings of the recipes that differ, each with its value in every run."""
    flat = [_flat(asdict(source.recipe)) for source in sources]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    values = {key: [settings.get(key) for settings in flat] for key in keys}
    return {key: of_runs for key, of_runs in values.items() if any(value != of_runs[0] for value in of_runs)}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give every setting its dotted name; corpora by condition stay together."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in ("data.train", "data.validation", "data.test"):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return f"{len(value)} conditions: {listed(list(value))}"
    return listed(value) if isinstance(value, tuple | list) else str(value)


def _facts(source: Source) -> dict[str, str]:
    recipe, history = source.recipe, source.history
    backbone = recipe.backbone.name or recipe.backbone.preset or (recipe.backbone.config or {}).get("model_type", "")
    trained = [
        f"{name} {sum(group.trained for group in event.parameter_report):,}" for name, event in history.stages.items()
    ]
    began = history.steps[0].time if history.steps else None
    steps = f"{history.steps[-1].total if history.steps else 0:,}{'' if history.done else ', not finished'}"
    stages = ", ".join(f"{name} {event.steps:,}" for name, event in history.stages.items())
    versions = history.begin.versions if history.begin else {}
    return {
        "folder": str(source.path),
        "method": recipe.method.name,
        "backbone": str(backbone),
        "languages": f"{len(recipe.languages)}: {listed(recipe.languages)}",
        "tasks": ", ".join(recipe.tasks),
        "trainable parameters": ", ".join(trained),
        "steps": f"{steps} ({stages})" if stages else steps,
        "tokens": f"{history.done.tokens:,}" if history.done else "",
        "time, with validation": str(timedelta(seconds=round(history.done.seconds))) if history.done else "",
        "seed": str(recipe.train.seed),
        "checkpoint": source.checkpoint or "none",
        "started": f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M} UTC" if began else "",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def commands_section(sources: Sequence[Source], line: str) -> Section:
    """Build the list of commands that repeat the runs, the scores and this report.

    Args:
        sources: The runs.
        line: The command that writes this report.
    """
    lines = []
    for source in sources:
        lines += [f"polyloom train {source.shell}/recipe.yaml -o {source.shell}-again", source.evaluation]
        lines += [source.probing(kind) for kind in PROBES]
    split = "" if sources[0].split == "test" else f" --split {sources[0].split}"
    lines += [f"polyloom compare {sources[0].shell} {other.shell}{split}" for other in sources[1:]]
    hashes = []
    for source in sources:
        if source.history.begin and (corpora := source.history.begin.corpora):
            rows: list[Row] = [[corpus, TableCell(sha256[:12], "code")] for corpus, sha256 in corpora.items()]
            label = f"Training corpora of {source.name} ({len(rows)})"
            hashes.append(Table(label, ["corpus", "sha256"], rows, classes=""))
    recipes = [(f"Recipe of {source.name}", source.text) for source in sources]
    return Section("commands", "Commands", {"lines": [*lines, line], "recipes": recipes, "hashes": hashes})
