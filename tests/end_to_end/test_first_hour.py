"""README's ways from corpora to a matrix and from text files to translations, command by command, as a new user goes,
and the tutorials of the site.

What a user has from the network comes from this machine: corpora from a local server with the layout of the data root,
the backbone from a Hugging Face cache that holds another, smaller model under the name that the recipe asks for. What
a user has already, text files, are real sentences; of translation only the number of steps is smaller. CI goes the
first way with few steps and a small model; the others, and all steps, are nightly.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import huggingface_hub
import pytest
import transformers

from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.records import Bitext
from polyloom.evaluate.matrix import Matrix
from tests.shared import DATA, EXAMPLES, needs_data, polyloom

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BACKBONE = "distilbert/distilbert-base-multilingual-cased"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def mirror():
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(DATA)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def hub_cache(folder: Path, pretrained: Path, name: str = BACKBONE) -> Path:
    """A cache as `huggingface_hub` keeps it, with a model that was never downloaded."""
    repository = folder / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    shutil.copytree(pretrained, repository / "blobs")
    for file in pretrained.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    return folder


def shrink(pretrained: Path, folder: Path) -> Path:
    """Write a model with the tokenizer of another one, and with few, random weights."""
    folder.mkdir()
    config = transformers.AutoConfig.from_pretrained(pretrained)
    config.update({"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96})
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    for file in pretrained.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def block(heading: str, language: str) -> str:
    """The first block of code in a language under a heading of the README."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)
    return found[0]


@pytest.fixture(params=["here", pytest.param("bash", marks=pytest.mark.nightly)])
def shell(request, tmp_path, monkeypatch):
    """What runs a line of a shell in the test's folder: bash, or this process, which has imported torch already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("POLYLOOM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "datasets"))
    return run_here if request.param == "here" else run_bash


def run_bash(line: str) -> str:
    """Run a line as a user does; return what it prints."""
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def run_here(line: str) -> str:
    """Run a line of one command of ours, with what is piped or redirected into it and where its output goes."""
    line, _, into = line.partition(" > ")
    line, _, source = line.partition(" < ")
    before, _, command = line.rpartition(" | ")
    printed = polyloom(*shlex.split(command)[1:], stdin=Path(source).read_text() if source else run_bash(before or ":"))
    if into:
        Path(into).write_text(printed)
    return "" if into else printed


def script(name: str) -> list[str]:
    """The commands of a script in examples/."""
    return [line for line in (EXAMPLES / name).read_text().splitlines() if line and not line.startswith("#")]


def follow(commands: list[str], shell: Callable[[str], str], changed: Mapping[str, str]) -> dict[str, str]:
    """Run commands one by one, some of them changed; return what each of them printed."""
    printed = {}
    for command in commands:
        for part, other in changed.items():
            command = command.replace(part, other)  # noqa: PLW2901
        printed[command] = shell(command)
    return printed


@needs_data
@pytest.mark.parametrize(
    ("shell", "steps"), [("here", 3), pytest.param("bash", None, marks=pytest.mark.nightly)], indirect=["shell"]
)
def test_the_first_hour(pretrained, mirror, shell, tmp_path, monkeypatch, steps):
    """Three steps of a small model show that every command works; the recipes' own number shows that the runs learn."""
    fewer = {
        "train mini/hyperx-single-task": f"train mini/hyperx-single-task train.steps={steps}",
        "train mini/madx": f"train mini/madx stages.languages.train.steps={steps} stages.tasks.train.steps={steps}",
        "evaluate runs/hyperx": "evaluate runs/hyperx --languages de,tr,mt",
        "evaluate runs/madx": "evaluate runs/madx --languages de,tr,mt",
    }
    cache = hub_cache(tmp_path / "hf", shrink(pretrained, tmp_path / "small") if steps else pretrained)
    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache / "hub"))  # as if just imported
    monkeypatch.setenv("POLYLOOM_MIRROR", mirror)
    printed = follow(block("Train a tagger", "sh").strip().splitlines(), shell, fewer if steps else {})
    # A run learns, and what it learns in English holds elsewhere.
    for run in ("hyperx", "madx"):
        matrix = Matrix.read(tmp_path / "runs" / run / "evaluations" / "test.json")
        for language, share_of_most_frequent_tag in (("de", 25), ("tr", 35), ("mt", 25)):
            dataset = matrix.results[Condition("pos", language)]
            assert dataset.zero_shot
            assert steps or dataset.scores[0].value > share_of_most_frequent_tag + 10
        events = [json.loads(line) for line in (tmp_path / "runs" / run / "log.jsonl").read_text().splitlines()]
        losses = [event["losses"]["pos"] for event in events if "pos" in event.get("losses", {})]
        assert steps or losses[-1] < losses[0] / 2
    *_, table, comparison, page, tagged, exported, again = printed.values()
    assert table.startswith("| language |")
    assert "de" in comparison
    assert page.strip() == "report.html"
    words = [line.split("\t")[0] for line in tagged.strip().splitlines()]
    assert words == ["Die", "Katze", "schläft", "auf", "dem", "Sofa", "."]
    assert exported.strip() == "pos-de"
    assert again == tagged


