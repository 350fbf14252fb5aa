"""Question answering: an answer is an exact slice of its context, the best one over all windows."""

import io
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyloom.checkpoint import load_checkpoint, save_checkpoint
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.records import Answer, AnswerPrediction, Question
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.errors import ConfigError, ExportError, PolyloomError
from polyloom.export.adapter import generate_adapters
from polyloom.export.adapterhub import write_adapterhub
from polyloom.export.onnx import write_onnx
from polyloom.inference.predictor import Predictor, group_by_length
from polyloom.inference.streams import choose_formats, predict_stream
from polyloom.loading import load_predictor
from polyloom.model import Model
from polyloom.tasks import TASKS
from polyloom.tasks.base import Example, HeadInputs
from polyloom.tasks.question_answering import AnswerSpan, QuestionAnswering, QuestionAnsweringConfig, _windows
from polyloom.workflows.export import export_run
from polyloom.workflows.run import Run
from polyloom.workflows.train import train
from tests.contracts.tiny import LANGUAGES, shared_backbone, tiny_backbone, tiny_config
from tests.data.test_tokenizer import KINDS
from tests.shared import polyloom
from tests.tiny_run import tiny_recipe

QA = Condition("qa", "aa")
# Contexts with answers that end in the middle of no token, in scripts with and without spaces, and with odd characters.
TEXTS = {
    "The Denver Broncos won in 2016 (again)": ["Denver Broncos", "2016", "The", ")"],
    "  Die Katze\tschläft\n\nin Köln .": ["Katze", "schläft", "Köln", "Katze\tschläft"],
    "北京是中国的首都。上海不是。": ["北京", "中国", "首", "上海不是。"],
    "ไทยเป็นประเทศ": ["เป็น", "ประเทศ"],
    "দিল্লি ভারতের রাজধানী।": ["ভারতের", "রাজধানী"],
    "كان القاهرة عاصمة مصر": ["القاهرة", "عاصمة مصر"],
    "cafe\u0301 noir et e\u0301te\u0301": ["cafe\u0301", "noir", "e\u0301te\u0301"],
    "👩‍👩‍👧 lives in İstanbul, ½ a mile": ["lives", "İstanbul", "½"],
    "\u3000東京 に いる": ["東京", "いる"],
}


def squad(rows: list[dict[str, Any]]) -> str:
    """XQuAD's layout, with one question to a paragraph."""
    paragraphs = [
        {
            "context": row["context"],
            "qas": [{"id": f"id{number}", "question": row["question"], "answers": row["answers"]}],
        }
        for number, row in enumerate(rows)
    ]
    return json.dumps({"data": [{"paragraphs": paragraphs}], "version": "1.1"})


def write_recipe(folder: Path) -> Path:
    """The whole backbone learns one language; the corpora are in XQuAD's layout."""
    recipe = tiny_recipe(folder, "full", tasks=("qa",), optim={"lr": 1e-3})
    settings = json.loads(recipe.read_text()) | {"languages": ["aa"]}
    settings["data"] = {}
    for key, split in {"train": "train", "validation": "dev", "test": "test"}.items():
        lines = (folder / f"aa-{split}.questions.jsonl").read_text().splitlines()
        (folder / f"{split}.json").write_text(squad([json.loads(line) for line in lines]))
        settings["data"][key] = {"qa/aa": str(folder / f"{split}.json")}
    recipe.write_text(json.dumps(settings))
    return recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("questions")
    return train(write_recipe(folder), folder / "run")


def rows(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path.parent / "aa-test.questions.jsonl").read_text().splitlines()]


# -- end to end --------------------------------------------------------------------------------------------------------


def test_it_learns_and_the_command_scores_what_the_command_predicts(run):
    """The answer depends on the question and has one word or two: without the question, half would be right."""
    scores = {s["metric"]: s["value"] for s in json.loads(polyloom("evaluate", run.path, "--format", "json"))["scores"]}
    assert list(scores) == ["answer_f1", "answer_exact"]
    assert scores["answer_exact"] > 80
    assert scores["answer_f1"] >= scores["answer_exact"]
    stdin = "".join(f"{row['question']}\t{row['context']}\n" for row in rows(run))
    predicted = polyloom("predict", run.path, "qa/aa", stdin=stdin).splitlines()
    right = [text == row["answers"][0]["text"] for text, row in zip(predicted, rows(run), strict=True)]
    assert scores["answer_exact"] == pytest.approx(100 * sum(right) / len(right))


