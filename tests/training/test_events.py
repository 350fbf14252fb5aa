"""Events are read from logs as they were written."""

import json
from pathlib import Path
from typing import Any

import pytest

from polyloom.cli.render import train as train_view
from polyloom.data.mixture import Share
from polyloom.errors import DataError
from polyloom.io.sealed import seal_line
from polyloom.training.events import (
    _EVENTS,
    CheckpointSaved,
    CheckpointsAveraged,
    CheckpointSkipped,
    DatasetPrepared,
    DatasetStarted,
    Diverged,
    DonorScored,
    Event,
    IssueFound,
    LanguageShares,
    MixtureReady,
    ParameterGroup,
    Resumed,
    RowAdded,
    RowStep,
    RunFinished,
    RunStarted,
    Scored,
    ScoringStarted,
    StageStarted,
    StepSkipped,
    StepTaken,
    Translated,
    Validated,
    read_log,
)
from polyloom.training.history import History


def step(
    total: int, *, event_type: type[StepTaken | StepSkipped] = StepTaken, **changes: Any
) -> StepTaken | StepSkipped:
    fields: dict[str, Any] = {
        "step": total, "total": total, "loss": 2.5, "losses": {"pos": 2.5}, "datasets": {"pos/aa": 8}, "tokens": 40,
        "gradient_norm": 1.25, "lr_factor": 0.5, "seconds": {"data": 0.1, "compute": 0.2},
    }  # fmt: skip
    return event_type(**fields | changes)


def validated(total: int, **changes: Any) -> Validated:
    fields: dict[str, Any] = {"scores": {"pos/aa": 91.2}, "metrics": {"pos/aa": "accuracy"}, "selection_score": 91.2}
    return Validated(step=total, total=total, best=True, **fields | changes)


def stage(**changes: Any) -> StageStarted:
    fields: dict[str, Any] = {"stage": "joint", "steps": 4, "done": 0, "weight_std": {"down": 0.1}}
    return StageStarted(parameter_report=[ParameterGroup("heads", 3, 4, 1)], **fields | changes)


ALL = [
    DatasetStarted(dataset="pos/aa"),
    DatasetPrepared(dataset="mt/aa/bb", examples=3, dropped={"length": 1}, path="x.arrow"),
    RunStarted(versions={"polyloom": "1"}, corpora={"ud:x": "00"}),
    IssueFound(severity="serious", what="one label", refused=True),
    CheckpointSkipped(checkpoint="step-00000004", reason="damaged"),
    Resumed(stage=0, step=2, total=2, checkpoint="step-00000002"),
    stage(),
    MixtureReady(datasets=[Share("pos/aa", 200, 0.5, 1.25)]),
    step(1),
    step(2, event_type=StepSkipped, loss=None, gradient_norm=None, losses={}),
    validated(2),
    CheckpointSaved(total=2, seconds=0.1),
    Diverged(total=9, checkpoint=None),
    LanguageShares(stage="joint", before={"pos": 0.5}, after={"pos": 0.6}),
    RunFinished(steps=2, seconds=1.5, tokens=80),
    CheckpointsAveraged(run="a", steps=[1, 2]),
    RowAdded(run="runs/a", checkpoint="step-00000002", trained_on=["mlm/gn"]),
    DonorScored(donor="aa", score=-1.5, done=1, total=2),
    RowStep(step=1, steps=2, loss=0.5, score=None),
    ScoringStarted(condition="pos/aa"),
    Scored(condition="pos/aa", scores={"accuracy": 91.2}),
    Translated(done=1, total=2),
]


def write(path: Path, *events: Event, tail: str = "") -> Path:
    lines = [seal_line(json.dumps(event.to_dict(), ensure_ascii=False)) for event in events]
    path.write_text("".join(f"{line}\n" for line in lines) + tail, encoding="utf-8")
    return path


def test_every_event_is_read_as_it_was_written(tmp_path):
    assert {type(event) for event in ALL} == set(_EVENTS.values())
    assert list(read_log(write(tmp_path / "log", *ALL))) == ALL
    assert [*step(1).to_dict()][:3] == ["event", "time", "step"], "a log is read by people and by grep, too"


