"""Text classification, a task of one file: it trains, predicts, evaluates and is exported like any other."""

import io
import json
import random
from pathlib import Path

import datasets
import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors

from polyloom.checkpoint import load_checkpoint, save_checkpoint
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.records import LabelledText, Tree
from polyloom.errors import DataError, ExportError
from polyloom.export.adapter import generate_adapters, load_adapters_into, read_adapter, write_adapter
from polyloom.export.adapterhub import read_adapterhub, write_adapterhub
from polyloom.export.onnx import write_onnx
from polyloom.export.peft import read_peft, write_peft
from polyloom.inference.streams import choose_formats, predict_stream
from polyloom.loading import load_predictor
from polyloom.model import Model
from polyloom.tasks import TASKS
from polyloom.tasks.classification import TextClassification
from polyloom.tasks.parsing import Arcs, ParserConfig
from polyloom.workflows.compare import compare
from polyloom.workflows.export import export_run
from polyloom.workflows.run import Run
from polyloom.workflows.train import prepare_training, train
from tests.contracts.tiny import LANGUAGES, shared_backbone, tiny_backbone, tiny_config, tiny_inputs
from tests.tiny_run import SIZES, WORDS, tiny_recipe

LABELS = ("bad", "good", "so-so")


def texts(split: str) -> list[str]:
    """Texts of three to six words, all from one half of the vocabulary."""
    draw = random.Random(split)
    halves = [draw.choice((WORDS[:4], WORDS[4:])) for _ in range(SIZES[split])]
    return [" ".join(draw.choices(half, k=draw.randint(3, 6))) for half in halves]


def label(text: str) -> str:
    """Which half the words are from."""
    return LABELS[text.split(maxsplit=1)[0] in WORDS[:4]]


def write_recipe(folder: Path, **sections) -> Path:
    """The whole backbone learns: it begins with random weights. `aa` is a file, `bb` a data set of Hugging Face."""
    recipe = tiny_recipe(folder, "full", optim={"lr": 1e-3}, train={"steps": 200})
    settings = json.loads(recipe.read_text())
    (folder / "bb").mkdir(exist_ok=True)
    for section, split in {"train": "train", "validation": "dev", "test": "test"}.items():
        rows = [(text, label(text)) for text in texts(split)]
        file = folder / f"aa-{split}.labelled.tsv"
        file.write_text("".join(f"{text}\t{name}\n" for text, name in rows))
        lines = [json.dumps({"text": text, "label": name}) + "\n" for text, name in rows]
        (folder / "bb" / f"{section}.jsonl").write_text("".join(lines))
        settings["data"][section] = {"cls/aa": str(file), "cls/bb": f"hf:{folder / 'bb'}/{section}"}
    settings |= {"tasks": {"cls": {}}, "languages": ["aa", "bb"], **sections}
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("classification")
    return train(write_recipe(folder), folder / "run")


def test_it_trains_and_is_scored_beyond_the_majority(run):
    matrix = run.evaluate(run.recipe.data.test)
    for condition, result in matrix.results.items():
        gold = [label(text) for text in texts("test")]
        records = [LabelledText("", name) for name in gold]
        majority = TextClassification.majority(records)
        assert majority == pytest.approx(100 * max(map(gold.count, gold)) / len(gold))
        assert result.scores[0].metric.name == "accuracy"
        assert result.scores[0].value > majority + 20, condition


def test_two_runs_are_compared_and_reported(run, tmp_path):
    """The other run has learnt nothing, so it is worse in both languages; the page shows texts with their labels."""
    other = train(run.path.parent / "recipe.yaml", tmp_path / "other", overrides={"train.steps": 1, "optim.lr": 1e-9})
    for trained in (run, other):
        trained.evaluate()
    differences = {str(found.condition): found.a - found.b for found in compare(run, other).differences}
    assert differences.keys() == {"cls/aa", "cls/bb"}
    assert all(difference > 20 for difference in differences.values())
    page = run.report(tmp_path / "report.html", other).read_text()
    assert "cls/aa" in page
    assert any(text in page for text in texts("test"))


