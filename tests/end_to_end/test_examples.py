"""The example of a language model, command by command, with a smaller model in the Hub's place."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from polyloom.evaluate.matrix import Matrix
from tests.end_to_end.test_first_hour import hub_cache
from tests.tiny_decoder import decoder_recipe, line

RECIPE = Path(__file__).parents[2] / "examples" / "swahili.yaml"
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


def test_a_language_model_learns_a_language_and_answers(tmp_path, cache):
    shutil.copy(RECIPE, tmp_path)
    (tmp_path / "text.txt").write_text("".join(f"{seed} {line('aa', seed)}\n" for seed in range(400)))
    talks = [{"prompt": f"{seed} {line('aa', seed)}", "completion": line("aa", seed + 1)} for seed in range(60)]
    (tmp_path / "conversations.jsonl").write_text("".join(f"{json.dumps(talk)}\n" for talk in talks))
    changed = {
        "-o runs": "stages.languages.train.steps=6 stages.tasks.train.steps=4 train.max_length=64 -o runs",
        "chat/sw": "chat/sw --max-new-tokens 8",
    }
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    for command in re.findall(r"^#   (.+)", RECIPE.read_text(), flags=re.MULTILINE):
        for part, other in changed.items():
            command = command.replace(part, other)  # noqa: PLW2901
        shell = ["bash", "-o", "pipefail", "-c", command]
        done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert "polyloom generate" in command
    assert done.stdout.endswith("\n")
    assert "arbitrary" not in done.stderr, "what answers was trained"
    page = (tmp_path / "swahili.html").read_text()
    assert "No examples of" not in page
    assert all(f"<b>{condition}</b>" in page for condition in ("lm/sw", "chat/sw"))
    matrix = Matrix.read(tmp_path / "runs" / "swahili" / "evaluations" / "test.json")
    assert {str(condition) for condition in matrix.results} == {"lm/sw", "chat/sw"}
    assert not any(result.zero_shot for result in matrix.results.values())
