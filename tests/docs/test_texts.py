"""What pages say is so: quoted messages and figures exist, code and commands run."""

import ast
import dataclasses
import os
import re
import shlex
import subprocess
from typing import Any

import pytest
import typer
from pydantic import TypeAdapter

from polyloom.cli import app
from polyloom.methods import METHODS
from polyloom.tasks import TASKS
from tests.docs.conftest import ROOT
from tests.end_to_end.test_first_hour import run_here
from tests.tiny_run import write_backbone

DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SCRIPTS = sorted((ROOT / "examples").glob("*.sh"))


def blocks(path, *languages):
    return re.findall(rf"```(?:{'|'.join(languages)})\n(.*?)```", path.read_text(), flags=re.DOTALL)


def templates():
    """All strings of the package, with … for what is filled in."""
    for path in (ROOT / "src" / "polyloom").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def holds(text, fragments):
    """Whether a text has all fragments, one after the other."""
    at = 0
    for fragment in fragments:
        if (at := text.find(fragment, at)) < 0:
            return False
        at += len(fragment)
    return True


def test_every_quoted_message_is_one_of_the_code():
    quoted = re.findall(r"^> (.+)$", (DOCS / "troubleshooting.md").read_text(), flags=re.MULTILINE)
    known = list(templates())
    assert len(quoted) >= 30
    wrong = [text for text in quoted if not any(holds(one, text.split("…")) for one in known)]
    assert not wrong, "\n".join(wrong)


def test_every_figure_in_the_choice_of_methods_is_in_the_results():
    known = "".join((DOCS / name).read_text() for name in ("results.md", "hyper-stack.md"))
    figures = re.findall(r"\d+\.\d+(?: ± \d+\.\d+)?|\d+ %|\d+,\d+", (DOCS / "choosing.md").read_text())
    assert len(figures) > 20
    wrong = [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]\d)", known)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "path", [DOCS / "explanation" / "idea.md", DOCS / "explanation" / "order.md"], ids=lambda p: p.name
)
def test_code_of_explanations_runs_and_prints_what_stands_below(path, capsys):
    for block in blocks(path, "python"):
        exec(block, {})
    printed = capsys.readouterr().out
    for shown in blocks(path, "text"):
        assert shown in printed


@pytest.mark.nightly  # trains in another environment
def test_the_way_from_other_libraries_is_open(tmp_path, monkeypatch, capsys):
    """Every block, in order; those of `adapters` in its own environment."""
    python = os.environ.get("POLYLOOM_ADAPTERS_PYTHON")
    if not python:
        pytest.skip("needs a virtual environment with adapters (POLYLOOM_ADAPTERS_PYTHON)")
    (tmp_path / "backbone").mkdir()
    write_backbone(tmp_path / "backbone")
    monkeypatch.chdir(tmp_path)
    page, printed = (DOCS / "migrating.md").read_text().partition("## Back again")[0], []
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", page, flags=re.DOTALL):
        if block.startswith("# with adapters"):
            environment = os.environ | {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
            subprocess.run([python, "-c", block], env=environment, capture_output=True, check=True)
        elif language == "python":
            exec(block, {})
            printed.append(capsys.readouterr().out)  # nothing, of PEFT's block
        else:
            printed += [run_here(line) for line in block.strip().splitlines()]
    imported, tags, stages, imported_lora, tagged, tensors = filter(None, printed)
    assert (imported.strip(), imported_lora.strip()) == ("bank/pos/tr", "loras/pos/sw")
    for text in (tags, tagged):
        assert [line.split("\t")[0] for line in text.strip().splitlines()] == ["ba", "do", "fi"]
    assert [line.split()[0] for line in stages.splitlines()] == ["head", "languages", "tasks"]
    assert "q_down" in tensors


def options(command):
    """The options of every command, by its path."""
    found = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    children = getattr(command, "commands", {})
    yield (), found | {"--help"}, bool(children)
    for name, child in children.items():
        yield from (((name, *path), known, group) for path, known, group in options(child))


def test_commands_and_their_options_exist():
    known = {path: (names, group) for path, names, group in options(typer.main.get_command(app))}
    wrong, checked = [], 0
    for path in [*DOCUMENTS, *SCRIPTS]:
        text = path.read_text() if path.suffix == ".sh" else "\n".join(blocks(path, "sh", "bash"))
        for line in re.findall(r"(?:^|\| |-m )polyloom +(\S.*)", text.replace("\\\n", " "), flags=re.MULTILINE):
            checked += 1
            words = shlex.split(re.split(r" [|<>&]", line)[0], comments=True)
            name = max((p for p in known if tuple(words[: len(p)]) == p), key=len)
            names, is_group = known[name]
            if is_group and not words[-1].startswith("--"):
                wrong.append(f"{path.name}: {line}: no such command")
            unknown = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)} - names
            if unknown and name != ("lm-eval",):  # whose options are lm-eval's own
                wrong.append(f"{path.name}: {line}: no {', '.join(unknown)}")
    assert checked > 100
    assert not wrong, "\n".join(wrong)


def test_no_setting_inherits_the_description_of_another_default():
    """The schema says of a setting what the nearest class that describes it says; that may name a default."""
    kinds: list[Any] = [method.config_type for method in METHODS.values()] + [task.Config for task in TASKS.values()]
    wrong = []
    for kind in kinds:
        for field in dataclasses.fields(kind):
            bases: list[Any] = [base for base in kind.__mro__ if dataclasses.is_dataclass(base)]
            for base in bases:
                if text := TypeAdapter(base).json_schema()["properties"].get(field.name, {}).get("description", ""):
                    default = {one.name: one.default for one in dataclasses.fields(base)}[field.name]
                    if field.default != default and "efault" in text:
                        wrong.append(f"{kind.__name__}.{field.name}: {field.default}, described is {default}")
                    break
    assert not wrong, "\n".join(wrong)