def test_text_goes_in_and_labels_come_out(run):
    formats, stream = choose_formats("cls", None, None), io.BytesIO(b"ba do fi gu\n\nko lem mur sat\n")
    predict, condition = run.predictor.predictions, Condition("cls", "aa")
    assert "".join(predict_stream(stream, condition, formats=formats, predict=predict)) == "good\n\nbad\n"
    formats, stream = choose_formats("cls", "jsonl", None), io.BytesIO(b'{"text": "ba do fi gu", "id": 3}\n')
    (line,) = predict_stream(stream, condition, formats=formats, predict=predict)
    assert json.loads(line) == {"text": "ba do fi gu", "id": 3, "label": "good"}


def test_an_exported_adapter_predicts_the_same(run, tmp_path):
    conditions = [Condition("cls", "aa"), Condition("cls", "bb")]
    export_run(run, conditions, tmp_path / "out", backbone=True)
    again, records = load_predictor(tmp_path / "out"), [LabelledText(text, "") for text in texts("test")]
    for condition in conditions:
        assert list(again.predict(records, condition)) == list(run.predictor.predict(records, condition))


def tiny(family: str, **settings) -> Model:
    model = Model(tiny_backbone(family), tiny_config("hyperx", **settings), languages=LANGUAGES, tasks={"cls": LABELS})
    torch.manual_seed(5)
    for parameter in (*model.method.parameters(), *model.heads.parameters()):
        parameter.data.normal_(std=0.3)
    return model.eval()


@torch.no_grad()
def logits(model: Model, condition: Condition, family: str) -> torch.Tensor:
    """The head on the first token, written out."""
    inputs = tiny_inputs(family)
    rows = [condition] * len(inputs["input_ids"])
    with model.backbone.using(model.weights(rows), num_rows=len(rows)):
        hidden = model.backbone.hidden(**inputs)
    result: torch.Tensor = model.get_submodule("heads.cls.classifier")(hidden[:, 0])
    return result


def test_onnx_has_the_logits_of_the_labels_and_not_of_the_vocabulary(tmp_path):
    model, conditions = tiny("bert"), [Condition("cls", "tr"), Condition("cls", "sw")]
    folder = write_onnx(model, conditions, tmp_path / "graph", baked=False)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    for condition in conditions:
        adapter = load_file(folder / f"{str(condition).replace('/', '-')}.safetensors")
        inputs = {name: tensor.numpy() for name, tensor in tiny_inputs("bert").items()}
        (made,) = session.run(None, inputs | adapter)
        assert made.shape[-1] == len(LABELS)
        assert np.abs(made - logits(model, condition, "bert").numpy()).max() < 1e-5
    assert json.loads((folder / "model.json").read_text())["labels"] == list(LABELS)


