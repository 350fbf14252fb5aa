"""Settings: for several runs what differs between them, for a single run the main facts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from polyloom.report.sources import Source
from polyloom.report.tables import Row, Table, listed
from polyloom.report.templating import Section

# Settings of recipes that the table of facts shows under another name.
_FACTS = {"method.name", "backbone.name", "backbone.preset", "languages", "train.seed"}


def settings_section(sources: Sequence[Source]) -> Section:
    """Build a table with a column for each run."""
    facts = [_facts(source) for source in sources]
    if len(sources) > 1:
        for key, values in differing_settings(sources).items():
            for fact, value in zip(facts, values, strict=True):
                fact.update({} if key in _FACTS else {key: _text(value)})
    keys = [key for key in dict.fromkeys(key for fact in facts for key in fact) if _worth_showing(facts, key)]
    rows: list[Row] = [[key, *(fact.get(key) or "–" for fact in facts)] for key in keys]
    table = Table("Settings of the runs", ["", *(source.name for source in sources)], rows, classes="facts")
    return Section("settings", "Settings", {"table": table, "several": len(sources) > 1})


def _worth_showing(facts: Sequence[Mapping[str, str]], key: str) -> bool:
    values = {fact.get(key) for fact in facts}
    return bool(values - {None, ""}) and (len(facts) == 1 or len(values) > 1)


def differing_settings(sources: Sequence[Source]) -> dict[str, list[Any]]:
    """Find the settings of the recipes that differ, each with its value in every run."""
    flat = [_flat(asdict(source.recipe)) for source in sources]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    values = {key: [settings.get(key) for settings in flat] for key in keys}
    return {key: given for key, given in values.items() if any(value != given[0] for value in given)}


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
    versions = history.begin.versions if history.begin else {}
    return {
        "folder": str(source.path),
        "method": recipe.method.name,
        "backbone": str(backbone),
        "languages": f"{len(recipe.languages)}: {listed(recipe.languages)}",
        "tasks": ", ".join(recipe.tasks),
        "trainable parameters": ", ".join(trained),
        "steps": _steps(source),
        "tokens": f"{history.done.tokens:,}" if history.done else "",
        "time, with validation": str(timedelta(seconds=round(history.done.seconds))) if history.done else "",
        "seed": str(recipe.train.seed),
        "checkpoint": source.checkpoint or "none",
        "started": f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M} UTC" if began else "",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _steps(source: Source) -> str:
    history = source.history
    stages = [f"{name} {event.steps:,}" for name, event in history.stages.items()]
    taken = history.steps[-1].total if history.steps else 0
    unfinished = "" if history.done else ", not finished"
    return f"{taken:,}{unfinished}" + (f" ({', '.join(stages)})" if stages else "")
