"""Multiple choice: the choices of an example compete with one another and with nobody else."""

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.records import Choices, LabelPrediction
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import ConditionError, ConfigError, ExportError, PolyloomError
from polyloom.export.adapter import generate_adapters
from polyloom.export.adapterhub import write_adapterhub
from polyloom.export.onnx import write_onnx
from polyloom.export.peft import write_peft
from polyloom.inference.streams import choose_formats, predict_stream
from polyloom.loading import load_predictor
from polyloom.model import Model
from polyloom.tasks import TASKS, build_task
from polyloom.tasks.base import Example, HeadInputs, TaskConfig
from polyloom.tasks.batch import make_batch
from polyloom.tasks.multiple_choice import MultipleChoice
from polyloom.workflows.export import export_run
from polyloom.workflows.run import Run
from polyloom.workflows.train import train
from tests.contracts.tiny import LANGUAGES, tiny_backbone, tiny_config
from tests.shared import polyloom
from tests.tiny_run import SIZES, tiny_recipe

COPA = Condition("copa", "aa")
WORLD = ("ba do fi", "gu ko", "lem mur sat", "do", "sat sat ba gu")


def write_recipe(folder: Path) -> Path:
    """The whole backbone learns one language: it begins with random weights, and the question decides."""
    recipe = tiny_recipe(folder, "full", tasks=("copa",), optim={"lr": 1e-3})
    settings = json.loads(recipe.read_text()) | {"languages": ["aa"]}
    files = {"train": "train", "validation": "dev", "test": "test"}
    settings["data"] = {key: {"copa/aa": str(folder / f"aa-{split}.choices.jsonl")} for key, split in files.items()}
    recipe.write_text(json.dumps(settings))
    return recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("choices")
    return train(write_recipe(folder), folder / "run")


def rows(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path.parent / "aa-test.choices.jsonl").read_text().splitlines()]


def test_it_learns_more_than_the_majority_and_is_scored_by_the_command(run):
    scores = json.loads(polyloom("evaluate", run.path, "--baseline", "--format", "json"))["scores"]
    assert [(score["condition"], score["metric"]) for score in scores] == [("copa/aa", "accuracy")]
    labels = [row["label"] for row in rows(run)]
    assert scores[0]["majority"] == pytest.approx(100 * max(map(labels.count, labels)) / SIZES["test"])
    assert scores[0]["value"] > scores[0]["majority"] + 25
    right = [prediction == str(label) for prediction, label in zip(predictions(run), labels, strict=True)]
    assert scores[0]["value"] == pytest.approx(100 * sum(right) / len(right))


def predictions(run: Run) -> list[str]:
    texts = ((row["premise"], row["question"], row["choice1"], row["choice2"]) for row in rows(run))
    return polyloom("predict", run.path, "copa/aa", stdin="".join("\t".join(row) + "\n" for row in texts)).splitlines()


def test_the_order_of_the_choices_moves_the_prediction_with_it(run):
    """Whatever is chosen is chosen for what it says: turned around, the same text wins with the same probability."""
    given = [Choices(row["premise"], row["question"], (row["choice1"], row["choice2"]), "") for row in rows(run)]
    turned = [Choices(record.premise, record.question, record.choices[::-1], "") for record in given]
    for one, other in zip(run.predict(given, "copa/aa"), run.predict(turned, "copa/aa"), strict=True):
        assert isinstance(one, LabelPrediction)
        assert {one.label, other.label} == {"0", "1"}
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_json_gets_a_label_of_its_own_layout(run):
    row = rows(run)[0]
    social = {"context": row["premise"], "question": row["question"], "id": 7}
    social |= {"answerA": row["choice1"], "answerB": row["choice2"]}
    listed = {"premise": row["premise"], "question": row["question"], "choices": [row["choice1"], row["choice2"]]}
    stream = io.BytesIO("".join(json.dumps(entry) + "\n" for entry in (row, social, listed)).encode())
    formats, predict = choose_formats("copa", "jsonl", None), run.predictor.predictions
    made = [
        json.loads(line)
        for line in "".join(predict_stream(stream, COPA, formats=formats, predict=predict)).splitlines()
    ]
    label = int(predictions(run)[0])
    assert made == [row | {"label": label}, social | {"label": label + 1}, listed | {"label": label}]


def test_inputs_that_are_no_choices_fail_alone(run):
    stream = io.BytesIO(b"ba\tcause\tdo\n\nba\tcause\tdo\tfi\tgu\n")
    formats, predict = choose_formats("copa", None, None), run.predictor.predictions
    made = "".join(predict_stream(stream, COPA, formats=formats, predict=predict)).split("\n")
    assert made[:2] == ["", ""]
    assert made[2] in ("0", "1", "2")
    with pytest.raises(PolyloomError, match="expected premise, question and choices as a tuple"):
        run.predict(("ba", "cause", "do"), "copa/aa")
    assert run.predict(("ba", "cause", "do", "fi"), "copa/aa").label in ("0", "1")


def test_the_report_shows_the_choices(run, tmp_path):
    run.evaluate()
    page = run.report(tmp_path / "report.html").read_text()
    assert "Choice 0" in page
    assert "Choice 1" in page


