"""Reading and writing settings: YAML by the rules of YAML 1.2, and dotted overrides.

PyYAML resolves scalars by YAML 1.1, where `no` is false, `3e-4` a string and `12:30:00` a number. Here it only parses;
what a scalar means is decided by the core schema of YAML 1.2. Anchors and tags are refused: recipes need neither, and
both are ways to attack a reader.
"""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from polyloom.errors import ConfigError, suggest

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_DIGITS = 1000  # longer ones are no numbers anybody means

_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BREAKS = re.compile("[\x85\u2028\u2029]")  # PyYAML takes them for line ends, YAML 1.2 does not
_WORDS: dict[str, Any] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)
_WORDS |= dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)
_WORDS |= {s + word: float(s + "inf") for word in (".inf", ".Inf", ".INF") for s in ("", "+", "-")}


def read_settings(path: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Read a YAML file and apply overrides such as ``optim.lr=5e-5``.

    Args:
        path: The file; at most one megabyte.
        overrides: Dotted paths with values, the values written as in YAML.

    Returns:
        The settings as plain data.
    """
    settings = parse_yaml(_read_text(Path(path)), source=str(path))
    if not isinstance(settings, dict):
        raise ConfigError(str(path), [f"expected keys and values at the top, found {describe(settings)}."])
    mistakes: list[str] = []
    for override in overrides:
        try:
            _apply(settings, override)
        except ConfigError as error:
            mistakes.extend(error.mistakes)
    if mistakes:
        raise ConfigError("overrides", mistakes)
    return settings


def parse_yaml(text: str, *, source: str) -> Any:
    """Parse one YAML document; mistakes name `source` and line."""
    mistakes: list[str] = []
    if "\x85" in text:
        # PyYAML would take it for the end of a line, and turn it into a space within a text.
        line = text.count("\n", 0, text.index("\x85")) + 1
        what = "the character U+0085, which would be lost. Write \\N for it, between double quotes."
        raise ConfigError(source, [f"{source}:{line}: {what}"])
    try:
        node = _Loader(text).get_single_node()
        value = None if node is None else _value(node, mistakes, source=source)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = source if mark is None else f"{source}:{mark.line + 1}"
        raise ConfigError(source, [f"{place}: {getattr(error, 'problem', None) or error}."]) from None
    if mistakes:
        raise ConfigError(source, mistakes)
    return value


def dump_yaml(settings: dict[str, Any]) -> str:
    """Write settings so that `parse_yaml` reads the same back."""
    text: str = yaml.dump(
        settings, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100
    )
    return text


def describe(value: Any) -> str:
    """Name a value in the words of YAML, for messages."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    kinds = {bool: "true/false", int: "number", float: "number", str: "text"}
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"the {kinds[type(value)]} {shown if len(shown) < 60 else shown[:57] + '…'}"


class _Loader(yaml.BaseLoader):
    """PyYAML's parser, which leaves every scalar a string; refuses anchors, tags and deep nesting."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases (&, *) are not used in recipes; write the value out, or quote it"
        elif getattr(event, "tag", None) is not None:
            problem = f"tags are not used in recipes: {event.tag}"
        elif self.depth >= MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} deep"
        else:
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


class _Dumper(yaml.SafeDumper):
    """PyYAML's writer, which quotes what YAML 1.2 would read as something other than text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # A text that would be read as a number, a truth value or nothing gets quotes.
    style = '"' if _BREAKS.search(text) else None if isinstance(_scalar(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _value(node: yaml.Node, mistakes: list[str], *, source: str) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, mistakes, source=source) for item in node.value]
    assert isinstance(node, yaml.MappingNode)
    mapping: dict[str, Any] = {}
    for key, item in node.value:
        place = f"{source}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            mistakes.append(f"{place}: a key must be a word.")
            continue
        if key.value in mapping:
            mistakes.append(f"{place}: the key {key.value!r} is there already.")
        mapping[key.value] = _value(item, mistakes, source=source)
    return mapping


def _scalar(text: str) -> Any:
    """Resolve a plain scalar by the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def _apply(settings: dict[str, Any], override: str) -> None:
    """Set one override in the settings; mappings on its path that do not exist are made."""
    path, equals, text = override.partition("=")
    keys = path.split(".")
    source = f"override {override!r}"
    if not equals or not all(re.fullmatch(r"[\w/*-]+", key) for key in keys):
        raise ConfigError("overrides", [f"{source}: expected key.key=value, such as optim.lr=5e-5."])
    value = parse_yaml(text, source=source)
    for depth, key in enumerate(keys[:-1], start=1):
        inner = settings.get(key)
        if inner is None:
            settings[key] = inner = {}
        if not isinstance(inner, dict):
            raise ConfigError(
                "overrides", [f"{source}: {'.'.join(keys[:depth])} is {describe(inner)}, so it has no keys to set."]
            )
        settings = inner
    settings[keys[-1]] = value


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        folder = path.parent
        if not folder.is_dir():
            hint = f"Neither is there a folder {str(folder)!r}."
        else:
            recipes = sorted(file.name for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))
            hint = suggest(path.name, recipes) if recipes else f"The folder {str(folder)!r} has no recipes."
        raise ConfigError(str(path), [f"there is no such file. {hint}"]) from None
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror}."]) from None
    if len(content) > MAX_BYTES:
        raise ConfigError(str(path), [f"larger than {MAX_BYTES:,} bytes: this is no recipe."])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(str(path), [f"{path}:{line}: not UTF-8 text."]) from None
