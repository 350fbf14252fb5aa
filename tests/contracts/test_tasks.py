"""Tasks predict each example as if it were alone, record kinds read what they write, metrics are functions of sums."""

import json
import random
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from polyloom.backbones import load_backbone
from polyloom.conditions import Condition
from polyloom.data.kinds import RECORDS, RecordKind, prediction_to_dict
from polyloom.data.records import Record
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.inference.predictor import Predictor
from polyloom.methods.hyperx import HyperXConfig
from polyloom.metrics.score import METRICS
from polyloom.model import Model
from polyloom.tasks import TASKS
from tests.contracts.tiny import own_or_all, tiny_config
from tests.tiny_run import WORDS, write_backbone

LANGUAGES = ("en", "tr")
# Tasks that predict with a head of their own; those of language models have tests with decoders.
PREDICTING = [name for name, task in TASKS.items() if RECORDS[task.kind].prediction and not task.uses_lm_head]


@pytest.fixture(scope="module")
def predictor(tmp_path_factory) -> Predictor:
    """A random model with all of these tasks."""
    folder = tmp_path_factory.mktemp("backbone")
    write_backbone(folder)
    labels = {name: ("O", "B-A", "I-A") if TASKS[name].needs_labels else None for name in PREDICTING}
    config = tiny_config(HyperXConfig.name)
    model = Model(load_backbone(folder), config, languages=LANGUAGES, tasks=labels)
    torch.manual_seed(3)
    for parameter in (*model.method.parameters(), *model.heads.parameters()):
        parameter.data.normal_(std=0.3)
    return Predictor(model.eval(), tokenizer=load_tokenizer(folder))


def records_of(kind: RecordKind) -> list[Record]:
    """Records of one to six words in each of their texts."""
    draw, records = random.Random(kind.name), []
    for length in (3, 1, 6, 2, 5):
        texts = tuple(" ".join(draw.choices(WORDS, k=length)) for _ in kind.fields)
        record = kind.from_value(texts[0] if len(texts) == 1 else texts, "en")
        assert record is not None, f"{kind.name}: from_value takes a text for each of {kind.fields}"
        records.append(record)
    return records


@pytest.mark.parametrize("task", own_or_all(PREDICTING))
def test_examples_in_a_batch_are_predicted_like_each_alone(task, predictor):
    records = records_of(RECORDS[TASKS[task].kind])
    inputs = [(Condition(task, LANGUAGES[i % 2]), record) for i, record in enumerate(records)]
    together = list(predictor.predictions(inputs))
    assert len(together) == len(inputs)
    for prediction, one in zip(together, inputs, strict=True):
        (alone,) = predictor.predictions([one])
        assert_close(prediction_to_dict(prediction), prediction_to_dict(alone))


def assert_close(one: Any, other: Any) -> None:
    """Both are the same plain data; numbers may differ by rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = [*one.values()], [*other.values()]
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_close(left, right)
    else:
        assert one == (pytest.approx(other, abs=1e-4) if isinstance(one, float) else other)


@pytest.mark.parametrize("task", own_or_all(PREDICTING))
def test_predictions_are_read_from_the_json_that_they_are_written_to(task, predictor):
    kind = RECORDS[TASKS[task].kind]
    for prediction in predictor.predictions([(Condition(task, "en"), record) for record in records_of(kind)]):
        assert kind.from_dict(json.loads(json.dumps(prediction_to_dict(prediction)))) == prediction
        assert "\n" not in kind.to_line(prediction)


@pytest.mark.parametrize("kind", [name for name in own_or_all(RECORDS) if RECORDS[name].prediction])
def test_records_are_read_from_the_values_that_are_sent_to_a_server(kind):
    for record in records_of(RECORDS[kind]):
        again = RECORDS[kind].from_value(RECORDS[kind].to_value(record), "en")
        assert RECORDS[kind].accepts(record)
        assert again is not None
        assert RECORDS[kind].texts(again) == RECORDS[kind].texts(record)
        assert asdict(again).keys() == asdict(record).keys()  # type: ignore[call-overload]


@pytest.mark.parametrize("metric", own_or_all(METRICS))
def test_a_metric_is_a_function_of_sums_for_many_samples_at_once(metric):
    """Confidence intervals compute it for thousands of resampled sums in one call."""
    draw = np.random.default_rng(0)
    statistics_NP = draw.integers(1, 9, size=(20, len(METRICS[metric].statistics)))
    sums_KP = np.stack([statistics_NP[draw.integers(0, 20, 20)].sum(0) for _ in range(6)])
    together = METRICS[metric].value(sums_KP)
    assert together.shape == (6,)
    assert together.tolist() == pytest.approx([float(METRICS[metric].value(sums_P)) for sums_P in sums_KP], nan_ok=True)