@needs_data
@pytest.mark.nightly
@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_a_tagger_for_ten_languages(pretrained, mirror, shell, tmp_path, monkeypatch):
    shutil.copy(EXAMPLES / "tagger.yaml", tmp_path)
    monkeypatch.setenv("HF_HOME", str(hub_cache(tmp_path / "hf", pretrained)))
    monkeypatch.setenv("POLYLOOM_MIRROR", mirror)
    _, _, plan, _, table, tagged, welsh, _, _, comparison, page = follow(script("tagger.sh"), shell, {}).values()
    assert "hyper-stack" in plan
    matrix = Matrix.read(tmp_path / "runs" / "tagger" / "evaluations" / "test.json")
    assert len(matrix.results) == 10
    assert [str(name) for name, result in matrix.results.items() if not result.zero_shot] == ["pos/en"]
    assert "⁰" in table
    assert tagged.split()[::2] == ["Die", "Katze", "schläft", "auf", "dem", "Sofa", "."]
    assert json.loads(welsh)["labels"]
    assert "wo" in comparison
    assert page.strip() == "tagger.html"


def write_aligned(corpus: str, codes: tuple[str, str], path: Path) -> None:
    """Pairs of a collection as two plain files, one per language."""
    pairs = [record for record in resolve(corpus, root=DATA).records("bitext") if isinstance(record, Bitext)]
    for code, lines in zip(codes, ((p.source for p in pairs), (p.target for p in pairs)), strict=True):
        path.with_name(f"{path.name}.{code}").write_text("".join(f"{line}\n" for line in lines))


@needs_data
@pytest.mark.nightly
@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_from_text_files_to_translations(shell, tmp_path):
    files = tmp_path / "corpus"
    files.mkdir()
    for code, name in (("de", "deu"), ("nl", "nld")):
        for split, size in (("train", 2000), ("dev", 20), ("test", 5)):
            write_aligned(f"tatoeba-mt:eng-{name}/{split}[:{size}]", ("en", code), files / f"en-{code}.{split}")
    write_aligned("tatoeba-zero:deu-nld/test[:5]", ("de", "nl"), files / "de-nl.test")
    recipe = block("Translate", "yaml")
    assert (EXAMPLES / "translate.yaml").read_text() == recipe, "README and the tutorial have one recipe"
    assert script("translate.sh") == block("Translate", "sh").strip().splitlines()
    for here, smaller in (("steps: 2000", "steps: 20"), ("evaluate_every: 500", "evaluate_every: 10")):
        assert here in recipe
        recipe = recipe.replace(here, smaller)
    (tmp_path / "translate.yaml").write_text(recipe)
    printed = follow(script("translate.sh"), shell, {})
    vocabulary, _, checkpoint, table, translation, _ = printed.values()
    assert re.search(r"^nl +[\d,]+ .* 0\.0\d+ %$", vocabulary, flags=re.MULTILINE)
    assert (tmp_path / checkpoint.strip()).is_dir()
    assert "mt bleu" in table
    assert re.search(r"^X→Y⁰ +1 ", table, flags=re.MULTILINE)
    assert translation.endswith("\n")
    given, gotten = (files / "en-nl.test.nl").read_text(), (tmp_path / "translated.en").read_text()
    assert gotten.count("\n") == given.count("\n") == 5
    events = [json.loads(line) for line in (tmp_path / "runs" / "mt" / "log.jsonl").read_text().splitlines()]
    first, *_, last = (event["scores"]["mt/en/de"] for event in events if event["event"] == "validation")
    assert last < first, "it learns"