def test_an_exported_adapter_predicts_the_same(run, tmp_path):
    export_run(run, [COPA], tmp_path / "out", backbone=True)
    given = [Choices(row["premise"], row["question"], (row["choice1"], row["choice2"]), "") for row in rows(run)]
    assert list(load_predictor(tmp_path / "out").predict(given, COPA)) == list(run.predictor.predict(given, COPA))


def encoded(tokenizer: Tokenizer, *records: Choices, labelled: bool = True) -> list[Example]:
    return [Example(COPA, row) for row in TASKS["copa"].encode(records, tokenizer, {} if labelled else None)]


def test_every_choice_is_a_row_with_premise_and_question(tokenizer):
    records = Choices("ba do", "cause", ("fi", "gu ko"), "1"), Choices("lem", "sat", ("mur", "ba", "do"), "2")
    batch = build_task("copa", None, width=8).collate(encoded(tokenizer, *records), tokenizer=tokenizer, max_length=64)
    assert list(batch.examples) == [0, 0, 1, 1, 1]
    assert batch.count == 2
    texts = [("ba do What was the cause of this?", "fi"), ("ba do What was the cause of this?", "gu ko")]
    texts += [("lem sat", "mur"), ("lem sat", "ba"), ("lem sat", "do")]
    expected = [tokenizer.pair(*tokenizer.text(pair)) for pair in texts]
    assert [(list(row.ids), list(row.types or ())) for row in batch.sequences] == expected
    assert batch.targets["answer_X"].tolist() == [1, 2]


@torch.no_grad()
def test_choices_are_normalised_within_their_own_example(tokenizer):
    """By hand, for examples of two, four and three choices; a choice of another example would change all of it."""
    records = [Choices("ba", "cause", WORLD[:n], str(n - 2)) for n in (2, 4, 3)]
    task = MultipleChoice(TaskConfig(), width=8)
    torch.nn.init.normal_(task.classifier.weight)
    batch = task.collate(encoded(tokenizer, *records), tokenizer=tokenizer, max_length=64)
    hidden = torch.randn(9, 50, 8)
    scores = (hidden[:, 0] @ task.classifier.weight[0] + task.classifier.bias).split([2, 4, 3])
    states = HeadInputs(hidden, vocabulary=None)  # type: ignore[arg-type]
    expected = -sum(part.log_softmax(0)[int(record.label)] for part, record in zip(scores, records, strict=True))
    torch.testing.assert_close(task.loss(states, batch), expected)
    assert task.decode(states, batch) == [str(int(part.argmax())) for part in scores]
    confidences = [float(part.softmax(0).max()) for part in scores]
    assert task.confidences(states, batch, []) == pytest.approx(confidences, rel=1e-5)
    task.label_smoothing = 0.1
    smoothed = [
        torch.nn.functional.cross_entropy(part[None], torch.tensor([int(record.label)]), label_smoothing=0.1)
        for part, record in zip(scores, records, strict=True)
    ]
    torch.testing.assert_close(task.loss(states, batch), sum(smoothed))


def test_long_texts_are_cut_and_counted(tokenizer):
    (short, long) = encoded(
        tokenizer, Choices("ba", "do", ("fi", "gu"), "0"), Choices("ba " * 30, "do", ("fi", "gu"), "0")
    )
    task = build_task("copa", None, width=8)
    assert not task.is_cut(short.row, tokenizer=tokenizer, max_length=16)
    assert task.is_cut(long.row, tokenizer=tokenizer, max_length=16)
    batch = task.collate([long], tokenizer=tokenizer, max_length=16)
    assert [len(row.ids) for row in batch.sequences] == [16, 16]
    assert batch.sequences[0].ids[-2] != batch.sequences[1].ids[-2], "the choices are still there"


def test_what_other_formats_cannot_hold_is_refused(tmp_path):
    backbone = tiny_backbone("bert")
    for block, write in (("bottleneck", partial(write_adapterhub, shape=backbone.shape)), ("lora", write_peft)):
        config = tiny_config("hyperx", block=block)
        model = Model(backbone, config, languages=LANGUAGES, tasks={"copa": None}).eval()
        (adapter,) = generate_adapters(model, [Condition("copa", "tr")], whole=False)
        given = {"into": tmp_path / block} | ({"backbone": backbone} if block == "lora" else {})
        with pytest.raises(ExportError, match=r"(adapterhub|peft): .* for copa does"):
            write(adapter, **given)
    with pytest.raises(ExportError, match="what copa predicts is not a function of one graph"):
        write_onnx(model, [Condition("copa", "tr")], tmp_path / "onnx", baked=True)


def test_it_has_no_label_set(run, tokenizer):
    with pytest.raises(ConfigError, match=r"tasks\.copa\.labels: copa has no label set"):
        load_recipe(run.path.parent / "full.yaml", ["tasks.copa.labels=2"])
    tasks = {"copa": None, "pos": ("A", "B")}
    model = Model(tiny_backbone("bert"), tiny_config("psf"), languages=["aa"], tasks=tasks)
    examples = encoded(tokenizer, Choices("ba", "do", ("fi", "gu"), "0"))
    with pytest.raises(ConditionError, match="psf generates classifiers; copa has no label set"):
        model.losses(make_batch(examples, tasks=model.tasks, tokenizer=tokenizer, max_length=16))
