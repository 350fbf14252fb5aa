"""The public API: everything that one page of documentation promises."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import polyloom as pl
from polyloom.data.records import LabelPrediction, ParsePrediction, TagPrediction
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.inference import predictor as predictor_module
from polyloom.rundir import RunDir
from tests.contracts.tiny import tiny_backbone, tiny_config
from tests.shared import lines_of
from tests.tiny_run import tiny_recipe

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "polyloom"
TASKS = ("mlm", "pos", "ner", "dep", "nli")
MIXED = [
    ("ba do fi", "pos/aa"), ("gu  ko lem mur sat", "ner/bb"), ("ba do fi", "pos/bb"), (("ba do", "fi gu"), "nli/aa"),
    (("sat", "mur"), "dep/aa"), ("", "pos/aa"), ("ko gu ba do", "pos/cc"), (["ba"], "ner/aa"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Path:
    return tiny_recipe(folder, tasks=TASKS, train={"steps": 40})


@pytest.fixture(scope="module")
def trained(folder: Path, recipe: Path) -> Path:
    run = pl.train(str(recipe), into=str(folder / "run"), overrides={"optim.lr": 5e-3})
    assert run.recipe.optim.lr == 5e-3
    return run.path


@pytest.fixture(scope="module")
def run(trained: Path) -> pl.Run:
    return pl.load(str(trained))


# -- names -------------------------------------------------------------------------------------------------------------


def test_every_public_name_is_there_once_in_one_list():
    assert dir(pl) == sorted(pl.__all__)
    assert all(getattr(pl, name) is not None for name in pl.__all__)
    tree = ast.parse((SOURCES / "__init__.py").read_text())
    typed = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyloom")
        for alias in node.names
    }
    assert typed == {name: f"polyloom.{module}" for name, module in pl._MODULES.items()}
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = pl.trian


def test_documents_use_public_names_only():
    documents = {path.name: path.read_text() for path in (ROOT / "README.md", *ROOT.glob("examples/*.py"))}
    used = {(name, word) for name, text in documents.items() for word in re.findall(r"\bpl\.(\w+)", text)}
    wrong = [f"{name}: pl.{word}" for name, word in used if word not in pl.__all__]
    assert used
    assert not wrong, "\n".join(wrong)


def test_what_needs_no_model_imports_no_torch():
    code = """
