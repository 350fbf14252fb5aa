"""Two processes with shards are one process: steps, validation, stages, checkpoints, resuming."""

import os
from functools import partial

import pytest
import torch

from polyloom.checkpoint import load_checkpoint, read_tensors, read_training, trained_parameters
from polyloom.config.build import build_backbone
from polyloom.rundir import RunDir
from polyloom.training.distributed import ProcessGroup, trained_banks
from polyloom.training.events import StepTaken
from tests.reliability.forks import alone, read_log, together
from tests.reliability.tiny import CALM, changed, distance, tiny_fit, tiny_setup, weights
from tests.shared import nightly

SETTINGS = {"steps": 20, "strategy": "fsdp", "evaluate_every": 10, "save_every": 5, "rows_per_batch": 4}


def trained(setup, run, process_group, *, stop=None):
    """Train with validation; weights at the end, and the last checkpoint's optimizer."""

    def on_event(event):
        if isinstance(event, StepTaken) and event.total == stop:
            os._exit(1)

    # Shards are not validated in shares: every process takes part in all.
    validate = partial(setup.validate, process_group=process_group or ProcessGroup())
    tiny_fit(setup, run, process_group=process_group, validate=validate, on_event=on_event).run()
    folder = RunDir(run)
    optimizer, _ = read_training(folder.checkpoint(folder.steps()[-1]))
    banks = [parameter for bank in trained_banks(setup.model) for parameter in bank.parameters()]
    assert all(type(parameter.data) is torch.Tensor for parameter in banks), "every process has a copy of banks"
    return {"weights": weights(setup), "optimizer": optimizer}


@pytest.mark.parametrize("method", ["hyperx", *nightly("madx")])
def test_shards_train_validate_save_and_resume_as_one_process_does(world, tmp_path, method):
    setup = tiny_setup(world, method, optim=CALM, train=SETTINGS, mixture={"datasets_per_batch": 4})
    (one,) = together(lambda process_group: trained(setup, tmp_path / "one", process_group), tmp_path)
    two, other = together(lambda process_group: trained(setup, tmp_path / "two", process_group), tmp_path, size=2)
    assert not changed(two["weights"], other["weights"])
    assert distance(one["weights"], two["weights"]) <= 1e-4
    assert distance(one["optimizer"], two["optimizer"]) <= 1e-3
    start = weights(setup)
    for stage in setup.plans:
        for group in stage.stage.trains:
            own = setup.model.groups()[group]
            names = {name for name, parameter in setup.model.named_parameters() if any(parameter is p for p in own)}
            assert changed({n: start[n] for n in names}, {n: two["weights"][n] for n in names}), group
    scores = [[e["scores"] for e in read_log(tmp_path / n) if e["event"] == "validation"] for n in ("one", "two")]
    assert len(scores[1]) == 2  # of the stage that learns from labels
    for mine, theirs in zip(*scores, strict=True):
        assert mine == pytest.approx(theirs, abs=0.5)

    with pytest.raises(AssertionError, match="children ended"):
        together(
            lambda process_group: trained(setup, tmp_path / "broken", process_group, stop=13), tmp_path / "dies", size=2
        )
    resumed, _ = together(lambda process_group: trained(setup, tmp_path / "broken", process_group), tmp_path, size=2)
    for part in ("weights", "optimizer"):
        assert not changed(two[part], resumed[part])


def test_a_checkpoint_of_shards_serves_and_goes_on_in_one_process(world, tmp_path):
    setup = tiny_setup(world, "full", optim=CALM, train=SETTINGS | {"rows_per_batch": 16})
    sharded, _ = together(lambda process_group: trained(setup, tmp_path / "run", process_group), tmp_path, size=2)
    losses = [e["losses"]["ner"] for e in read_log(tmp_path / "run") if e["event"] == "step" and "ner" in e["losses"]]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5]), "it learns"
    best = RunDir(tmp_path / "run").best()
    model = load_checkpoint(best, build_backbone(setup.recipe.backbone, setup.tokenizer, seed=0))
    stored = read_tensors(best)
    assert not changed(stored, dict(trained_parameters(model)))
    validated = [event for event in read_log(tmp_path / "run") if event["event"] == "validation" and event["best"]]
    found = {str(condition): score.value for condition, score in setup.validate(model, setup.plans[0]).items()}
    assert found == pytest.approx(validated[-1]["scores"], abs=0.5)
    (tmp_path / "run" / "checkpoints" / "step-00000020" / "polyloom.json").unlink()
    found = alone(lambda: trained(setup, tmp_path / "run", None), tmp_path)
    assert distance(found["weights"], sharded["weights"]) <= 1e-4
    assert [e["total"] for e in read_log(tmp_path / "run") if e["event"] == "resumed"] == [15]
