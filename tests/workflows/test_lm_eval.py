"""The real lm-eval with a run: its numbers are our own, and no language takes the place of another."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from polyloom.workflows.run import Run
from polyloom.workflows.train import train
from tests.tiny_decoder import decoder_recipe, line

ROOT = Path(__file__).parents[2]
LANGUAGES = ("aa", "bb")
PAIRS = [  # contexts and what follows them; the tokens of both where white space or a token stands across
    ("ba do", " fi gu", "ba do", " fi gu"),
    ("ba do ", "fi gu", "ba do", " fi gu"),
    ("", "ba do", "", "ba do"),
    ("ba d", "o fi", "ba d", "o fi"),
    ("ko", " gu", "ko", " gu"),
    ("lem " * 60, "mur", "lem " * 59 + "lem", " mur"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A run with `lm` and `choice`, and tasks of lm-eval with its test data. After few steps nothing is certain."""
    folder = tmp_path_factory.mktemp("lm_eval")
    (folder / "tasks").mkdir()
    recipe = json.loads(decoder_recipe(folder, steps=40).read_text())
    recipe["tasks"]["choice"] = {}
    for x in LANGUAGES:
        for split, seeds in {"train": range(0, 40, 2), "test": range(1, 41, 2)}.items():
            write_lines(folder / f"choices-{x}-{split}", [question(x, seed) for seed in seeds])
            recipe["data"][split][f"choice/{x}"] = f"{folder}/choices-{x}-{split}.jsonl"
        texts = (folder / f"{x}-test.txt").read_text().splitlines()
        write_lines(folder / f"texts-{x}", [{"text": text} for text in [*texts[:10], " ".join(texts[10:16])]])
        write_task(
            folder / "tasks" / f"rolling_{x}.yaml", folder / f"texts-{x}.jsonl", ["bits_per_byte"],
            output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}",
        )  # fmt: skip
        write_task(
            folder / "tasks" / f"choices_{x}.yaml", folder / f"choices-{x}-test.jsonl", ["acc"],
            output_type="multiple_choice", doc_to_text="{{premise}} {{question}}", doc_to_target="label",
            doc_to_choice="{{choices}}",
        )  # fmt: skip
        write_task(
            folder / "tasks" / f"writing_{x}.yaml", folder / f"texts-{x}.jsonl", ["exact_match"],
            output_type="generate_until", doc_to_text="{{text[:12]}}", doc_to_target="{{text}}",
            generation_kwargs={"until": ["gu", "\n"], "max_gen_toks": 16, "do_sample": False, "temperature": 0},
        )  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return train(folder / "recipe.yaml", folder / "run")


def question(language: str, seed: int) -> dict[str, Any]:
    choices = [line(language, seed + 100), line("bb" if language == "aa" else "aa", seed + 201)]
    label = seed // 2 % 2
    return {"premise": line(language, seed), "question": "mur", "choices": choices[:: 1 - 2 * label], "label": label}


def write_lines(path: Path, entries: list[dict[str, Any]]) -> None:
    path.with_suffix(".jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))


def write_task(path: Path, data: Path, metrics: list[str], **settings: Any) -> None:
    task = {"task": path.stem, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    metric_list = [{"metric": metric} for metric in metrics]
    path.write_text(json.dumps({**task, "test_split": "test", "metric_list": metric_list, **settings}))


@pytest.fixture(scope="module")
def found(run) -> Any:
    """What lm-eval says of the run, in a process of its own: lm-eval changes settings of the one that imports it."""
    pairs = json.dumps([pair[:2] for pair in PAIRS])
    command = [sys.executable, ROOT / "tests/workflows/lm_eval_side.py", run.path, run.path.parent / "tasks", pairs]
    variables = os.environ | {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("language", LANGUAGES)
def test_rolling_likelihood_is_bits_per_byte_of_lm(run, found, language):
    matrix = run.evaluate({f"lm/{language}": f"{run.path.parent}/texts-{language}.jsonl"})
    (result,) = matrix.results.values()
    theirs = found["results"][f"rolling_{language}"]["bits_per_byte,none"]
    assert theirs == pytest.approx(result.scores[0].value, rel=1e-5)
    other = "bb" if language == "aa" else "aa"
    (mixed_up,) = run.evaluate({f"lm/{other}": f"{run.path.parent}/texts-{language}.jsonl"}).results.values()
    assert theirs != pytest.approx(mixed_up.scores[0].value, rel=1e-2)


@pytest.mark.parametrize("language", LANGUAGES)
def test_likelihoods_are_those_of_choice(run, found, language):
    samples = found["samples"][f"choices_{language}"]
    inputs = [(doc["premise"], doc["question"], *doc["choices"]) for doc, _ in samples]
    ours = run.predict(inputs, f"choice/{language}")
    for prediction, (_, answers) in zip(ours, samples, strict=True):
        logs = torch.tensor([float(log) for ((log, _),) in answers], dtype=torch.float64)
        assert prediction.label == str(int(logs.argmax()))
        assert prediction.score == pytest.approx(float(logs.softmax(-1).max()), rel=1e-4)
    assert {prediction.label for prediction in ours} == {"0", "1"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_are_those_of_generate(run, found, language):
    samples = found["samples"][f"writing_{language}"]
    whole = run.generate([doc["text"][:12] for doc, _ in samples], f"lm/{language}", max_new_tokens=16)
    assert [answer for _, ((answer,),) in samples] == [text.split("gu")[0].split("\n")[0] for text in whole]
    assert any("gu" in text for text in whole)


def test_pairs_are_scored_as_the_model_itself_does(run, found):
    tokenizer, scores = run.predictor.tokenizer, iter(found["scores"])
    for _, _, context, following in PAIRS:
        before, behind = tokenizer.text([context, following])
        ids = [tokenizer.text_begin, *before, *behind][-run.predictor.max_length - 1 :]
        for language in LANGUAGES:
            with torch.no_grad():
                logits = run.model({"input_ids": torch.tensor([ids[:-1]])}, [f"lm/{language}"]).logits[0]
            best_T, logs_TV = logits.argmax(-1).tolist(), logits.log_softmax(-1)
            expected = sum(float(logs_TV[i, ids[i + 1]]) for i in range(len(ids) - 1 - len(behind), len(ids) - 1))
            log, is_greedy = next(scores)
            assert log == pytest.approx(expected, rel=1e-4)
            assert is_greedy == (best_T[-len(behind) :] == behind)
    assert {is_greedy for _, is_greedy in found["scores"]} == {True, False}
    (warning,) = found["warnings"]
    assert warning.startswith("2 contexts of lm-eval lost their beginning")


def test_languages_share_batches(found):
    assert ["lm/aa", "lm/bb"] in found["batches"]


def test_nothing_is_scored_without_a_condition_of_its_own(found):
    errors = found["errors"]
    assert errors["unknown task"].startswith("lm-eval's task 'xnli_sw' has no condition")
    assert "'None' has no condition" in errors["no task"]
    assert "has 2 conditions (lm/aa, lm/bb)" in errors["two conditions"]
    assert "unknown language 'sw'" in errors["unknown language"]
    assert "which chat is not trained on" in errors["conversation"]
    assert "--use_cache" in errors["cache"]
    assert "a continuation of 0 tokens" in errors["empty continuation"]
    assert "a continuation of 90 tokens" in errors["long continuation"]


def test_the_command_writes_lm_evals_own_table(found):
    assert "|choices_aa|" in found["table"]
