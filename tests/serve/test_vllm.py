"""vLLM serves the LoRAs of a run: generated when they are asked for, token for token what the run itself writes."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyloom.conditions import Condition
from polyloom.inference.generate import continue_prompts
from polyloom.rundir import RunDir
from polyloom.workflows.add_language import write_extended_run
from polyloom.workflows.run import Run, load
from polyloom.workflows.train import train
from tests.serve.test_web import Served
from tests.shared import free_port
from tests.tiny_decoder import decoder_recipe

PYTHON = os.environ.get("POLYLOOM_VLLM_PYTHON")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON, reason="POLYLOOM_VLLM_PYTHON is not set: see CONTRIBUTING.md"),
]
LANGUAGES, TOKENS, END = 200, 8, 0
PROMPTS = ("ba do fi", "lem ko gu", "sat")


class Vllm:
    """A server of vLLM with the plug-in."""

    def __init__(self, decoder: Path, polyloom: str) -> None:
        self.port = free_port()
        settings = {
            "POLYLOOM_URL": polyloom, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_PLUGINS": "polyloom",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        options = {
            "served-model-name": "base", "max-lora-rank": 16, "max-loras": 4, "max-cpu-loras": 16, "dtype": "float32",
            "port": self.port, "max-model-len": 64,
        }  # fmt: skip
        listed = [f"--{name}={value}" for name, value in options.items()]
        command = [str(Path(str(PYTHON)).with_name("vllm")), "serve", str(decoder), *listed]
        self.process = subprocess.Popen(
            [*command, "--enable-lora", "--enforce-eager"], env=kept | settings, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        for _ in range(600):
            assert self.process.poll() is None, "vLLM ended"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health"):
                return
            time.sleep(0.5)
        raise AssertionError("vLLM was never ready")

    def complete(self, model: str, tokens: list[int]) -> list[int] | int:
        """Return the tokens that follow, or the status of an error."""
        body = {"model": model, "prompt": tokens, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return [token for token in json.load(answer)["choices"][0]["token_ids"] if token != END]
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def run(place) -> Run:
    """A run that has learnt two languages, with many more of random embeddings."""
    made = train(decoder_recipe(place, steps=60), place / "small")
    names = [f"l{number}" for number in range(LANGUAGES)]
    torch.manual_seed(0)
    for name in names:
        made.model.method.add_language(name)
    extended = replace(made.loaded, trained_on=[*made.trained_on, *(f"lm/{name}" for name in names)])
    write_extended_run(extended, RunDir(place / "run"), {}, languages=(*made.recipe.languages, *names))
    return load(place / "run")


@pytest.fixture(scope="module")
def tokens(run):
    """The tokens of every prompt."""
    return {prompt: run.model.task("lm").prompt_tokens(prompt, run.predictor.tokenizer) for prompt in PROMPTS}


@pytest.fixture(scope="module")
def expected(run, tokens):
    """What the run itself writes, for every language and prompt."""
    asked = [(prompt, f"lm/l{number}") for number in range(LANGUAGES) for prompt in PROMPTS]
    given = [(Condition.parse(name), tokens[prompt]) for prompt, name in asked]
    written = continue_prompts(run.predictor, given, max_new_tokens=TOKENS)
    assert len(set(map(tuple, written))) > 40, "languages differ"
    return dict(zip(asked, written, strict=True))


@pytest.fixture(scope="module")
def polyloom(run, place):
    served = Served(run.path, "--adapters", place / "files", "--base-name", "base")
    yield served
    served.stop()


@pytest.fixture(scope="module")
def vllm(place, polyloom):
    server = Vllm(place / "decoder", polyloom.url)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ask(tokens, vllm):
    """Ask vLLM for a prompt in a language."""
    return lambda asked: vllm.complete(asked[1], tokens[asked[0]])


def test_sixteen_languages_are_token_for_token_those_of_the_run(ask, expected):
    asked = [(prompt, f"lm/l{number}") for number in range(16) for prompt in PROMPTS]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, asked)) == [expected[one] for one in asked]


def test_an_unknown_language_is_not_found(vllm):
    assert vllm.complete("lm/xx", [5]) == 404
    assert vllm.complete("nonsense", [5]) == 404


def test_many_languages_with_room_for_few(ask, expected):
    draw = random.Random(0)
    weights = [1 / (rank + 1) for rank in range(LANGUAGES - 1)]  # the last one is for later
    names = [f"lm/l{number}" for number in draw.choices(range(LANGUAGES - 1), weights=weights, k=400)]
    asked = [(draw.choice(PROMPTS), name) for name in names]
    assert len(set(names)) > 16
    seconds = {}
    with ThreadPoolExecutor(8) as pool:
        for kind, rows in {"zipf": asked, "one": [(prompt, "lm/l0") for prompt, _ in asked]}.items():
            start = time.monotonic()
            found = list(pool.map(ask, rows))
            seconds[kind] = time.monotonic() - start
            assert found == [expected[one] for one in rows]
    print(f"throughput of {len(set(names))} languages against one: {seconds['one'] / seconds['zipf']:.2f}")


def test_a_killed_adapter_server_harms_nobody_who_has_an_adapter(ask, expected, polyloom):
    known = [(prompt, f"lm/l{number}") for number in range(16) for prompt in PROMPTS]
    children = subprocess.run(["pgrep", "-P", str(polyloom.process.pid)], capture_output=True, text=True, check=True)
    for process in (polyloom.process.pid, *map(int, children.stdout.split())):
        os.kill(process, signal.SIGKILL)
    polyloom.process.wait()
    new = (PROMPTS[0], f"lm/l{LANGUAGES - 1}")
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(ask, known)
        assert isinstance(ask(new), int), "nobody can generate it"
        assert list(answers) == [expected[one] for one in known]
    polyloom.start()
    assert ask(new) == expected[new]
