"""The house rules that a machine can check: imports point down, nothing is pickled, names stay where they belong.

Every rule is one test that lists all who break it.
"""

import ast
import subprocess
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from polyloom.methods import METHODS
from polyloom.tasks import TASKS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "polyloom"
# ARCHITECTURE.md, "Layers". A part may import parts of its own and of lower layers, but never in a circle.
LAYERS = {
    "errors": 1, "version": 1, "ranges": 1, "registry": 1, "recipes": 1, "io": 1, "conditions": 1, "weights": 1,
    "nn": 1, "metrics": 1, "tensor_files": 1,
    "backbones": 2, "methods": 2,
    "data": 3,
    "tasks": 4,
    "model": 5, "checkpoint": 5, "rundir": 5, "inference": 5, "training": 5,
    "config": 6, "loading": 6, "evaluate": 6, "probe": 6, "export": 6, "figures": 6, "report": 6, "workflows": 6,
    "client": 6, "serve": 6, "cli": 6, "extend": 6, "__init__": 6, "__main__": 6,
}  # fmt: skip
# Parts that must not know each other, although the layers would allow it.
STRANGERS = {
    ("methods", "backbones"),
    ("data", "backbones"),
    ("data", "methods"),
    ("tasks", "backbones"),
    ("tasks", "methods"),
}
THIRD_PARTY = {
    "yaml": {"io"},
    "pydantic": {"config", "serve", "training"},
    "httpx2": {"client", "data"},
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
# Where the name of a task may stand in code: the tasks themselves, and what names corpora or writes recipes.
NAMES_TASKS = {
    "data/catalog.py", "data/synthetic/corpus.py",
    "data/readers/columns.py",  # names of columns in files
    "cli/demo.py",  # writes recipes
    "backbones/families.py",  # a module of BERT's head
    "evaluate/comet.py",  # a key of COMET's own input
}  # fmt: skip
# Names of tensors, whose meaning a block kind alone knows.
TENSORS = {"down", "up", "up_bias", "down_bias", "norm_weight", "norm_bias"}
NAMES_TENSORS = {
    "nn/blocks.py",
    "export/adapterhub.py",  # translates them into the names of another library
    "backbones/families.py",  # linear layers of a model may be called like tensors of a bottleneck
}
RUN_FILES = {"recipe.yaml", "log.jsonl", "checkpoints", "evaluations", "probes", "tensorboard"}


@dataclass
class Source:
    """What the rules ask about a file of the package. The tree is not kept: all trees together slow Python down.

    Attributes:
        name: Path in the package.
        part: The package or module of ``LAYERS`` that the file belongs to.
        text: Its code.
        imports: Modules that are imported anywhere in it, with their dots.
    names: Names that are imported anywhere in it, each behind its module and a dot.
        strings: All string constants. Docstrings and help texts are never equal to a name.
        attributes: All names after a dot.
        variables: All names without a dot: of variables, functions and classes.
        type_checks: The classes in every ``isinstance`` and ``issubclass``, by the code of the call.
    """

    name: str
    part: str
    text: str
    imports: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    type_checks: dict[str, set[str]] = field(default_factory=dict)


def read(path: Path) -> Source:
    """Parse a file once, for all rules."""
    name, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
    source = Source(name, name.partition("/")[0].removesuffix(".py"), text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            source.imports |= {alias.name for alias in node.names}
            source.names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # `from polyloom import cli` imports a part as well.
            source.imports |= {f"polyloom.{a.name}" for a in node.names} if module == "polyloom" else {module}
            source.names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            source.strings.add(node.value)
        elif isinstance(node, ast.Attribute):
            source.attributes.add(node.attr)
        elif isinstance(node, ast.Name):
            source.variables.add(node.id)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            classes = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
            source.type_checks[ast.unparse(node)] = classes
    return source


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    found = [read(path) for path in sorted(PACKAGE.rglob("*.py"))]
    assert len(found) > 100
    return found


def test_every_part_has_a_layer(sources):
    assert {source.part for source in sources} <= LAYERS.keys()
    assert set().union(*THIRD_PARTY.values()) <= LAYERS.keys()


def test_imports_point_down_and_never_run_in_a_circle(sources):
    imports: dict[str, set[str]] = {}
    wrong = []
    for source in sources:
        for module in source.imports:
            if module.startswith("polyloom."):
                # A public name, as in `from polyloom import train`, is of the top.
                other = module.split(".")[1] if module.split(".")[1] in LAYERS else "__init__"
                if LAYERS[other] > LAYERS[source.part] or {(source.part, other), (other, source.part)} & STRANGERS:
                    wrong.append(f"{source.name} imports {module}")
                if other != source.part:
                    imports.setdefault(source.part, set()).add(other)
    assert not wrong, "\n".join(wrong)
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_imports_are_absolute(sources):
    # The other rules do not see relative imports.
    wrong = [f"{source.name} imports {m}" for source in sources for m in source.imports if m.startswith(".")]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_one_another_in_a_circle(sources):
    # Also inside functions: two modules that need each other cannot be read one after the other.
    files = {f"polyloom.{source.name.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}": source
             for source in sources}  # fmt: skip
    left = {}
    for module, source in files.items():
        # `from package import module` imports a module, `from module import name` the one before the dot.
        targets = {name if name in files else name.rpartition(".")[0] for name in source.names}
        left[module] = (targets & files.keys()) - {module}
    while leaves := {module for module, targets in left.items() if not targets & left.keys()}:
        left = {module: targets for module, targets in left.items() if module not in leaves}
    # What is left are circles, and what imports them.
    while roots := left.keys() - {target for targets in left.values() for target in targets}:
        left = {module: targets for module, targets in left.items() if module not in roots}
    wrong = [f"{module} imports {', '.join(targets & left.keys())}" for module, targets in left.items()]
    assert not wrong, "\n".join(wrong)


def test_libraries_are_imported_by_their_parts_only(sources):
    wrong = []
    for source in sources:
        libraries = {module.partition(".")[0] for module in source.imports}
        forbidden = {library for library in libraries & THIRD_PARTY.keys() if source.part not in THIRD_PARTY[library]}
        wrong += [f"{source.name} imports {library}" for library in forbidden]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_unpickled_and_no_foreign_code_is_run(sources):
    wrong = []
    for source in sources:
        libraries = {module.partition(".")[0] for module in source.imports}
        wrong += [f"{source.name} imports {name}" for name in libraries & {"pickle", "dill", "joblib", "marshal"}]
        wrong += [f"{source.name}: .{name}" for name in source.attributes & {"exec", "eval_js", "load_module"}]
        # With a dot, `eval` and `compile` are torch's and re's; without, they run strings.
        wrong += [f"{source.name}: {name}" for name in source.variables & {"exec", "eval", "compile"}]
        if "torch.load" in source.text:
            wrong.append(f"{source.name}: torch.load")
        if source.text.count("trust_remote_code") != source.text.count("trust_remote_code=False"):
            wrong.append(f"{source.name}: trust_remote_code is not False")
    assert not wrong, "\n".join(wrong)


def test_tasks_are_named_in_their_own_files_only(sources):
    names = {name + end for name in TASKS for end in ("", "/")}
    others = [source for source in sources if source.part != "tasks" and source.name not in NAMES_TASKS]
    wrong = [f"{source.name}: {name}" for source in others for name in source.strings & names]
    assert not wrong, "\n".join(wrong)


def test_methods_are_asked_what_they_can_do_not_what_they_are(sources):
    methods = {name for method in METHODS.values() for name in (method.__name__, method.config_type.__name__)}
    methods |= {"AdapterMethod", "StackedMethod", "ExportedAdapters"}
    wrong = []
    for source in sources:
        if source.part != "methods":
            wrong += [f"{source.name}: {code}" for code, classes in source.type_checks.items() if classes & methods]
    assert not wrong, "\n".join(wrong)


def test_tensors_of_blocks_are_named_by_their_kind_only(sources):
    others = [source for source in sources if source.name not in NAMES_TENSORS]
    wrong = [f"{source.name}: {name}" for source in others for name in source.strings & TENSORS]
    assert not wrong, "\n".join(wrong)


def test_files_of_a_run_are_named_by_the_run_directory_only(sources):
    others = [source for source in sources if source.name != "rundir.py" and source.part != "cli"]
    wrong = [f"{source.name}: {name}" for source in others for name in source.strings & RUN_FILES]
    assert not wrong, "\n".join(wrong)


def test_no_large_file_is_part_of_the_repository():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    sizes = {name: (ROOT / name).stat().st_size for name in names.split("\0") if name and (ROOT / name).exists()}
    assert sizes
    wrong = [f"{name}: {size:,} bytes" for name, size in sizes.items() if size > 1_000_000]
    assert not wrong, "\n".join(wrong)