import importlib, sys
for module in ("polyloom", "polyloom.cli", "polyloom.backbones"):
    importlib.import_module(module)
    if slow := {"torch", "transformers", "pandas", "scipy", "sacrebleu"} & set(sys.modules):
        sys.exit(f"{module} imports {slow}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- predict -----------------------------------------------------------------------------------------------------------


def test_text_words_and_records_are_predicted_alike(run):
    prediction = run.predict("ba  do fi", "pos/aa")
    assert isinstance(prediction, TagPrediction)
    assert prediction.words == ("ba", "do", "fi")
    assert [("ba  do fi")[begin:end] for begin, end in prediction.offsets] == list(prediction.words)
    assert list(prediction) == list(zip(prediction.words, prediction.labels, strict=True))
    assert repr(prediction).startswith("TagPrediction(ba/")
    words = ("ba", "do", "fi")
    for same in (words, pl.Tagged(words, ("X", "Y", "Z")), pl.Tree(words, (0, 1, 1), ("a", "b", "c"))):
        other = run.predict(same, pl.Condition("pos", "aa"))
        assert (other.labels, other.scores, other.offsets) == (prediction.labels, prediction.scores, ())


def test_scores_are_the_probabilities_of_the_labels(run):
    words = ("gu", "ko", "ba")
    prediction = run.predict(words, "pos/bb")
    ids = run.tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        shares = run.model.task_logits(dict(ids), ["pos/bb"])[0, 1:-1].softmax(-1)
    labels = run.model.task("pos").labels
    assert [labels[i] for i in shares.argmax(-1)] == list(prediction.labels)
    assert shares.amax(-1).tolist() == pytest.approx(prediction.scores, abs=1e-5)
    tree = run.predict(words, "dep/aa")
    assert isinstance(tree, ParsePrediction)
    assert all(0 < score <= 1 for score in tree.scores)
    assert len(tree) == len(tree.heads) == len(tree.relations) == 3
    pair = run.predict(("ba do", "fi gu"), "nli/aa")
    assert isinstance(pair, LabelPrediction)
    assert pair.score is not None
    assert 1 / len(run.model.task("nli").labels) <= pair.score <= 1


@pytest.mark.parametrize("window", [512, 3])
def test_inputs_of_any_conditions_share_batches_and_keep_their_order(run, window, monkeypatch):
    monkeypatch.setattr(predictor_module, "WINDOW", window)
    batches: list[Any] = []
    original = run.model.predict

    def predict(batch: Any, **options: Any) -> Any:
        batches.append(batch)
        return original(batch, **options)

    monkeypatch.setattr(run.model, "predict", predict)
    together = run.predict([value for value, _ in MIXED], [condition for _, condition in MIXED])
    if window > len(MIXED):
        (batch,) = batches
        assert len({*batch.conditions}) == 7
        assert set(batch.by_task) == {"pos", "ner", "dep", "nli"}
    alone = [run.predict([value], condition)[0] for value, condition in MIXED]
    for one, other in zip(together, alone, strict=True):
        assert type(one) is type(other)
        scores = [prediction.__dict__.get("scores", prediction.__dict__.get("score")) for prediction in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
        rest = [{k: v for k, v in p.__dict__.items() if not k.startswith("score")} for p in (one, other)]
        assert rest[0] == rest[1]
    assert [getattr(p, "words", None) for p in together][:2] == [("ba", "do", "fi"), ("gu", "ko", "lem", "mur", "sat")]


def test_one_condition_for_all_inputs(run):
    texts = ["ba do", "fi", "gu ko lem"]
    assert run.predict(texts, "ner/aa") == run.predict(texts, ["ner/aa"] * 3)
    assert run.predict([], "ner/aa") == []


@pytest.mark.parametrize(
    ("inputs", "conditions", "words"),
    [
        ("ba", "aa", r"name the task and the language, such as pos/aa, ner/aa, dep/aa, nli/aa\."),
        ("ba", "pos", r"name the task and the language, such as pos/aa\."),
        ("ba", "german", "such as pos/aa"),
        ("ba", 3, "one input needs one condition"),
        (["ba"], [3], "condition 3"),
        ("ba", "pos/de", "unknown language 'de'"),
        ("ba", "pso/aa", "Did you mean 'pos'"),
        ("ba", "pos/aa/bb/cc", "expected task/language"),
        ("ba", "mlm/aa", "nothing to predict"),
        ("ba", "mt/aa/bb", "no head"),
        (5, "pos/aa", r"expected a text, or the words .* not 5 \(int\)"),
        (("ba", 5), "pos/aa", "expected a text"),
        ("ba do", "nli/aa", "expected two texts"),
        (["ba"], ["pos/aa", "pos/bb"], "1 inputs, but 2 conditions"),
        ("ba", ["pos/aa"], "one input needs one condition"),
    ],
)
def test_mistakes_are_explained(run, inputs, conditions, words):
    with pytest.raises(pl.PolyloomError, match=words):
        run.predict(inputs, conditions)


# -- train, load, evaluate, compare ------------------------------------------------------------------------------------


def test_training_again_resumes_and_other_settings_are_refused(trained, recipe):
    steps = RunDir(trained).log.read_text().count('"event": "step"')
    again = pl.train(pl.load_recipe(recipe), trained, overrides={"optim.lr": 5e-3})
    assert again.checkpoint == RunDir(trained).best()
    assert RunDir(trained).log.read_text().count('"event": "step"') == steps
    settings = json.loads(recipe.read_text())
    with pytest.raises(pl.PolyloomError, match=r"optim\.lr: was 0\.005 when this run began, now 0\.01"):
        pl.train(settings, trained)
    with pytest.raises(pl.PolyloomError, match=r"optim\.lrr: unknown key"):
        pl.train(settings, trained, overrides={"optim.lrr": 1})
    with pytest.raises(pl.PolyloomError, match=r"languages is a list, so it has no keys"):
        pl.train(settings, trained, overrides={"languages.aa": 1})
    assert settings == json.loads(recipe.read_text()), "the caller's dictionary stays as it is"


def test_scores_of_the_recipes_corpora_are_stored_and_others_are_not(run, folder, monkeypatch):
    stored = RunDir(run.path).evaluation("test")
    stored.unlink(missing_ok=True)
    own = run.evaluate({"pos/aa": str(folder / "aa-test.conllu")})
    assert not stored.exists()
    matrix = run.evaluate(languages=["aa"], tasks=["pos", "ner"])
    assert (
        own.results[pl.Condition("pos", "aa")].scores[0].value
        == matrix.results[pl.Condition("pos", "aa")].scores[0].value
    )
    run.evaluate(languages=["cc"], tasks=["pos"])
    assert json.loads(stored.read_text())["results"].keys() == {"pos/aa", "ner/aa", "pos/cc"}
    table = matrix.to_pandas()
    assert list(table.columns) == ["condition", "task", "language", "metric", "score", "zero_shot"]
    assert set(table["condition"]) == {"pos/aa", "ner/aa"}
    with pytest.raises(pl.PolyloomError, match=r"'zz' is not in data\.test of this run"):
        run.evaluate(languages=["zz"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(pl.PolyloomError, match="pip install pandas"):
        matrix.to_pandas()


def test_runs_are_compared_by_object_path_or_scores(run, tmp_path):
    matrix = run.evaluate(tasks=["pos"])
    differences = pl.compare(run, str(run.path)).differences
    assert differences
    assert all(difference.a == difference.b for difference in differences)
    assert [d.metric for d in pl.compare(matrix, matrix).differences] == ["accuracy", "f1"] * 3
    shutil.copytree(run.path, tmp_path / "copy")
    RunDir(tmp_path / "copy").evaluation("test").unlink()
    with pytest.raises(pl.PolyloomError, match="no scores on test here"):
        pl.compare(run, tmp_path / "copy")


def test_exported_adapters_are_loaded_alone_together_and_from_the_hub(run, tmp_path, monkeypatch):
    (path,) = run.export("pos/aa", tmp_path / "one")
    assert pl.load(path).predict("ba do fi", "pos/aa") == run.predict("ba do fi", "pos/aa")
    run.export(["pos/aa", "pos/cc", "ner/bb"], str(tmp_path / "bank"))
    asked = (["ba do fi", "gu ko"], ["pos/cc", "ner/bb"])
    bank = pl.load(str(tmp_path / "bank"))
    assert [p.labels for p in bank.predict(*asked)] == [p.labels for p in run.predict(*asked)]
    assert set(bank.trained_on) == {"pos/aa", "ner/bb"}, "pos/cc is zero-shot"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("polyloom.export.hub.snapshot_download", lambda repo, **_: tmp_path / repo.split("/")[1])
    assert pl.load("me/bank").predict("ba do fi", "pos/aa").labels == run.predict("ba do fi", "pos/aa").labels
    with pytest.raises(pl.PolyloomError, match="no run here"):
        bank.add_language("zz", text="zz.txt")


def test_what_is_nowhere_is_explained(tmp_path):
    with pytest.raises(pl.PolyloomError, match="runs/none: no such folder, and no such repository"):
        pl.load("runs/none")
    with pytest.raises(pl.PolyloomError, match="neither a run"):
        pl.load(tmp_path)


def test_a_report_is_written(run, tmp_path):
    run.evaluate(tasks=["pos"])
    assert "pos" in run.report(tmp_path / "pages" / "report.html", num_examples=0).read_text()


def test_a_language_is_added_to_the_run_itself(trained, folder, tmp_path):
    grown = pl.load(trained)
    before = grown.predict("ba do fi", "pos/aa")
    with pytest.raises(pl.PolyloomError, match="there already"):
        grown.add_language("bb", text=folder / "bb-train.txt", into=tmp_path / "bb")
    result = grown.add_language("dd", text=folder / "aa-train.txt", into=tmp_path / "dd", steps=4)
    assert grown.path == tmp_path / "dd"
    assert result.donors
    assert grown.predict("ba do fi", "pos/aa") == before
    assert len(grown.predict("ba do fi", "pos/dd")) == 3
    assert "dd" not in pl.load(trained).model.method.languages


def test_texts_are_translated_in_order(folder):
    languages = ("boza", "bame")
    texts = {language: lines_of(f"synthetic:{language}/train[:200]") for language in languages}
    train_vocabulary(texts, folder / "vocabulary", config=VocabularyConfig(size=300), languages=languages)
    settings = {
        "backbone": {
            "preset": "transformer-mini", "tokenizer": str(folder / "vocabulary"),
            "config": {"encoder_layers": 1, "decoder_layers": 1},
        },
        "method": {"name": "pair-adapters", "adapter_size": 8}, "languages": list(languages), "tasks": {"mt": {}},
        "directions": ["boza/bame", "bame/boza"],
        "data": {"train": {f"mt/{way}": "synthetic:boza-bame/train[:200]" for way in ("boza/bame", "bame/boza")}},
        "train": {"steps": 10, "tokens_per_batch": 256, "max_length": 30},
    }  # fmt: skip
    run = pl.train(settings, folder / "mt")
    sources = [*texts["boza"][:3], " ", texts["boza"][4]]
    translated = run.translate(sources, "boza", "bame")
    assert translated[3] == ""
    assert translated == [run.translate(text, "boza", "bame") for text in sources]
    assert run.predict(sources, "mt/boza/bame") == translated
    back = run.predict([texts["boza"][0], texts["bame"][0]], ["mt/boza/bame", "mt/bame/boza"])
    assert back == [translated[0], run.translate(texts["bame"][0], "bame", "boza")]
    with pytest.raises(pl.PolyloomError, match="unknown language 'deu'"):
        run.translate("x", "boza", "deu")
    with pytest.raises(pl.PolyloomError, match="expected a text"):
        run.translate([3], "boza", "bame")  # type: ignore[list-item]
    with pytest.raises(pl.PolyloomError, match=r"data\.train\.mt/bame/boza: .*pair-adapters stores weights for `dire"):
        pl.train({**settings, "directions": []}, folder / "one")


def test_directions_are_checked_before_anything_is_encoded_if_the_backbone_is_only_named(folder, recipe, monkeypatch):
    settings = json.loads(recipe.read_text()) | {"tasks": {"pos": {}}, "method": {"name": "badx", "adapter_size": 4}}
    settings["data"] = {"train": {"pos/bb/aa": str(folder / "aa-train.conllu")}}
    monkeypatch.setattr("polyloom.workflows.train.prepare_recipe", lambda *_, **__: pytest.fail("encoded"))
    with pytest.raises(pl.PolyloomError, match=r"data\.train\.pos/bb/aa: unknown direction 'bb/aa'"):
        pl.train(settings, folder / "badx")


# -- models ------------------------------------------------------------------------------------------------------------


def model(**tasks: Any) -> pl.Model:
    return pl.Model(tiny_backbone("bert"), tiny_config("hyperx"), languages=["en", "tr"], tasks=tasks)


def test_a_number_of_labels_makes_a_head():
    built = model(pos=5, mlm=None)
    assert built.task("pos").labels == ("0", "1", "2", "3", "4")
    assert built.task_logits({"input_ids": torch.ones(2, 3, dtype=torch.long)}, ["pos/en", "pos/tr"]).shape == (2, 3, 5)
    assert not model(pos=None).tasks, "weights alone, without a head"


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ({"sentiment": ["good", "bad"]}, "tasks.sentiment: unknown task"),
        ({"poss": 3}, "Did you mean 'pos'"),
        ({"mlm": 3}, "tasks.mlm: has no labels"),
    ],
)
def test_tasks_that_cannot_be_are_refused(tasks, words):
    with pytest.raises(pl.PolyloomError, match=words):
        model(**tasks)


def test_logits_of_a_task_are_of_one_task_with_a_classifier():
    built = model(pos=5, ner=3, dep=["root", "dep"])
    inputs = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    with pytest.raises(pl.PolyloomError, match="rows of pos and ner"):
        built.task_logits(inputs, ["pos/en", "ner/en"])
    with pytest.raises(pl.PolyloomError, match="not a classifier"):
        built.task_logits(inputs, ["dep/en", "dep/en"])


def test_tied_tensors_are_in_a_state_dict_once():
    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model(pos=3)

    torch.manual_seed(1)
    first, second = Wrapper(), Wrapper()
    state = first.state_dict()
    storages = [tensor.untyped_storage().data_ptr() for tensor in state.values()]
    assert len(storages) == len(set(storages))
    second.load_state_dict(state, strict=True)
    for (name, one), other in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert second.inner.backbone.model.get_output_embeddings().weight is (
        second.inner.backbone.model.get_input_embeddings().weight
    )
    del state["inner.heads.pos.classifier.bias"]
    with pytest.raises(RuntimeError, match="Missing key"):
        second.load_state_dict(state, strict=True)


def test_another_backbone_does_not_keep_the_configuration_of_the_recipes_own(folder, recipe, tmp_path):
    settings = json.loads(recipe.read_text())
    name = settings["backbone"]["name"]
    other = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 1000}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(settings | {"backbone": {"name": "some/model", "config": other}}))
    stale = pl.plan(pl.load_recipe(path)).backbone.parameters
    for overrides in ([f"backbone.name={name}"], {"backbone.name": name}):
        changed = pl.load_recipe(path, overrides)
        assert changed.backbone.config is None
        assert pl.plan(changed).backbone.parameters < stale / 100
    assert pl.load_recipe(path, ["backbone.name=some/model"]).backbone.config == other
    kept = pl.load_recipe(path, {"backbone.name": "x/y", "backbone.config": other | {"num_hidden_layers": 1}})
    assert kept.backbone.config == other | {"num_hidden_layers": 1}
