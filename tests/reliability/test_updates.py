"""Updates: what learns moves, what does not stays, and how a batch is cut changes nothing."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polyloom.methods.base import Stage
from polyloom.nn.tables import Bank, normal_init, sparse_gradients, sparse_rows
from polyloom.training.added_rows import fit_added_row
from polyloom.training.optim import RowAdam
from tests.reliability.tiny import CALM, METHODS, changed, distance, record, rejoined, tiny_loop, tiny_setup, weights
from tests.shared import nightly
from tests.tiny_run import LANGUAGES

CONSTANT = {"schedule": "constant", "warmup_steps": 0}


def test_languages_trained_side_by_side_are_those_trained_alone(world):
    """Bit for bit: neither momentum nor counts of steps nor clipping leak from one row of a bank to another."""
    madx = {"name": "madx", "train_head": False}  # the stage of the language adapters is the first

    def trained(chosen):
        setup = tiny_setup(
            world,
            madx,
            mixture={"strategy": "round-robin", "temperature": 1.0, "datasets_per_batch": 1},
            optim=CONSTANT,
        )
        loop = tiny_loop(setup, steps=24)
        batches = [batch for batch in map(loop.mixture.batch, range(24)) if batch[0].dataset in chosen]
        loop = tiny_loop(setup, steps=len(batches))
        setattr(loop, "mixture", SimpleNamespace(batch=batches.__getitem__))  # noqa: B010 - not a Mixture, to mypy
        assert not any(step.skipped for step in loop.steps())
        return dict(setup.model.method.named_parameters())

    start = dict(tiny_setup(world, madx).model.method.named_parameters())
    together = trained([f"mlm/{language}" for language in LANGUAGES])
    for row, language in enumerate(LANGUAGES):
        alone = trained([f"mlm/{language}"])
        for name in start:
            if name.startswith(("language_adapters", "invertible_adapters")):
                assert torch.equal(alone[name][row], together[name][row])
                assert not torch.equal(alone[name][row], start[name][row])
                others = [other for other in range(len(LANGUAGES)) if other != row]
                assert torch.equal(alone[name][others], start[name][others])


def test_the_state_of_row_adam_has_the_rows_that_were_updated():
    """And a restored state goes on bit for bit."""
    torch.manual_seed(0)
    start, used = torch.randn(40, 2, 3), [[7], [2, 7], [31, 2], [0, 7, 12]]
    gradients = [sparse_rows(torch.tensor(sorted(rows)), torch.randn(len(rows), 2, 3), start.shape) for rows in used]

    def stepped(parameter, optimizer, gradients):
        for gradient in gradients:
            parameter.grad = gradient
            optimizer.step()
        return optimizer.state[parameter]

    one, other = (torch.nn.Parameter(start.clone()) for _ in range(2))
    settings: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    state = stepped(one, RowAdam([one], settings), gradients)
    assert state["rows"].tolist() == [7, 2, 31, 0, 12]
    assert state["step"].tolist() == [3, 2, 1, 1, 1]
    assert {len(tensor) for tensor in state.values()} == {5}
    untouched = [row for row in range(40) if row not in state["rows"]]
    assert torch.equal(one[untouched], start[untouched])
    saved = {key: value.clone() for key, value in stepped(other, RowAdam([other], settings), gradients[:2]).items()}
    again = RowAdam([other], settings)
    again.restore(other, saved)
    stepped(other, again, gradients[2:])
    assert torch.equal(one, other)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("method", ["madx", *nightly("badx", "multilingual")])
def test_sparse_gradients_of_banks_change_no_bit(world, method, accumulate, monkeypatch):
    """A step costs the rows that it uses, not those of the whole bank, and ends with the same weights."""
    ends, sparse = [], set()
    for dense in (False, True):
        if dense:
            monkeypatch.setattr("polyloom.training.loop.trained_banks", lambda _: [])
        setup = tiny_setup(world, method, optim={"max_grad_norm": 0.0})  # the order of a norm's sum may differ
        for number in range(len(setup.plans)):
            loop = tiny_loop(setup, number, steps=6, grad_accum_steps=accumulate)
            of_banks = [p for module in setup.model.modules() if isinstance(module, Bank) for p in module.parameters()]
            hooks = [
                parameter.register_post_accumulate_grad_hook(lambda p, d=dense: sparse.add((d, p.grad.is_sparse)))
                for parameter in of_banks
                if parameter.requires_grad
            ]
            assert not any(step.skipped for step in loop.steps())
            for hook in hooks:
                hook.remove()
        ends.append(weights(setup))
    assert sparse == {(False, True), (True, False)}
    assert not changed(*ends)


class Copies(TorchDispatchMode):
    """Counts the bytes that are copied."""

    num_bytes = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result = operation(*arguments, **(options or {}))
        if operation in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default):
            self.num_bytes += (result.values() if result.is_sparse else result).nbytes
        return result


def test_fitting_an_added_row_copies_that_row_and_not_its_bank(world):
    """And ends with the best row: here that of the second of three scores."""
    copied = []
    for languages in (4, 40):
        setup = tiny_setup(
            world,
            {"name": "madx", "train_head": False},
            languages=["bb", "cc", *(f"l{n}" for n in range(languages - 3)), "aa"],
        )
        loop = tiny_loop(setup)
        plan = replace(
            loop.plan,
            stage=Stage("add", ("rows.language",)),
            datasets=tuple(d for d in loop.plan.datasets if d.name == "mlm/aa"),
            train=replace(loop.plan.train, steps=4, evaluate_every=2),
        )
        before, scores = weights(setup), iter([1.0, 3.0, 2.0])
        seen: list[dict[str, torch.Tensor]] = []

        def score(setup=setup, seen=seen, scores=scores):
            seen.append(weights(setup))
            return next(scores)

        with Copies() as copies:
            scored = fit_added_row(setup.model, plan, tokenizer=setup.tokenizer, kind="language", score=score)
        assert scored == (1.0, 3.0)
        own = sum(tensor.nbytes for found in seen for tensor in found.values())
        copied.append(copies.num_bytes - own)  # without those that this test makes
        assert not changed(weights(setup), seen[1])
        moved = {name: (seen[1][name] != before[name]).flatten(1).any(1) for name in changed(before, seen[1])}
        assert moved
        assert all(rows.nonzero().flatten().tolist() == [languages - 1] for rows in moved.values())
    assert copied[0] == copied[1]


def test_a_bank_has_dense_gradients_outside_of_training():
    """So that other training loops, and optimizers of torch, can train it."""
    bank = Bank("language", 4, num_sites=2, shapes={"down": (3,)}, init=normal_init(1.0))
    with sparse_gradients([bank]):
        sparse = bank(torch.tensor([[3, 3], [1, 3]]))["down"]
    dense = bank(torch.tensor([[3, 3], [1, 3]]))["down"]
    assert torch.equal(sparse, dense)
    factors = torch.randn_like(dense)
    gradients = [torch.autograd.grad((one * factors).sum(), bank.get_parameter("down"))[0] for one in (sparse, dense)]
    assert [gradient.is_sparse for gradient in gradients] == [True, False]
    assert gradients[0].indices().tolist() == [[1, 3]]
    assert torch.equal(gradients[0].to_dense(), gradients[1])


def test_with_gradients_everywhere_row_adam_is_adam():
    torch.manual_seed(0)
    one = torch.nn.Parameter(torch.randn(5, 2, 3, dtype=torch.float64))  # where rounding hides nothing
    other = torch.nn.Parameter(one.detach().clone())
    settings: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    adam, row_adam = torch.optim.AdamW([one], **settings), RowAdam([other], settings)
    for _ in range(50):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
        adam.step()
        row_adam.step()
    assert float((one - other).detach().abs().max()) <= 1e-12


@pytest.mark.parametrize("method", ["hyperx", "madx", "full"])
def test_how_many_pieces_a_batch_is_worked_off_in_changes_nothing(world, method):
    ends, streams = [], []
    for accumulate in (1, 4):
        setup = tiny_setup(world, method, optim=CALM)
        loop = tiny_loop(setup, stage=-1, steps=20, grad_accum_steps=accumulate)
        seen, steps = record(loop), []
        for _ in loop.steps():
            steps.append(rejoined(seen))
            assert len(seen) == accumulate
            seen.clear()
        ends.append(weights(setup))
        streams.append(steps)
    assert streams[0] == streams[1] == [rejoined([loop.mixture.batch(index)]) for index in range(20)]
    assert distance(*ends) <= 1e-6
    assert changed(ends[0], weights(tiny_setup(world, method)))


@pytest.mark.parametrize("method", METHODS)
def test_what_a_stage_does_not_train_stays_and_what_it_trains_moves(world, method):
    setup = tiny_setup(world, method, optim={"weight_decay": 0.0})
    for number, plan in enumerate(setup.plans):
        before = weights(setup)
        loop = tiny_loop(setup, number, steps=12)
        assert not any(step.skipped for step in loop.steps())
        moved = changed(before, weights(setup))
        names = {parameter: name for name, parameter in setup.model.named_parameters()}
        groups = {g: {names[p] for p in own} for g, own in setup.model.groups().items()}
        trained = set().union(*(groups[group] for group in plan.stage.trains))
        assert moved <= trained
        for group in plan.stage.trains:
            if group == "heads":
                learnt = {name for name in groups["heads"] if name.split(".")[1] in seen_tasks(plan)}
                assert moved & groups["heads"] == learnt
            elif group.startswith("backbone"):
                assert len(moved & groups[group]) > 0.8 * len(groups[group])  # heads of other tasks are among them
            else:
                assert moved >= groups[group], group
        only_rows_with_data_moved(setup, plan, before)


def seen_tasks(plan):
    return {dataset.condition.task for dataset in plan.datasets}


def only_rows_with_data_moved(setup, plan, before):
    for name, module in setup.model.named_modules():
        if isinstance(module, Bank) and module.keyed_by == "task" and "task_adapters" in plan.stage.trains:
            for row, task in enumerate(setup.model.method.tasks):
                table = f"{name}.{module.names[0]}"
                for own in range(row * module.rows_per_key, (row + 1) * module.rows_per_key):  # badx: of every pair
                    same = torch.equal(before[table][own], setup.model.get_parameter(table)[own])
                    assert same == (task not in seen_tasks(plan))
