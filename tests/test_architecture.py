"""The house rules that a machine can check: imports point down, files and functions stay short, nothing is pickled."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "polyloom"
FILES = sorted(PACKAGE.rglob("*.py"))
# ARCHITECTURE.md, "Layers". A part may import parts of lower layers, and itself.
LAYERS = {
    "errors": 0, "version": 0, "ranges": 0,
    "registry": 1, "recipes": 1, "io": 1, "conditions": 1, "weights": 1,
    "nn": 2, "metrics": 2, "tensor_files": 2,
    "backbones": 3, "methods": 3, "data": 3,
    "tasks": 4,
    "model": 5,
    "checkpoint": 6,
    "inference": 7, "rundir": 7,
    "evaluate": 8, "probe": 8, "export": 8, "client": 8,
    "training": 9, "figures": 9,
    "config": 10,
    "loading": 11,
    "report": 12,
    "workflows": 13,
    "serve": 14,
    "cli": 15,
    "__init__": 16, "__main__": 16,
}  # fmt: skip
THIRD_PARTY = {
    "yaml": {"io"},
    "pydantic": {"config", "serve"},
    "fastapi": {"serve"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "ray": {"serve"},
    "opentelemetry": {"serve"},
    "prometheus_client": {"serve"},
    "typer": {"cli"},
    "rich": {"cli"},
    "transformers": {"backbones", "data"},
    "huggingface_hub": {"export", "io"},
    "obstore": {"io"},
    "datasets": {"data"},
    "tokenizers": {"data"},
    "sentencepiece": {"data"},
    "sacrebleu": {"metrics"},
    "scipy": {"probe"},
    "umap": {"probe"},
    "matplotlib": {"figures"},
    "jinja2": {"report"},
    "lm_eval": {"workflows", "cli"},
    "datatrove": {"workflows"},
    "safetensors": {"tensor_files", "export", "io"},
    "torch": {
        *("conditions", "weights", "nn", "backbones", "methods", "tasks", "model", "checkpoint", "inference", "rundir"),
        *("tensor_files", "training", "evaluate", "export", "probe", "config", "loading", "workflows", "serve"),
    },
}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    part = part_of(path)
    for name in imports(path):
        if name.startswith("polyloom."):
            other = name.split(".")[1]
            assert other == part or LAYERS[other] < LAYERS[part], f"{part} imports {other}"
        elif (package := name.split(".")[0]) in THIRD_PARTY:
            assert part in THIRD_PARTY[package], f"{part} imports {package}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{path.name}: {node.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_is_unpickled_and_no_foreign_code_is_run(path):
    names = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
    assert not names & {"exec", "eval_js", "load_module"}
    assert not imports(path) & {"pickle", "dill", "joblib"}
    text = path.read_text()
    assert "torch.load" not in text
    assert text.count("trust_remote_code") == text.count("trust_remote_code=False")


def test_every_part_has_a_layer():
    assert {part_of(path) for path in FILES} <= LAYERS.keys()


# Where the name of a task may stand in code: the tasks themselves, and what names corpora or writes recipes.
NAMES_TASKS = {
    "data/catalog.py", "data/synthetic/corpus.py",
    "data/readers/columns.py",  # names of columns in files
    "cli/demo.py",  # writes recipes
    "backbones/families.py",  # a module of BERT's head
    "evaluate/comet.py",  # a key of COMET's own input
}  # fmt: skip


def literals(path: Path) -> set[str]:
    """All strings of a file; docstrings and help texts are never equal to a name."""
    return {
        n.value
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_tasks_are_named_in_their_own_files_only(path):
    from polyloom.tasks import TASKS

    if part_of(path) != "tasks" and str(path.relative_to(PACKAGE)) not in NAMES_TASKS:
        assert not literals(path) & {name + end for name in TASKS for end in ("", "/")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_methods_are_asked_what_they_can_do_not_what_they_are(path):
    from polyloom.methods import METHODS

    classes = {name for method in METHODS.values() for name in (method.__name__, method.config_type.__name__)}
    classes |= {"AdapterMethod", "StackedMethod", "ExportedAdapters"}
    if part_of(path) == "methods":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            assert not names & classes


# Names of tensors, whose meaning a block kind alone knows; formats of other libraries translate them.
TENSORS = {"down", "up", "up_bias", "down_bias", "norm_weight", "norm_bias"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_tensors_of_blocks_are_named_by_their_kind_only(path):
    # Linear layers of a model may be called like tensors of a bottleneck, so families may name them.
    if str(path.relative_to(PACKAGE)) not in ("nn/blocks.py", "export/adapterhub.py", "backbones/families.py"):
        assert not literals(path) & TENSORS


def test_no_large_file_is_part_of_the_repository():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    sizes = {name: (ROOT / name).stat().st_size for name in names.split("\0") if name and (ROOT / name).exists()}
    assert sizes
    assert [name for name, size in sizes.items() if size > 1_000_000] == []
