"""Adapters as files: another library answers with them what the run answers, and they appear whole or not at all."""

import asyncio
import json
import threading

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from polyloom.conditions import Condition
from polyloom.errors import ConditionError, ExportError, UnavailableError
from polyloom.serve import Engine
from polyloom.serve.adapter_files import AdapterFiles
from polyloom.serve.models import ServedModel
from polyloom.workflows.run import Run
from polyloom.workflows.train import train
from tests.serve.test_web import Served
from tests.shared import polyloom
from tests.tiny_decoder import decoder_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def decoder(place) -> Run:
    return train(decoder_recipe(place, steps=20), place / "run")


def test_peft_computes_what_the_run_does(decoder, place, tmp_path):
    async def ask():
        async with Engine(decoder, adapters=AdapterFiles(tmp_path / "files", "my-model")) as engine:
            return [await engine.adapter(f"lm/{language}") for language in ("aa", "bb", "aa")]

    aa, bb, again = asyncio.run(ask())
    assert aa == again != bb
    config = json.loads((tmp_path / "files" / aa["weights"] / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"], config["task_type"]) == ("my-model", 16, "CAUSAL_LM")
    ids = torch.tensor([decoder.predictor.tokenizer.text(["ba do fi gu"])[0]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for found in (aa, bb):
        base = AutoModelForCausalLM.from_pretrained(place / "decoder")
        theirs = PeftModel.from_pretrained(base, found["path"]).eval()
        with torch.no_grad():
            ours = decoder.model(inputs, [found["condition"]]).logits
            torch.testing.assert_close(theirs(**inputs).logits, ours, rtol=1e-5, atol=1e-5)


def test_adapters_that_do_not_fit_the_format_are_refused(decoder, run, tmp_path):
    async def ask(served, condition, adapters):
        async with Engine(served, adapters=adapters) as engine:
            return await engine.adapter(condition)

    files = AdapterFiles(tmp_path / "files")
    for served, condition, adapters, error, message in (
        (decoder, "lm/cc", files, ConditionError, "'cc'"),
        (decoder, "lm/aa", None, ExportError, "this server writes none"),
        (run, "pos/aa", files, ExportError, "has a head of its own"),
        (run, "mlm/aa", files, ExportError, "only LoRA is exported"),
    ):
        with pytest.raises(error, match=message):
            asyncio.run(ask(served, condition, adapters))
    assert not list((tmp_path / "files").iterdir())


def test_a_full_folder_refuses_further_adapters_and_keeps_what_others_may_read(decoder, tmp_path):
    files, model = AdapterFiles(tmp_path, max_mb=1), ServedModel(decoder)
    first = files.find(model, Condition("lm", "aa"))
    (tmp_path / "filler").write_bytes(bytes(1 << 20))
    again = AdapterFiles(tmp_path, max_mb=1)  # after a restart
    assert again.find(model, Condition("lm", "aa")) == first
    with pytest.raises(UnavailableError, match="no room for a further adapter"):
        again.find(model, Condition("lm", "bb"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["filler", first["weights"]])


def test_callers_at_the_same_time_get_one_folder(decoder, tmp_path):
    files, model, found = AdapterFiles(tmp_path), ServedModel(decoder), []
    threads = [
        threading.Thread(target=lambda: found.append(files.find(model, Condition("lm", "aa")))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(one == found[0] for one in found)
    assert len(list(tmp_path.iterdir())) == 1


def test_over_http(decoder, tmp_path):
    served = Served(decoder.path, "--adapters", tmp_path / "files", "--base-name", "x")
    try:
        status, content, _ = served.get("/v1/adapters/lm/aa")
        found = json.loads(content)
        assert (status, found["condition"]) == (200, "lm/aa")
        assert (tmp_path / "files" / found["weights"] / "adapter_model.safetensors").exists()
        assert served.get("/v1/adapters/lm/xx")[0] == 404
    finally:
        served.stop()


def test_an_export_names_the_model_as_the_other_server_does(decoder, tmp_path):
    options = ["--format", "peft", "-o", tmp_path / "out", "--base-name", "my-model"]
    polyloom("export", decoder.path, "lm/aa", *options)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "my-model"
