"""``polyloom train``, ``evaluate`` and ``compare`` as their users meet them."""

import io
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from polyloom.cli import main
from polyloom.cli.render import train as train_view
from polyloom.evaluate.matrix import MARK
from polyloom.io.sealed import read_sealed, seal
from polyloom.training.events import Event, StepTaken
from tests.reliability.forks import together
from tests.shared import Done, Run, start_command
from tests.tiny_run import tiny_recipe

GUIDE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], datasets: Path, tmp_path: Path) -> Run:
    """Run the command in this process, which has torch imported already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYLOOM_CACHE", str(datasets))

    def run_here(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["polyloom", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run_here


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps, a checkpoint at every third."""
    return tiny_recipe(tmp_path_factory.mktemp("world"), train={"steps": 6, "evaluate_every": 3})


@pytest.fixture
def trained(run: Run, recipe: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A run that knows the tags of ``aa`` and ``bb``; trained once."""
    folder: Path | None = getattr(request.module, "_trained", None)
    if folder is None:
        folder = tmp_path_factory.mktemp("runs") / "trained"
        assert run("train", recipe, "-o", folder, "train.steps=200", "train.evaluate_every=null").returncode == 0
        request.module._trained = folder
    return folder


def test_stdout_is_the_checkpoint_and_nothing_else(run, recipe, tmp_path):
    done = run("train", recipe, "-o", tmp_path / "run")
    assert done.returncode == 0
    path = Path(done.stdout.removesuffix("\n"))
    assert path.parent == tmp_path / "run" / "checkpoints"
    assert path.is_dir()


def test_before_the_first_step_it_says_what_learns_and_from_what(run, recipe, tmp_path):
    said = run("train", recipe, "-o", tmp_path / "run").stderr
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said), "control characters in a log"
    assert max(map(len, said.splitlines())) > 100, "a log wraps no lines"
    head, _, tail = said.partition("joint: step 6 of 6; loss ")
    assert re.search(r"stage joint +trainable +of +tensors", head)
    assert re.search(r"backbone +frozen +\d\d\.\dk", head)
    assert re.search(r"backbone\.head +(\S+) +\1 ", head), "all of it is trained"
    assert re.search(r"hypernetwork +19.6k +19.6k", head)
    assert re.search(r"dataset +examples +share +epochs", head)
    assert re.search(r"pos/aa +200 +20.0 % +0\.\d\d", head)
    assert "Standard deviation of the adapters' weights at the start: " in head
    assert re.match(r"\d\.\d{3} nats; .* tokens/s", tail)
    seen = sum(int(count) for count in re.findall(r"(?:mlm|pos)/[abc]{2} (\d+)", tail.splitlines()[0]))
    assert seen == 6 * 32
    number = r"\d+\.\d\d"
    scores = rf"pos/aa accuracy {number} · pos/bb accuracy {number}"
    assert re.search(rf"Validation at step 6: {scores}; selection score {number} \(mean; higher is better\)", tail)


def test_a_run_goes_on_with_the_same_command_only(run, recipe, tmp_path):
    first = run("train", recipe, "-o", tmp_path / "run")
    again = run("train", recipe, "-o", tmp_path / "run")
    assert again.stdout == first.stdout
    assert "Resuming from step-00000006." in again.stderr
    assert "Stage joint is already finished." in again.stderr
    other = run("train", recipe, "optim.lr=1e-4", "-o", tmp_path / "run")
    assert (other.returncode, other.stdout) == (1, "")
    assert "optim.lr: was 0.01 when this run began, now 0.0001." in other.stderr


@pytest.mark.parametrize(
    ("at", "says"), [(5, "checkpoint is of step 3. To resume from there"), (2, "no checkpoint was written yet")]
)
def test_an_interrupted_run_says_how_to_go_on(run, recipe, tmp_path, monkeypatch, at, says):
    update = train_view.TrainingProgress.update

    def interrupt(self: train_view.TrainingProgress, event: Event) -> None:
        update(self, event)
        if isinstance(event, StepTaken) and event.step == at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(train_view.TrainingProgress, "update", interrupt)
        done = run("train", recipe, "-o", tmp_path / "run")
    assert (done.returncode, done.stdout) == (130, "")
    assert f"Interrupted at step {at}; " in done.stderr
    assert says in done.stderr
    assert done.stderr.splitlines()[-1].strip() == f"polyloom train {recipe} -o {tmp_path / 'run'}"
    resumed = run("train", recipe, "-o", tmp_path / "run")
    assert resumed.returncode == 0
    assert ("Resuming from step-00000003." in resumed.stderr) == (at == 5)
    steps = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [e["step"] for e in steps if e["event"] == "step"] == [*range(1, at + 1), *range(4 if at == 5 else 1, 7)]


def test_curves_for_tensorboard(run, recipe, tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "run"
    assert run("train", recipe, "-o", folder, "--tensorboard").returncode == 0
    shutil.rmtree(folder / "checkpoints" / "step-00000006")
    assert run("train", recipe, "-o", folder, "--tensorboard").returncode == 0
    curves = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    losses = {e["step"]: e["loss"] for e in log if e["event"] == "step"}
    assert {e.step: e.value for e in curves.Scalars("loss")} == pytest.approx(losses)
    assert [e.step for e in curves.Scalars("loss")] == [1, 2, 3, 4, 5, 6], "repeated steps replace their first tries"
    assert [e.step for e in curves.Scalars("validation/pos/aa/accuracy")] == [3, 6]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    absent = run("train", recipe, "-o", tmp_path / "other", "--tensorboard")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "pip install 'polyloom[track]'" in absent.stderr


def test_on_a_terminal_it_is_drawn_and_the_cursor_comes_back(recipe, tmp_path, datasets, monkeypatch):
    for name, value in {"POLYLOOM_CACHE": str(datasets), "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    leader, follower = pty.openpty()
    drawn = b""
    command = ("train", recipe, "-o", tmp_path / "run")
    with start_command(*command, stdout=subprocess.PIPE, stderr=follower) as process:
        os.close(follower)
        while chunk := _read(leader):
            drawn += chunk
        os.close(leader)
        said, _ = process.communicate()
    assert process.returncode == 0, drawn
    assert said == f"{tmp_path / 'run' / 'checkpoints' / 'step-00000006'}\n"
    text = drawn.decode()
    assert "━" in text
    assert "6/6" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # how Linux says that the other side is closed
        return b""


@pytest.mark.nightly
def test_of_several_processes_of_torchrun_one_talks(recipe, tmp_path, datasets):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "polyloom", "train", str(recipe), "-o", str(tmp_path / "run")]
    environment = os.environ | {"POLYLOOM_CACHE": str(datasets), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'run' / 'checkpoints' / 'step-00000006'}\n"
    assert done.stderr.count("Validation at step 6") == 1


def test_of_several_processes_one_talks(recipe, tmp_path, datasets, monkeypatch):
    """As above, in two forked processes that a launcher would have started."""
    monkeypatch.setenv("POLYLOOM_CACHE", str(datasets))

    def work(process_group):
        monkeypatch.setattr("polyloom.training.distributed.init_distributed", lambda: nullcontext(process_group))
        monkeypatch.setattr(sys, "argv", ["polyloom", "train", str(recipe), "-o", str(tmp_path / "run")])
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return out.getvalue(), err.getvalue()

    (stdout, stderr), silent = together(work, tmp_path / "processes", size=2)
    assert stdout == f"{tmp_path / 'run' / 'checkpoints' / 'step-00000006'}\n"
    assert stderr.count("Validation at step 6") == 1
    assert silent == ("", "")


@pytest.mark.parametrize("command", ["train", "evaluate", "compare", "predict"])
def test_help_has_an_example_and_imports_nothing_heavy(command):
    code = (
        "import sys\nfrom polyloom.cli import app\n"
        f"try: app(['{command}', '--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'rich.console') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Example: " in done.stdout
    assert f"polyloom {command} " in done.stdout


def test_the_matrix_marks_what_was_never_learnt(run, trained):
    done = run("evaluate", trained)
    assert done.returncode == 0
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    for language in ("aa", "bb"):
        assert lines[language].split()[-2] in ("100.00", "99.44"), "looks at the language, else one of them is near 0"
    assert lines["cc"].endswith(MARK)
    assert f"{MARK} zero-shot:" in done.stdout
    assert "pos/aa: accuracy " in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_all_formats_say_the_same(run, trained, tmp_path):
    found = json.loads(run("evaluate", trained, "--format", "json", "--bootstrap", "--baseline").stdout)
    values = {(s["condition"], s["metric"]): s for s in found["scores"]}
    assert len(values) == 9, "tags have two metrics"
    for one in values.values():
        assert one["low"] <= one["value"] <= one["high"]
    assert values["pos/cc", "accuracy"]["zero_shot"] is True
    assert values["pos/aa", "f1"]["majority"] is None
    assert values["pos/aa", "accuracy"]["majority"] == pytest.approx(27.37, abs=0.01)
    header, *rows = (line.split("\t") for line in run("evaluate", trained, "--format", "tsv").stdout.splitlines())
    for row in (dict(zip(header, row, strict=True)) for row in rows):
        assert float(row["value"]) == pytest.approx(values[row["condition"], row["metric"]]["value"], rel=1e-5)
        assert row["signature"] == values[row["condition"], row["metric"]]["signature"]
    done = run("evaluate", trained, "--format", "markdown", "--signatures", "-o", tmp_path / "matrix.md")
    assert done.stdout == ""
    text = (tmp_path / "matrix.md").read_text()
    assert (
        f"| cc | {values['mlm/cc', 'perplexity']['value']:.2f} | {values['pos/cc', 'accuracy']['value']:.2f}{MARK} "
        f"| {values['pos/cc', 'f1']['value']:.2f}{MARK} |" in text
    )
    assert values["pos/aa", "accuracy"]["signature"] in text


def test_part_of_a_matrix_does_not_replace_the_whole(run, trained):
    stored = trained / "evaluations" / "test.json"
    run("evaluate", trained)
    whole = json.loads(stored.read_text())
    done = run("evaluate", trained, "--tasks", "pos", "--languages", "aa,cc")
    assert "mlm" not in done.stdout
    assert not re.search("^bb", done.stdout, re.MULTILINE)
    assert json.loads(stored.read_text()) == whole
    run("evaluate", trained, "--split", "validation")
    assert json.loads((trained / "evaluations" / "validation.json").read_text())["results"].keys() == {
        "pos/aa",
        "pos/bb",
    }


def test_runs_are_compared_cell_by_cell(run, recipe, trained, tmp_path):
    other = tmp_path / "short"
    run("train", recipe, "-o", other)
    run("evaluate", trained)
    missing = run("compare", trained, other)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"Make them: polyloom evaluate {other}" in missing.stderr
    run("evaluate", other, "--tasks", "pos")
    done = run("compare", trained, other)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("pos/aa")]
    assert [line.split()[1] for line in lines] == ["accuracy", "f1"]
    assert all(line.endswith("better") for line in lines)
    assert "Only A was scored on: mlm/aa, mlm/bb, mlm/cc" in done.stdout
    found = json.loads(run("compare", other, trained, "--format", "json").stdout)
    verdicts = {(one["condition"], one["metric"]): one["verdict"] for one in found["differences"]}
    assert verdicts["pos/aa", "accuracy"] == verdicts["pos/aa", "f1"] == "worse"
    same = run("compare", trained, trained, "--format", "tsv").stdout.splitlines()[1:]
    assert {line.split("\t")[-1] for line in same} == {"not significant"}
    assert "| pos/aa | accuracy |" in run("compare", trained, other, "--format", "markdown").stdout


def test_scores_of_an_older_checkpoint_are_not_compared(run, recipe, trained, tmp_path):
    run("evaluate", trained)
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    stored = copy / "evaluations" / "test.json"
    stored.write_text(seal(read_sealed(stored).replace("step-00000200", "step-00000100")))
    done = run("compare", copy, trained)
    assert done.returncode == 1
    assert "but the run's checkpoint is now step-00000200" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["train", "absent.yaml", "-o", "x"], 1, "absent.yaml"),
        (["train", "RECIPE"], 2, "Missing option '-o'"),
        (["train", "RECIPE", "train.stps=5", "-o", "x"], 1, "train.stps: unknown key. Did you mean 'steps'?"),
        (["evaluate", "absent"], 1, "no run here"),
        (["evaluate", "TRAINED", "--languages", "aaa"], 1, "Did you mean 'aa'? Known: aa, bb, cc."),
        (["evaluate", "TRAINED", "--tasks", "ner"], 1, "'ner' is not in data.test of this run. Known: mlm, pos."),
        (["evaluate", "TRAINED", "--split", "train"], 2, "Invalid value for '--split'"),
        (["compare", "absent", "TRAINED"], 1, "no checkpoint here"),
    ],
)
def test_mistakes_are_one_paragraph_and_a_code(run, places, arguments, code, says):
    done = run(*(places.get(argument, argument) for argument in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def places(recipe: Path, trained: Path) -> dict[str, Path]:
    return {"RECIPE": recipe, "TRAINED": trained}


def test_the_guide_is_true(run, recipe, tmp_path, monkeypatch):
    """Its recipe is one, and its commands work, on the tiny world instead of English and Turkish."""
    (tmp_path / "shown.yaml").write_text("".join(re.findall(r"```yaml\n(.*?)```", GUIDE, flags=re.DOTALL)))
    assert run("config", "check", "shown.yaml").returncode == 0
    shutil.copy(recipe, "recipe.yaml")
    lines = [line for block in re.findall(r"```bash\n(.*?)```", GUIDE, flags=re.DOTALL) for line in block.splitlines()]
    assert len(lines) > 12
    for line in lines:
        given, _, command = line.partition("  #")[0].rpartition(" | ")
        given, command = (re.sub(r"\btr\b", "cc", part) for part in (given, command))
        arguments, text = shlex.split(command), shlex.split(given)[-1] if given else ""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        if arguments[0] == "polyloom":
            done = run(*arguments[1:])
            assert done.returncode == 0, f"{line}: {done.stderr}"
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    exec(compile(re.sub(r"\btr\b", "cc", code), "guide", "exec"), {})