def test_a_context_of_many_windows_is_searched_to_its_end(run):
    """The same questions, the answer far behind the first window of 24 tokens."""
    predictor = Predictor(run.model, tokenizer=run.predictor.tokenizer, max_length=24)
    asked = [Question("sat mur " * 40 + row["context"], row["question"], ()) for row in rows(run)]
    made = list(predictor.predict(asked, QA))
    right = [p.of(q) == row["answers"][0]["text"] for p, q, row in zip(made, asked, rows(run), strict=True)]
    assert np.mean(right) > 0.6
    assert all(p.start >= 320 for p, is_right in zip(made, right, strict=True) if is_right)
    assert not predictor.pop_length_warnings()


def test_json_gets_the_answer_and_its_place_and_can_be_read_again(run, tmp_path):
    stream = io.BytesIO(b"".join(json.dumps(row).encode() + b"\n" for row in rows(run)))
    formats, predict = choose_formats("qa", "jsonl", None), run.predictor.predictions
    made = "".join(predict_stream(stream, QA, formats=formats, predict=predict))
    (tmp_path / "made.jsonl").write_text(made)
    scores = run.evaluate({"qa/aa": str(tmp_path / "made.jsonl")}).results[QA].scores
    assert [score.value for score in scores] == [100.0, 100.0], (
        "what is predicted is the gold answer of what was written"
    )
    for line, row in zip(made.splitlines(), rows(run), strict=True):
        (answer,) = json.loads(line)["answers"]
        assert row["context"][answer["answer_start"] :].startswith(answer["text"])


def test_the_python_api_gives_text_place_and_probability(run):
    context = "mur ko lem sat fi sat"
    made = run.predict(("ba", context), "qa/aa")
    assert isinstance(made, AnswerPrediction)
    assert (made.text, context[made.start : made.end]) == ("fi", "fi")
    assert made.score is not None
    assert 0.5 < made.score <= 1
    assert run.predict(Question(context, "ba", ()), "qa/aa") == made
    empty = run.predict(("ba", " \n"), "qa/aa")
    assert (empty.text, empty.score) == ("", None)
    with pytest.raises(PolyloomError, match="expected question and context as a tuple"):
        run.predict("ba", "qa/aa")


def test_inputs_that_are_no_questions_fail_alone(run):
    stream = io.BytesIO(b"ba\n\nba\tmur fi sat\nba\tmur\tsat\n\tmur\n")
    formats, predict = choose_formats("qa", None, None), run.predictor.predictions
    assert "".join(predict_stream(stream, QA, formats=formats, predict=predict)) == "\n\nfi\n\n\n"


def test_the_report_shows_the_answer(run, tmp_path):
    run.evaluate()
    page = run.report(tmp_path / "report.html").read_text()
    assert "<dt>Answer</dt>" in page
    assert "<dt>Context</dt>" in page


def test_an_exported_adapter_predicts_the_same(run, tmp_path):
    export_run(run, [QA], tmp_path / "out", backbone=True)
    given = [Question(row["context"], row["question"], ()) for row in rows(run)]
    assert list(load_predictor(tmp_path / "out").predict(given, QA)) == list(run.predictor.predict(given, QA))


def test_what_other_formats_cannot_hold_is_refused(tmp_path):
    model = Model(tiny_backbone("bert"), tiny_config("hyperx"), languages=LANGUAGES, tasks={"qa": None}).eval()
    (adapter,) = generate_adapters(model, [Condition("qa", "tr")], whole=False)
    with pytest.raises(ExportError, match="no head there computes what Polyloom's head for qa does"):
        write_adapterhub(adapter, model.backbone.shape, tmp_path / "adapterhub")
    with pytest.raises(ExportError, match="what qa predicts is not a function of one graph"):
        write_onnx(model, [Condition("qa", "tr")], tmp_path / "onnx", baked=True)


def test_settings_are_stored_with_the_model_and_have_no_labels(run, tmp_path):
    config = QuestionAnsweringConfig(stride=7, max_tokens=5)
    model = Model(shared_backbone("bert"), tiny_config("hyperx"), languages=LANGUAGES, tasks={"qa": config})
    save_checkpoint(model, tmp_path / "checkpoint")
    assert load_checkpoint(tmp_path / "checkpoint", shared_backbone("bert")).tasks["qa"].config == config
    with pytest.raises(ConfigError, match=r"tasks\.qa\.labels: qa has no label set"):
        load_recipe(run.path.parent / "full.yaml", ["tasks.qa.labels=[a]"])