def test_only_an_incomplete_last_line_is_skipped(tmp_path):
    log = write(tmp_path / "log", step(1), tail='{"event": "st')
    assert [type(event) for event in read_log(log)] == [StepTaken]
    write(log, step(1), tail=seal_line(json.dumps(step(2).to_dict())))
    assert len(list(read_log(log))) == 2, "a complete event without a line break is an event"
    write(log, RunStarted(versions={}, corpora={"a\u2028b": "00"}), step(1))
    assert len(list(read_log(log))) == 2, "only line feeds end a line"
    assert list(read_log(tmp_path / "missing")) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"event": "st', "has no CRC-32"),
        ("", "has no CRC-32"),
        (json.dumps(step(2).to_dict()), "has no CRC-32"),
        (seal_line('{"event": "st}'), "delimiter"),
        (seal_line('{"a": 1}'), "event"),
        (seal_line('{"event": "leap"}'), "unknown event 'leap'"),
        (seal_line('{"event": "saved", "time": 1.0, "total": 3}'), "event 'saved' has no seconds"),
        (seal_line('{"event": "saved", "seconds": 1.0, "total": 3}'), "event 'saved' has no time"),
    ],
)
@pytest.mark.parametrize("following", [(), (step(2),)])
def test_other_lines_that_are_no_events_are_errors_with_their_number(tmp_path, line, reason, following):
    log = write(tmp_path / "log", step(1))
    more = [line, *(seal_line(json.dumps(event.to_dict())) for event in following)]
    log.write_text(log.read_text() + "".join(f"{one}\n" for one in more))
    with pytest.raises(DataError, match=rf"log:2: not an event of a run \(.*{reason}.*\)"):
        list(read_log(log))


def test_a_history_counts_repeated_steps_once(tmp_path):
    resumed = Resumed(stage=0, step=1, total=1, checkpoint="step-00000001")
    mixture = MixtureReady(datasets=[Share("pos/aa", 200, 1.0, 0.5)])
    again = stage(done=1)
    log = write(
        tmp_path / "log",
        *(RunStarted(versions={}, corpora={}), stage(), mixture, step(1), step(2), validated(2)),
        *(resumed, again, mixture, step(2, loss=1.0), step(3, event_type=StepSkipped, loss=None)),
        RunFinished(steps=3, seconds=1.0, tokens=120),
    )
    history = History.read(log)
    assert [(s.total, s.loss) for s in history.steps] == [(1, 2.5), (2, 1.0), (3, None)]
    assert history.validations == []
    assert history.stages["joint"].done == 0
    assert history.mixtures == {"joint": [Share("pos/aa", 200, 1.0, 0.5)]}
    assert history.begin is not None
    assert history.done is not None


def test_a_history_counts_steps_of_a_run_that_began_again_once(tmp_path):
    begun = RunStarted(versions={}, corpora={})
    log = write(tmp_path / "log", begun, step(1), step(2), validated(2), begun, step(1, loss=1.0), step(2, loss=0.5))
    history = History.read(log)
    assert [(s.total, s.loss) for s in history.steps] == [(1, 1.0), (2, 0.5)]
    assert history.validations == []


@pytest.mark.parametrize(
    ("scores", "metrics", "selection_score", "line"),
    [
        ({"pos/de": 91.2}, ["accuracy"], 91.2, "pos/de accuracy 91.20; selection score 91.20 (mean; higher is better)"),
        (
            {"mlm/tr": 12.3, "mt/en/de": 7.1}, ["perplexity", "perplexity"], -2.2347,
            ("mlm/tr perplexity 12.30 · mt/en/de perplexity 7.10; "
            "selection score -2.23 (mean, minus the loss in nats per token; higher is better)"),
        ),
        (
            {"pos/de": 91.2, "mt/en/de": 7.1}, ["accuracy", "perplexity"], 44.62,
            ("pos/de accuracy 91.20 · mt/en/de perplexity 7.10; "
            "selection score 44.62 (mean, minus the loss in nats per token for perplexities; higher is better)"),
        ),
        (
            {"mlm/tr": None}, ["perplexity"], None,
            ("mlm/tr perplexity NaN or infinite; "
            "selection score NaN or infinite (mean, minus the loss in nats per token; higher is better)"),
        ),
    ],
)  # fmt: skip
def test_a_validation_line_names_every_metric(scores, metrics, selection_score, line):
    event = validated(
        1000, scores=scores, metrics=dict(zip(scores, metrics, strict=True)), selection_score=selection_score
    )
    (message,) = train_view._messages(event)
    assert message == f"Validation at step 1,000: {line}, the best so far"
