"""What was run, and the commands that everything in the report comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from polyloom.report.html import Markup, command, details, header_row, note, row, section, table, tag
from polyloom.report.sources import PROBES, Source

NAMED = 24  # languages that are named where many are listed


def overview_section(sources: Sequence[Source]) -> Markup:
    """A column for each run."""
    facts = [_facts(source) for source in sources]
    keys = dict.fromkeys(key for one in facts for key in one)
    rows = [row(key, *(one.get(key, "") for one in facts)) for key in keys]
    label = "What was run"
    return section(
        "runs",
        label,
        table("The runs side by side", header_row("run", *(s.name for s in sources)), rows, class_="facts"),
    )


def _facts(source: Source) -> dict[str, object]:
    recipe, history = source.recipe, source.history
    config = asdict(recipe.method)
    given = (
        recipe.backbone.name or recipe.backbone.preset or (recipe.backbone.config or {}).get("model_type", ""),
        None if recipe.backbone.dtype == "fp32" else recipe.backbone.dtype,
    )
    return {
        "folder": tag("code", source.path),
        "method": recipe.method.name,
        "its settings": ", ".join(f"{key} {_value(value)}" for key, value in config.items() if key != "name") or "none",
        "backbone": " ".join(filter(None, given)),
        "languages": f"{len(recipe.languages)}: {_listed(recipe.languages)}",
        "tasks": ", ".join(recipe.tasks),
        "trained on": f"{len(recipe.data.train)} cells: {_listed(list(recipe.data.train))}",
        "steps": _steps(source),
        "seed": recipe.train.seed,
        "checkpoint": source.checkpoint or "none",
        "began": _date(history.steps[0].get("time") if history.steps else None),
        "time": _time(source),
        "versions": ", ".join(f"{name} {version}" for name, version in history.begin.get("versions", {}).items()),
    }


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more (see the recipe)" if rest > 0 else "")


def _steps(source: Source) -> str:
    history = source.history
    stages = [f"{name} {event['steps']:,}" for name, event in history.stages.items()]
    taken = history.steps[-1]["total"] if history.steps else 0
    unfinished = "" if history.done else ", not finished"
    return f"{taken:,}{unfinished} ({', '.join(stages)})" if stages else f"{taken:,}{unfinished}"


def _date(seconds: float | None) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC" if seconds else ""


def _time(source: Source) -> str:
    done = source.history.done
    if not done:
        return ""
    return f"{timedelta(seconds=round(done['seconds']))} with validations, {done['tokens']:,} tokens"


def commands_section(sources: Sequence[Source], line: str) -> Markup:
    """How everything here is made again."""
    lines = []
    for source in sources:
        lines += [f"polyloom train {source.shell}/recipe.yaml -o {source.shell}-again", source.evaluation]
        lines += [source.probing(kind) for kind in PROBES]
    on = "" if sources[0].split == "test" else f" --on {sources[0].split}"
    lines += [f"polyloom compare {other.shell} {sources[0].shell}{on}" for other in sources[1:]]
    recipes = [
        details(
            f"Recipe of {source.name}",
            tag("pre", tag("code", source.text), tabindex="0", role="region", aria_label=f"Recipe of {source.name}"),
        )
        for source in sources
    ]
    hashes = [_hashes(source) for source in sources if source.history.begin.get("corpora")]
    said = note("The first line trains a run anew into another folder; the same recipe and versions give the same run.")
    return section("commands", "Commands", command(*lines, line), said, *recipes, *hashes)


def _hashes(source: Source) -> Markup:
    corpora: Mapping[str, str] = source.history.begin["corpora"]
    rows = [row(name, tag("td", tag("code", sha256[:12]))) for name, sha256 in corpora.items()]
    label = f"Corpora that {source.name} learnt from ({len(rows)})"
    return details(label, table(label, header_row("corpus", "sha256"), rows))
