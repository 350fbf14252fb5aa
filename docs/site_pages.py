"""What the site makes of the code: pages of reference, and ``llms.txt``.

A page names what belongs into it as ``<!-- generated: commands -->`` or ``<!-- from: CHANGELOG.md -->``. The text is
put there while Sphinx reads the page, so that no file of the repository is written and none can be out of date.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from typer.testing import CliRunner

import polyloom
from polyloom.backbones import FAMILIES
from polyloom.cli import app as commands_app
from polyloom.config import recipe_schema
from polyloom.config.recipe import BackboneConfig, DataConfig
from polyloom.data.mixture import MixtureConfig
from polyloom.data.readers.bitext import Filter
from polyloom.data.readers.formats import READERS
from polyloom.methods import METHODS
from polyloom.metrics import METRICS
from polyloom.nn.blocks import BLOCKS
from polyloom.recipes import shipped_recipes, summary
from polyloom.tasks import TASKS
from polyloom.training.config import OptimConfig, TrainConfig

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"<!-- generated: (\w+) -->")
FROM = re.compile(r"<!-- from: ([\w./]+)(?:#([\w-]+))? -->")
# Files outside of docs/ that are pages of the site too.
PAGES: Mapping[str, str] = {
    "ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
    "README.md": "index.md", "integrations/vllm/README.md": "vllm.md",
}  # fmt: skip
SECTIONS: Mapping[str, type] = {
    "backbone": BackboneConfig, "data": DataConfig, "data.filter": Filter, "mixture": MixtureConfig,
    "optim": OptimConfig, "train": TrainConfig,
}  # fmt: skip


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", fill_page)
    app.connect("build-finished", write_llms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def fill_page(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001
    """Put generated text, and text of other files, where a page asks for it."""
    text = MARK.sub(lambda found: GENERATED[found[1]](), source[0])
    source[0] = FROM.sub(lambda found: text_of(found[1], found[2], up="../" * name.count("/")), text)


def text_of(file: str, heading: str | None, *, up: str) -> str:
    """Return a Markdown file of the repository, or one of its sections, with links for a page of the site.

    Args:
        file: Path in the repository.
        heading: Anchor of the section, which is returned without its heading. Default: the whole file.
        up: The way from the page to docs/.
    """
    text = (ROOT / file).read_text(encoding="utf-8")
    if heading:
        sections = {_anchor(part.partition("\n")[0]): part.partition("\n")[2] for part in text.split("\n## ")}
        text = sections[heading].strip()

    def mend(link: re.Match[str]) -> str:
        path, sign, anchor = link[1].partition("#")
        path = os.path.relpath((ROOT / file).parent / path, ROOT)
        inside = path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path, f"../{path}")
        return f"]({up}{inside}{sign}{anchor})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", mend, text)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w-]", "", heading.strip().lower().replace(" ", "-"))


# -- commands --------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Show the help of every command."""
    return "\n\n".join(_command(path) for path in _commands(typer.main.get_command(commands_app), ()) if path)


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*path, name))


def _command(path: tuple[str, ...]) -> str:
    shown = CliRunner().invoke(commands_app, [*path, "--help"], prog_name="polyloom", env={"TERMINAL_WIDTH": "92"})
    assert shown.exit_code == 0, shown.output
    text = re.sub(r" +$", "", inspect.cleandoc(shown.output), flags=re.MULTILINE)
    return f"{'#' * (1 + len(path))} polyloom {' '.join(path)}\n\n```text\n{text}\n```"


# -- recipes ---------------------------------------------------------------------------------------------------------


def recipe() -> str:
    """Describe every key of a recipe."""
    schema = recipe_schema()
    parts = ["## Sections", *_settings("", schema["properties"])]
    for name, kind in SECTIONS.items():
        parts += [
            f"## {name}",
            _first_line(kind),
            *_settings(name, schema["$defs"][kind.__name__].get("properties", {})),
        ]
    parts.append("## method")
    parts.append("`method.name` names the method. All other keys are settings of that method.")
    for choice in schema["properties"]["method"]["oneOf"]:
        name = choice["properties"]["name"]["const"]
        settings = _settings(f"method.{name}", choice["properties"])
        parts += [f"### method: {name}", f"{METHODS[name].summary[:1].upper()}{METHODS[name].summary[1:]}.", *settings]
    parts.append("## tasks")
    for name, task in schema["properties"]["tasks"]["properties"].items():
        settings = _settings(f"tasks.{name}", task["properties"])
        parts += [f"### tasks: {name}", f"{TASKS[name].summary[:1].upper()}{TASKS[name].summary[1:]}.", *settings]
    return "\n\n".join(parts)


def _settings(section: str, properties: Mapping[str, Any]) -> list[str]:
    terms = []
    for key, value in properties.items():
        if key == "name" and "const" in value:
            continue
        text = value["description"]
        told = "efault" in text or value.get("default") in (None, {}, [])
        default = "" if told else f", default `{_yaml(value['default'])}`"
        anchor = "-".join(filter(None, ("recipe", *section.split("."), key))).replace("_", "-")
        terms.append(_term(f"[`{key}`]{{#{anchor}}}", f"*{type_of(value)}*{default}. {_plain(text)}"))
    return terms


def type_of(value: Mapping[str, Any]) -> str:
    """Say in words which values a key of the schema takes."""
    if "enum" in value:
        return " or ".join(f"`{_yaml(one)}`" for one in value["enum"])
    if "const" in value:
        return f"`{_yaml(value['const'])}`"
    if "anyOf" in value or "oneOf" in value:
        names = [type_of(one) for one in value.get("anyOf", value.get("oneOf", []))]
        return " or ".join(dict.fromkeys(names)) if len(set(names)) < 5 else "mapping"
    if "$ref" in value:
        return "mapping"
    name = {"object": "mapping", "array": "list", "string": "text", "boolean": "true or false"}.get(
        value.get("type", "mapping"), value.get("type", "mapping")
    )
    bounds = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    return ", ".join([name, *(f"{sign} {value[bound]:,}" for bound, sign in bounds if bound in value)])