# -- characters and tokens ---------------------------------------------------------------------------------------------


@pytest.fixture(params=[*KINDS, "real"])
def any_tokenizer(request, tmp_path) -> Tokenizer:
    return load_tokenizer(
        request.getfixturevalue("pretrained") if request.param == "real" else KINDS[request.param](tmp_path)
    )


def gold_stretch(row) -> AnswerSpan:
    """What would be predicted if the head were certain of the encoded answer."""
    return AnswerSpan(row["begins"][row["first"]], row["ends"][row["last"]])


def test_the_tokens_of_an_answer_are_the_answer_in_every_script(any_tokenizer):
    """Exactly its characters; where a token is larger than the answer, no more than that token."""
    exact = 0
    for context, answers in TEXTS.items():
        for answer in answers:
            record = Question(context, "a", (Answer(answer, context.index(answer)),))
            (row,) = TASKS["qa"].encode([record], any_tokenizer, {})
            assert list(row["context"]) == any_tokenizer.text([context])[0]
            found = gold_stretch(row).of(record)
            assert answer in found, (answer, found)
            assert found == found.strip()
            first, last = row["first"], row["last"]
            assert row["ends"][first] > context.index(answer)
            assert row["begins"][last] < context.index(answer) + len(answer)
            exact += found == answer
    total = sum(map(len, TEXTS.values()))
    assert exact >= total - 10, "letters that a vocabulary does not know make one token of a word"


def test_the_real_tokenizer_finds_every_answer_exactly(pretrained):
    tokenizer = load_tokenizer(pretrained)
    for context, answers in TEXTS.items():
        for answer in answers:
            record = Question(context, "a", (Answer(answer, context.index(answer)),))
            (row,) = TASKS["qa"].encode([record], tokenizer, {})
            assert gold_stretch(row).of(record) == answer
    located = tokenizer.located(["ไทย", "a b"])
    assert located[0].begins == [-1, 0, 1, 2], "a bare word mark is no part of an answer"
    assert (located[1].begins, located[1].ends) == ([0, 2], [1, 3])


