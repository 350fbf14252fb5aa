"""The command line as its users meet it: in a process of its own."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import polyloom
from polyloom.cli import main
from polyloom.io.yaml import parse_yaml
from polyloom.recipes import find_file, shipped_recipes

ROOT = Path(__file__).parents[2]
RECIPE = "hyperx/mbert-small"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def process(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "polyloom", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process, which has torch imported already."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")

    def run_here(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["polyloom", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run_here


@pytest.mark.timing
def test_help_is_fast() -> None:
    """Help takes less than twice the time of importing the library that prints it, on any machine."""

    def seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    rounds = [(seconds("-m", "polyloom", "--help"), seconds("-c", "import typer.main")) for _ in range(7)]
    help_, typer = map(min, zip(*rounds, strict=True))
    assert help_ < 2 * typer


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom polyloom.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = 'torch', 'transformers', 'pydantic', 'rich.console', 'importlib.metadata'\n"
        "print([m for m in heavy if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    [
        "plan",
        "config show",
        "config check",
        "config schema",
        *(f"list {k}" for k in ("methods", "tasks", "backbones", "recipes")),
    ],
)
def test_every_command_has_an_example(run: Run, command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.returncode == 0
    assert f"Example: polyloom {command}" in " ".join(done.stdout.split())


def test_show_prints_what_can_be_loaded_again(run: Run, tmp_path: Path) -> None:
    first = run("config", "show", RECIPE, "optim.lr=5e-5")
    assert first.returncode == 0
    assert first.stderr == ""
    assert parse_yaml(first.stdout, source="shown")["optim"]["lr"] == 5e-5
    (tmp_path / "shown.yaml").write_text(first.stdout)
    assert run("config", "show", str(tmp_path / "shown.yaml")).stdout == first.stdout


def test_check_reports_each_recipe_and_all_mistakes(run: Run, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(find_file(RECIPE).read_text().replace("schedule:", "shedule:").replace("steps:", "stps:"))
    done = run("config", "check", RECIPE, str(wrong))
    assert done.returncode == 1
    assert done.stdout == f"{RECIPE}: ok\n"
    assert f"{wrong}: 3 mistakes" in done.stderr
    assert "optim.shedule: unknown key. Did you mean 'schedule'?" in done.stderr
    assert "optim.warmup_stps: unknown key. Did you mean 'warmup_steps'?" in done.stderr
    assert "train.stps: unknown key. Did you mean 'steps'?" in done.stderr


def test_all_recipes_pass_the_check(run: Run) -> None:
    paths = sorted(shipped_recipes())
    done = run("config", "check", *paths)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{path}: ok" for path in paths]


def test_a_shipped_recipe_is_copied_once(run: Run, tmp_path: Path) -> None:
    done = run("init", RECIPE, "-o", str(tmp_path / "mine.yaml"))
    assert done.stdout == f"{tmp_path / 'mine.yaml'}\n"
    assert (tmp_path / "mine.yaml").read_text() == find_file(RECIPE).read_text()
    assert "exists already" in run("init", RECIPE, "-o", str(tmp_path / "mine.yaml")).stderr


def test_schema_is_json(run: Run) -> None:
    assert json.loads(run("config", "schema").stdout)["title"] == "Polyloom recipe"


@pytest.mark.parametrize(
    ("what", "name"), [("methods", "hyper-adapters"), ("tasks", "ner"), ("backbones", "m2m_100"), ("recipes", RECIPE)]
)
def test_lists_are_for_people_and_programs(run: Run, what: str, name: str) -> None:
    assert name in run("list", what).stdout
    assert name in json.loads(run("list", what, "--json").stdout)


def test_plan_is_for_people(run: Run) -> None:
    done = run("plan", RECIPE)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "● hyperx" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["plan", "src/polyloom/recipes/hyperx/mbert-smal.yaml"], 1, "Did you mean 'mbert-small.yaml'?"),
        (["plan", "hyperx/mbert-smal"], 1, "Did you mean 'hyperx/mbert-small'?"),
        (["init", "mini/hyprx"], 1, "Did you mean 'mini/hyperx'?"),
        (["plan", RECIPE, "method.name=hyprx"], 1, "Did you mean 'hyperx'?"),
        (["plan", RECIPE, "nonsense"], 1, "expected key.key=value"),
        (["config", "show", "docs"], 1, "cannot be read"),
        (["list", "recipes", "tests"], 1, "no recipes"),
        (["plan"], 2, "Missing argument"),
        (["plan", RECIPE, "--jsn"], 2, "No such option"),
        (["pln"], 2, "No such command"),
        (["list", "method"], 2, "No such command"),
    ],
)
def test_mistakes_are_one_paragraph_and_a_code(run: Run, arguments: list[str], code: int, says: str) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "polyloom", "list", "recipes", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "polyloom", "list", "recipes", "--json"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("polyloom: [Errno 28]")
    assert len(done.stderr.splitlines()) == 1


def test_the_module_is_the_command() -> None:
    assert process("--version").stdout == f"polyloom {polyloom.__version__}\n"


def test_the_package_offers_what_it_lists() -> None:
    for name in dir(polyloom):
        assert getattr(polyloom, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        polyloom.nonsense  # noqa: B018


def test_importing_the_package_is_light() -> None:
    seen = "[name in sys.modules for name in ('torch', 'transformers')]"
    code = f"import sys, polyloom; print({seen}, polyloom.HyperXConfig().name, {seen})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[False, False] hyperx [True, False]"


def test_lm_eval_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyloom.cli.lm_eval.find_spec", lambda _: None)
    done = run("lm-eval", "--tasks", "xnli_sw")
    assert done.returncode == 1
    assert done.stderr == "polyloom: lm-eval: the package is not installed. pip install 'polyloom[lm-eval]'\n"
