"""The examples of language models, command by command, with a smaller model in the Hub's place."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import transformers

from polyloom.evaluate.matrix import Matrix
from tests.end_to_end.test_first_hour import hub_cache, run_here, script
from tests.shared import EXAMPLES
from tests.tiny_decoder import decoder_recipe, line

RECIPE = EXAMPLES / "swahili.yaml"
pytestmark = pytest.mark.nightly
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + '\n' + message['content'] + '<|endoftext|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
)


@pytest.fixture
def cache(tmp_path) -> Path:
    """A cache of the Hub with a tiny decoder that has a chat template, under the name in the recipe."""
    decoder_recipe(tmp_path / "made")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "made" / "decoder")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "made" / "decoder")
    (name,) = re.findall(r"name: (HuggingFaceTB/[\w.-]+)", RECIPE.read_text())
    return hub_cache(tmp_path / "hf", tmp_path / "made" / "decoder", name)


def run(command: str, folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, as a user does."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    shell = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done


def test_a_language_model_learns_a_language_and_answers(tmp_path, cache):
    shutil.copy(RECIPE, tmp_path)
    (tmp_path / "text.txt").write_text("".join(f"{seed} {line('aa', seed)}\n" for seed in range(400)))
    talks = [{"prompt": f"{seed} {line('aa', seed)}", "completion": line("aa", seed + 1)} for seed in range(60)]
    (tmp_path / "conversations.jsonl").write_text("".join(f"{json.dumps(talk)}\n" for talk in talks))
    changed = {
        "-o runs": "stages.languages.train.steps=6 stages.tasks.train.steps=4 train.max_length=64 -o runs",
        "chat/sw": "chat/sw --max-new-tokens 8",
    }
    for command in re.findall(r"^#   (.+)", RECIPE.read_text(), flags=re.MULTILINE):
        for part, other in changed.items():
            command = command.replace(part, other)  # noqa: PLW2901
        done = run(command, tmp_path, cache)
    assert "polyloom generate" in command
    assert done.stdout.endswith("\n")
    assert "arbitrary" not in done.stderr, "what answers was trained"
    page = (tmp_path / "swahili.html").read_text()
    assert "No examples of" not in page
    assert all(f"<b>{condition}</b>" in page for condition in ("lm/sw", "chat/sw"))
    matrix = Matrix.read(tmp_path / "runs" / "swahili" / "evaluations" / "test.json")
    assert {str(condition) for condition in matrix.results} == {"lm/sw", "chat/sw"}
    assert not any(result.zero_shot for result in matrix.results.values())


def test_a_language_model_gets_a_lora_for_every_language(tmp_path, cache, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache / "hub"))  # as if just imported
    recipe = (EXAMPLES / "languages.yaml").read_text()
    short = recipe.replace("steps: 1000", "steps: 4").replace("max_length: 512", "max_length: 64")
    assert short != recipe
    (tmp_path / "languages.yaml").write_text(short)
    for folder, first, count in (("text", 0, 120), ("held-out", 200, 10)):
        (tmp_path / folder).mkdir()
        for language, made in zip(("sw", "ha", "yo", "sn"), ("aa", "bb", "cc", "aa"), strict=True):
            lines = (f"{language} {seed} {line(made, seed)}\n" for seed in range(first, first + count))
            (tmp_path / folder / f"{language}.txt").write_text("".join(lines))
    printed = []
    for command in script("languages.sh"):
        fewer = command.replace("max-new-tokens 40", "max-new-tokens 4").replace(
            "max_new_tokens=40", "max_new_tokens=4"
        )
        fewer = fewer.replace("-o runs/with-sn", "--steps 2 -o runs/with-sn")
        if fewer.startswith("python -c "):
            exec(shlex.split(fewer)[2], {})
            printed.append(capsys.readouterr().out)
        else:
            printed.append(run_here(fewer))
    _, plan, _, table, text, both, lora, _, added = printed
    assert "hyper-stack" in plan
    assert "bits" in table
    assert text.endswith("\n")
    assert len(ast.literal_eval(both)) == 2
    assert lora.strip() == "lora-yo"
    assert (tmp_path / "lora-yo" / "adapter_config.json").exists()
    assert added.endswith("\n")