@pytest.mark.nightly
def test_onnx_of_a_generated_classifier_is_that_classifier(tmp_path):
    """psf generates the classifier; the task's own is never trained."""
    tasks = {"cls": LABELS, "pos": ("A", "B", "C", "D", "E")}
    model = Model(tiny_backbone("bert"), tiny_config("psf"), languages=LANGUAGES, tasks=tasks).eval()
    torch.manual_seed(5)
    for parameter in model.method.parameters():
        parameter.data.normal_(std=0.3)
    folder = write_onnx(model, [Condition("cls", "tr")], tmp_path / "graph", baked=True)
    inputs = tiny_inputs("bert")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (made,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        tensors = model.method.weights(["cls/tr"]).blocks[0].tensors
        first = model.backbone.hidden(**inputs)[:, 0]
    expected = first @ tensors["weight"][0, 0, :3].T + tensors["bias"][0, 0, :3]
    assert np.abs(made - expected.detach().numpy()).max() < 1e-5


def test_adapterhub_gets_a_classification_head(tmp_path):
    model = tiny("xlm-roberta")
    (adapter,) = generate_adapters(model, [Condition("cls", "tr")], whole=False)
    (folder,) = write_adapterhub(adapter, model.backbone.shape, tmp_path / "adapter")
    config = json.loads((folder / "head_config.json").read_text())["config"]
    assert config["head_type"] == "classification"
    assert config["label2id"] == {name: number for number, name in enumerate(LABELS)}
    again = read_adapterhub([folder], adapter.condition, model.backbone.shape)
    assert again.labels == LABELS
    assert all(torch.equal(tensor, adapter.head[name]) for name, tensor in again.head.items())


def test_a_head_that_reads_another_token_there_is_refused(tmp_path):
    model = tiny("llama")
    (adapter,) = generate_adapters(model, [Condition("cls", "tr")], whole=False)
    with pytest.raises(ExportError, match="reads the last token, Polyloom's for cls the first"):
        write_adapterhub(adapter, model.backbone.shape, tmp_path / "adapter")


def test_peft_computes_the_same_with_transformers_own_classifier(tmp_path):
    peft = pytest.importorskip("peft")
    model, condition = tiny("distilbert", block="lora"), Condition("cls", "tr")
    (adapter,) = generate_adapters(model, [condition], whole=False)
    folder = write_peft(adapter, model.backbone, tmp_path / "adapter")
    assert json.loads((folder / "adapter_config.json").read_text())["task_type"] == "SEQ_CLS"
    model.backbone.model.save_pretrained(tmp_path / "backbone")
    theirs = transformers.DistilBertForSequenceClassification.from_pretrained(tmp_path / "backbone", num_labels=3)
    theirs = peft.PeftModel.from_pretrained(theirs, folder).eval()
    with torch.no_grad():
        made = theirs(**tiny_inputs("distilbert")).logits
    torch.testing.assert_close(made, logits(model, condition, "distilbert"), rtol=0, atol=1e-5)
    with pytest.raises(ExportError, match="a layer that Polyloom's do not have"):
        read_peft(folder, condition, model.backbone, labels=LABELS)


def test_peft_refuses_where_the_classifier_computes_something_else(tmp_path):
    model = tiny("bert", block="lora")
    (adapter,) = generate_adapters(model, [Condition("cls", "tr")], whole=False)
    with pytest.raises(ExportError, match="no head for bert that computes what Polyloom's for cls does"):
        write_peft(adapter, model.backbone, tmp_path / "adapter")


def test_labels_in_a_recipe_fix_the_label_set_and_its_order(tmp_path):
    labels = ["so-so", "good", "bad"]
    setup = prepare_training(load_recipe(write_recipe(tmp_path, tasks={"cls": {"labels": labels}})))
    assert setup.model.tasks["cls"].labels == tuple(labels)
    path = write_recipe(tmp_path, tasks={"cls": {"labels": ["good", "so-so"]}})
    with pytest.raises(DataError, match=r"aa-train\.labelled\.tsv.*tasks\.cls\.labels does not list bad"):
        prepare_training(load_recipe(path))


def test_settings_of_a_task_are_stored_with_the_model(tmp_path):
    labels = ("root", "dep")
    config = ParserConfig(labels=labels, arc_size=7, label_size=5)
    model = Model(shared_backbone("bert"), tiny_config("hyperx"), languages=LANGUAGES, tasks={"dep": config})
    save_checkpoint(model, tmp_path / "checkpoint")
    again = load_checkpoint(tmp_path / "checkpoint", shared_backbone("bert"))
    assert again.tasks["dep"].config == config
    assert again.get_parameter("heads.dep.parser.arc_weight").shape == (8, 7)
    (adapter,) = generate_adapters(model, [Condition("dep", "tr")])
    write_adapter(adapter, tmp_path / "adapter")
    loaded = load_adapters_into([read_adapter(tmp_path / "adapter")], shared_backbone("bert"))
    assert loaded.tasks["dep"].config == config
    plain = Model(shared_backbone("bert"), tiny_config("hyperx"), languages=LANGUAGES, tasks={"dep": labels})
    save_checkpoint(plain, tmp_path / "plain")
    assert "task_settings" not in json.loads((tmp_path / "plain" / "polyloom.json").read_text())
    assert load_tensors(tmp_path / "plain" / "weights.safetensors")


def test_mistakes_are_counted_by_the_task():
    tree = Tree(("a", "b", "c"), (0, 1, 1), ("root", "obj:x", "obj"))
    assert TASKS["dep"].mistakes(tree, Arcs([0, 1, 2], ["root", "obj", "obj"])) == [2]
    assert TASKS["cls"].mistakes(LabelledText("a", "x"), "y") == [0]
    assert TASKS["cls"].mistakes(LabelledText("a", "x"), "x") == []
    assert {name: task.record_kind().display for name, task in TASKS.items() if task.formats()} == {
        "pos": "tags", "ner": "tags", "dep": "tree", "nli": "label", "cls": "label", "copa": "label", "qa": "answer",
        "mt": "text", "choice": "label",
    }  # fmt: skip