def test_the_second_of_two_equal_words_is_found_where_it_is(tokenizer):
    record = Question("ba do ba do", "fi", (Answer("do", 9),))
    (row,) = TASKS["qa"].encode([record], tokenizer, {})
    assert (row["first"], row["last"], gold_stretch(row)) == (3, 3, (9, 11))


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [1, 2, 5, 16, 100])
@pytest.mark.parametrize("stride", [1, 4, 8, 128])
def test_windows_cover_every_token_and_every_short_answer(room, stride):
    for count in range(120):
        windows = _windows(count, room, stride)
        shared = min(stride, room // 2)
        assert windows[0][0] == 0
        assert windows[-1][1] == count
        assert all(end - begin <= room for begin, end in windows)
        assert [before[1] - after[0] for before, after in pairwise(windows)] == [shared] * (len(windows) - 1)
        for first in range(count - shared + 1):  # as long as what windows share
            assert any(begin <= first and first + shared <= end for begin, end in windows)


def collated(tokenizer: Tokenizer, *records: Question, max_length: int = 12, labelled: bool = True, **settings):
    task = QuestionAnswering(QuestionAnsweringConfig(**settings), width=2)
    with torch.no_grad():
        task.classifier.weight.copy_(torch.eye(2))  # so that hidden states are logits
    rows = TASKS["qa"].encode(records, tokenizer, {} if labelled else None)
    batch = task.collate([Example(QA, row) for row in rows], tokenizer=tokenizer, max_length=max_length)
    return task, batch


def test_a_window_has_the_question_and_a_part_of_the_context(tokenizer):
    record = Question("ba do fi gu ko lem", "sat mur", (Answer("fi gu", 6),))
    _, batch = collated(tokenizer, record, max_length=9, stride=1)  # three special tokens, two and four others
    texts = [("sat mur", "ba do fi gu"), ("sat mur", "gu ko lem")]
    assert [list(row.ids) for row in batch.sequences] == [tokenizer.pair(*tokenizer.text(pair))[0] for pair in texts]
    assert list(batch.examples) == [0, 0]
    assert batch.count == 2
    assert batch.targets["targets_B2"].tolist() == [[6, 7], [0, 0]], "the second has only a half of the answer"
    assert batch.targets["begin_BT"].tolist() == [[-1] * 4 + [0, 3, 6, 9, -1], [-1] * 4 + [9, 12, 15, -1, -1]]
    assert batch.targets["end_BT"].tolist() == [[-1] * 4 + [2, 5, 8, 11, -1], [-1] * 4 + [11, 14, 18, -1, -1]]


@pytest.mark.parametrize(
    ("answer", "targets"),
    [("ba", [[4, 4], [0, 0]]), ("gu", [[7, 7], [4, 4]]), ("gu ko", [[0, 0], [4, 5]]), ("fi gu ko", [[0, 0], [0, 0]])],
)
def test_an_answer_is_learnt_in_every_window_that_has_all_of_it(tokenizer, answer, targets):
    context = "ba do fi gu ko lem"
    record = Question(context, "sat mur", (Answer(answer, context.index(answer)),))
    _, batch = collated(tokenizer, record, max_length=9, stride=1)
    assert batch.targets["targets_B2"].tolist() == targets


@torch.no_grad()
def test_the_loss_is_over_the_context_and_the_first_token(tokenizer):
    record = Question("ba do fi gu ko lem", "sat mur", (Answer("fi gu", 6),))
    task, batch = collated(tokenizer, record, max_length=9, stride=1)
    hidden = torch.randn(2, 15, 2)  # as wide as rows of other tasks may be
    expected = torch.zeros(())
    for row, places, target in ((0, [0, 4, 5, 6, 7], (3, 4)), (1, [0, 4, 5, 6], (0, 0))):
        for side in (0, 1):
            expected -= hidden[row, places, side].log_softmax(0)[target[side]] / 2
    torch.testing.assert_close(task.loss(HeadInputs(hidden, vocabulary=None), batch), expected)  # type: ignore[arg-type]


@torch.no_grad()
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 30])
def test_the_best_stretch_of_all_windows_is_that_of_trying_all(tokenizer, max_tokens):
    """For random logits: begin before end, in the context of one window, of at most so many tokens."""
    draw = random.Random(max_tokens)
    words = ["ba", "do", "fi", "gu", "zebra"]
    records = [Question("  ".join(draw.choices(words, k=draw.randint(1, 12))), "ko lem", ()) for _ in range(20)]
    task, batch = collated(tokenizer, *records, labelled=False, max_tokens=max_tokens, stride=3)
    hidden = torch.randn(len(batch.sequences), 40, 2) * 3
    states = HeadInputs(hidden, vocabulary=None)  # type: ignore[arg-type]
    predictions = task.decode(states, batch)
    confidences = task.confidences(states, batch, predictions)
    assert len(batch.sequences) > len(records) + 5
    for number, record in enumerate(records):
        tried = {}
        located = tokenizer.located([record.context])[0]
        windows = _windows(len(located.ids), 12 - 3 - 2, 3)
        mine = [row for row, owner in enumerate(batch.examples) if owner == number]
        for row, (begin, end) in zip(mine, windows, strict=True):
            for first in range(begin, end):
                for last in range(first, min(first + max_tokens, end)):
                    place = 1 + 2 + 1 - begin  # [CLS], two tokens of the question, [SEP]
                    score = hidden[row, first + place, 0] + hidden[row, last + place, 1]
                    tried[row, first, last] = float(score)
        _, first, last = max(tried, key=tried.__getitem__)
        assert predictions[number] == (located.begins[first], located.ends[last])
        probabilities = torch.tensor(list(tried.values())).softmax(0)
        assert confidences[number] == pytest.approx(float(probabilities.max()), rel=1e-4)


def test_a_long_question_is_cut_and_counted(tokenizer):
    record = Question("ba do fi", "sat " * 30, ())
    task, batch = collated(tokenizer, record, labelled=False, max_length=13)
    (row,) = TASKS["qa"].encode([record], tokenizer)
    assert task.is_cut(row, tokenizer=tokenizer, max_length=13)
    assert [len(sequence.ids) for sequence in batch.sequences] == [3 + 5 + 3]


def test_long_contexts_do_not_share_a_batch(run):
    """Each takes hundreds of rows; together they would not fit in memory."""
    predictor = Predictor(run.model, tokenizer=run.predictor.tokenizer, max_length=24)
    asked = [(QA, Question("sat mur " * count, "ba", ())) for count in (1500, 5, 1600, 4)]
    groups = list(group_by_length([predictor.length(one) for one in predictor.encode(asked)], tokens=4096))
    assert groups == [[3, 1], [0], [2]]