# -- tables ----------------------------------------------------------------------------------------------------------


def methods() -> str:
    """List the methods."""
    return _table(
        ("method", "what it is", "paper", "weights depend on"),
        ((f"[`{name}`](recipe.md#method-{name})", kind.summary, kind.paper, ", ".join(kind.conditioned_on) or "nothing")
         for name, kind in METHODS.items()),
    )  # fmt: skip


def tasks() -> str:
    """List the tasks."""
    return _table(
        ("task", "what it is", "records", "metrics"),
        ((f"[`{name}`](recipe.md#tasks-{name})", task.summary, f"`{task.kind}`",
          _codes(metric.name for metric in task.metrics)) for name, task in TASKS.items()),
    )  # fmt: skip


def families() -> str:
    """List the families."""
    return _table(
        ("`model_type`", "stacks", "placements", "linear layers for LoRA"),
        ((f"`{name}`", ", ".join(family.stacks), ", ".join(family.placements), _codes(family.projections))
         for name, family in FAMILIES.items()),
    )  # fmt: skip


def blocks() -> str:
    """List the kinds of block."""
    return _table(("block", "what it is"), ((f"`{name}`", _first_line(type(kind))) for name, kind in BLOCKS.items()))


def metrics() -> str:
    """List the metrics with the tasks that have them."""
    return _table(
        ("metric", "better", "tasks"),
        ((f"`{name}`", "higher" if metric.higher_is_better else "lower",
          _codes(task for task, kind in TASKS.items() if name in {one.name for one in kind.metrics}) or "on request")
         for name, metric in METRICS.items()),
    )  # fmt: skip


def formats() -> str:
    """List the endings of files with the kinds of records in them."""
    return _table(("ending", "records"), ((f"`{ending}`", _codes(kinds)) for ending, kinds in READERS.items()))


def recipes() -> str:
    """List the shipped recipes."""
    return _table(
        ("recipe", "what it is"), ((f"`{name}`", _plain(summary(path))) for name, path in shipped_recipes().items())
    )


def errors() -> str:
    """List the classes of errors."""
    found = {name: kind for name, kind in vars(polyloom.errors).items() if isinstance(kind, type)}
    return _table(
        ("class", "when"),
        ((f"`{name}`", _first_line(kind)) for name, kind in found.items() if issubclass(kind, Exception)),
    )


# -- Python ----------------------------------------------------------------------------------------------------------


def python() -> str:
    """Describe every public name."""
    groups: dict[str, list[str]] = {}
    for name in polyloom.__all__:
        if inspect.isclass(kind := getattr(polyloom, name)) or inspect.isfunction(kind):
            groups.setdefault(_group(name, kind), []).append(name)
    return "\n\n".join(
        "\n\n".join([f"## {group}", *(_documented(name) for name in names)]) for group, names in groups.items()
    )


def _group(name: str, kind: Callable[..., Any]) -> str:
    if name.startswith("register_") or name == "Family":
        return "Extensions"
    parts = {"methods": "Settings of methods", "errors": "Errors", "records": "Records", "config": "Recipes"}
    found = [title for part, title in parts.items() if part in kind.__module__.split(".")]
    return (
        found[0]
        if found
        else "Models"
        if kind.__module__.split(".")[1] in ("model", "backbones", "checkpoint", "conditions")
        else "Runs"
    )


def _documented(name: str) -> str:
    kind = getattr(polyloom, name)
    if inspect.isfunction(kind):
        return f"```{{eval-rst}}\n.. autofunction:: polyloom.{name}\n```"
    bare = issubclass(kind, Exception) or (is_dataclass(kind) and name.endswith("Config")) or issubclass(kind, tuple)
    members = "" if bare else "\n   :members:"
    return f"```{{eval-rst}}\n.. autoclass:: polyloom.{name}{members}\n```"


# -- text ------------------------------------------------------------------------------------------------------------


def _first_line(kind: type) -> str:
    return _plain(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " "))


def _plain(text: str) -> str:
    """Turn a docstring's literals into Markdown's, and leave no HTML in it."""
    parts = re.split(r"(``.+?``|`.+?`)", text)
    escaped = (part if part.startswith("`") else re.sub(r"([<*\[_])", r"\\\1", part) for part in parts)
    return "".join(escaped)


def _codes(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _term(name: str, text: str) -> str:
    return f"{name}\n: {text}"


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


GENERATED: Mapping[str, Callable[[], str]] = {
    function.__name__: function
    for function in (commands, recipe, methods, tasks, families, blocks, metrics, formats, recipes, errors, python)
}


# -- llms.txt --------------------------------------------------------------------------------------------------------


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """List every page with its title and first sentence, for language models."""
    if error or app.builder.name != "html":
        return
    lines = [f"# {app.config.project}", "", f"> {_opening(app, 'index')}", ""]
    for name in app.env.toctree_includes["index"]:
        title = app.env.titles[name].astext()
        lines.append(f"- [{title}]({app.builder.get_target_uri(name)}): {_opening(app, name)}")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _opening(app: Sphinx, name: str) -> str:
    """Return the first sentence of a page."""
    paragraphs = app.env.get_doctree(name).findall(nodes.paragraph)
    first = next(one.astext() for one in paragraphs if isinstance(one.parent, nodes.section))
    return re.split(r"(?<=[.!?:])\s", " ".join(first.split()))[0]
