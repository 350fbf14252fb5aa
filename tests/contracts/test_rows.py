"""Rows, not batches, have conditions: a mixed batch is each row alone, forward and backward, also in decoding."""

import random
from collections.abc import Hashable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from polyloom.backbones import FAMILIES
from polyloom.conditions import Condition
from polyloom.errors import BackboneError
from polyloom.methods import METHODS
from polyloom.methods.base import AdapterMethod, layer_blocks
from polyloom.model import Model
from polyloom.nn.blocks import BLOCKS, couple, uncouple
from polyloom.probe.swap import DonatedCache
from polyloom.weights import BackboneShape, Block, Weights
from tests.contracts.tiny import (
    ROWS,
    block_of,
    case_id,
    cases,
    has_two_stacks,
    is_decoder,
    logits,
    method_with,
    neutral_cases,
    only_own,
    own_or_all,
    pairwise_cases,
    shared_backbone,
    tiny_inputs,
    tiny_model,
)
from tests.covering import Case, covering, pairs
from tests.own import OWN

TOLERANCE = 1e-5


@pytest.mark.parametrize("case", neutral_cases())
def test_neutral_adapter_is_the_identity_bitwise(case):
    method, family, settings = case
    model, inputs = tiny_model(method, family, **settings), tiny_inputs(family)
    weights = model.weights(ROWS)
    neutral = Weights(tuple(without_effect(block, model.backbone.shape) for block in weights.blocks))
    with torch.no_grad():
        assert torch.equal(model(inputs, ROWS, weights=neutral).logits, model.backbone(**inputs).logits)


def without_effect(block: Block, shape: BackboneShape) -> Block:
    """The block with the values that have no effect, as its kind describes them."""
    kind, shapes = BLOCKS[block.kind], {name: tuple(tensor.shape[2:]) for name, tensor in block.tensors.items()}
    specs = kind.specs_like(shapes, shape)
    values = {name: spec.neutral for name, spec in specs.items() if spec.neutral is not None}
    return replace(
        block, tensors={n: torch.full_like(t, values[n]) if n in values else t for n, t in block.tensors.items()}
    )


@pytest.mark.parametrize("case", pairwise_cases())
def test_mixed_batch_equals_each_row_alone_forward_and_gradients(case):
    method, family, settings = case
    model, inputs = tiny_model(method, family, **settings), tiny_inputs(family)
    order = random.Random(5).sample(range(len(ROWS)), len(ROWS))
    rows, inputs = [ROWS[i] for i in order], {name: tensor[order] for name, tensor in inputs.items()}
    assert len(set(rows)) >= 5
    mixed, mixed_gradients = run(model, inputs, rows, total=len(rows))
    summed: dict[str, Tensor] = {}
    for i in range(len(rows)):
        row = {name: tensor[i : i + 1] for name, tensor in inputs.items()}
        alone, gradients = run(model, row, rows[i : i + 1], total=len(rows))
        close(mixed[i : i + 1], alone)
        for name, gradient in gradients.items():
            summed[name] = summed.get(name, torch.zeros_like(gradient)) + gradient
    assert mixed_gradients.keys() == summed.keys()
    for name, gradient in mixed_gradients.items():
        close(gradient, summed[name])


@pytest.mark.parametrize("case", pairwise_cases())
def test_every_condition_has_an_effect(case):
    """A model that ignored the condition would pass the test above."""
    method, family, settings = case
    parts = METHODS[method].conditioned_on
    model, inputs = tiny_model(method, family, **settings), tiny_inputs(family)
    same = {name: tensor[:1].expand(len(ROWS), -1) for name, tensor in inputs.items()}
    with torch.no_grad():
        out = logits(model, same, ROWS)
    for i, one in enumerate(ROWS):
        for j, other in enumerate(ROWS):
            same_task, same_languages = one.split("/")[0] == other.split("/")[0], one[3:] == other[3:]
            same_weights = all(same_task if part == "task" else same_languages for part in parts)
            assert (float((out[i] - out[j]).abs().max()) < 1e-5) == same_weights


def searches() -> list[Case]:
    """Every case that generates, with one beam and with five."""
    generating = [case for case in cases() if is_decoder(case[1]) or has_two_stacks(case[1])]
    return [(*case, beams) for case in generating for beams in (1, 5)]


def meetings_in_a_search(case: Case) -> set[Hashable]:
    """Every two of method, family, block and number of beams."""
    return only_own(pairs(case[0], case[1], block_of(case), case[3]))


@pytest.mark.parametrize("case", covering(searches(), meetings_in_a_search, name=case_id))
def test_generation_of_a_mixed_batch_equals_each_row_alone(case):
    method, family, settings, beams = case
    model, inputs = tiny_model(method, family, strength=1.0, **settings), tiny_inputs(family)
    inputs.pop("decoder_input_ids", None)
    options: dict[str, Any] = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False}
    mixed = model.generate(inputs, ROWS, **options)
    if any(block.placement != "head" for block in model.weights(ROWS).blocks):  # conditions matter
        one, other = (first_logits(model, inputs, rows, beams) for rows in (ROWS, [*ROWS[1:], ROWS[0]]))
        assert (one - other).abs().max() > TOLERANCE
    for i in range(len(ROWS)):
        alone = model.generate({name: t[i : i + 1] for name, t in inputs.items()}, ROWS[i : i + 1], **options)
        assert mixed[i, : alone.shape[1]].tolist() == alone[0].tolist()
        # Transformers' beam search fills up with the end token where the padding token is 0.
        assert set(mixed[i, alone.shape[1] :].tolist()) <= {0, 2}, "only filling may follow"


def first_logits(model: Model, inputs: dict[str, Tensor], rows: Any, beams: int) -> Tensor:
    """The logits of the first token in a search: a tiny model may write the same whatever its logits are."""
    options: dict[str, Any] = {"output_logits": True, "return_dict_in_generate": True, "do_sample": False}
    first: Tensor = model.generate(inputs, rows, max_new_tokens=1, num_beams=beams, **options).logits[0]
    return first


@pytest.mark.parametrize("block", own_or_all(layer_blocks()))
def test_a_family_without_a_place_for_a_block_refuses_it(block):
    method = next(name for name, kind in METHODS.items() if issubclass(kind, AdapterMethod))
    for family in FAMILIES:
        if not BLOCKS[block].placements(shared_backbone(family).shape):
            with pytest.raises(BackboneError, match=rf"method\.block: a {block} block .*{family}"):
                tiny_model(method, family, block=block)


def test_weights_are_made_once_for_a_whole_generation():
    model, inputs = tiny_model(method_with("language"), "m2m_100"), tiny_inputs("m2m_100")
    del inputs["decoder_input_ids"]
    calls: list[int] = []
    model.method.register_forward_hook(lambda *_: calls.append(1))
    model.generate(inputs, ROWS, max_new_tokens=6, num_beams=5)
    assert len(calls) == 1


def invertible_cases() -> list[Case]:
    """Every method that may have invertible adapters, in every family."""
    methods = [name for name, method in METHODS.items() if hasattr(method.config_type, "invertible")]
    return [case for case in product(methods, FAMILIES) if not OWN or OWN & {*case}]


@pytest.mark.parametrize("case", covering(invertible_cases(), lambda case: {*own_or_all(case)}, name="-".join))
def test_each_rows_invertible_adapter_acts_on_entrance_and_is_undone_before_the_vocabulary(case):
    method, family = case
    model, inputs = tiny_model(method, family, invertible=True), tiny_inputs(family)
    weights = model.weights(ROWS)
    block = weights.block("invertible")
    layers = model.backbone.model.base_model.get_submodule(next(iter(FAMILIES[family].stacks.values())))
    first, head = layers[0], model.backbone.model.get_output_embeddings()
    seen: dict[str, list[Tensor]] = {"entrance": [], "exit": []}

    def watch(place: str):
        return lambda _module, args, kwargs: seen[place].append(args[0] if args else kwargs["hidden_states"])

    handles = [
        module.register_forward_pre_hook(watch(place), with_kwargs=True, prepend=prepend)
        for place, module in (("entrance", first), ("exit", head))
        for prepend in (True, False)
    ]
    with torch.no_grad():
        model(inputs, ROWS, weights=weights)
    for handle in handles:
        handle.remove()
    (before, after), (made, undone) = seen["entrance"], seen["exit"]
    close(after, couple(before, block.by_site()[0]))
    close(undone, uncouple(made, block.by_site()[-1]))
    assert (after - before).abs().max() > 0.1
    assert (undone - made).abs().max() > 0.01


@pytest.mark.parametrize(
    ("method", "family"),
    [
        (method, family)
        for method, family in product(METHODS, FAMILIES)
        if "language" in METHODS[method].conditioned_on and has_two_stacks(family) and own_or_all((method, family))
    ],
)
def test_the_decoder_uses_the_target_alone_and_the_encoder_changes_with_the_source(method, family):
    model = tiny_model(method, family)
    for one, other in zip(model.weights(["mt/en/tr"]).blocks, model.weights(["mt/yo/tr"]).blocks, strict=True):
        same = {
            site: all(torch.equal(one.by_site()[i][n], other.by_site()[i][n]) for n in one.tensors)
            for i, site in enumerate(one.sites)
        }
        is_task = len(set(same.values())) == 1  # an adapter of a task, or of the head
        assert is_task or same == {site: site.stack == "decoder" for site in one.sites}


TRANSLATIONS = ("mt/en/tr", "mt/yo/tr", "pos/en/tr", "mt/en/sw", "mt/en/tr", "mt/sw/yo", "mt/no/tr")


@pytest.mark.parametrize("method", own_or_all(METHODS))
def test_sets_with_the_same_key_have_the_same_weights_in_the_decoder(method):
    """A search reads the weights of one of them for all; a key that says too little would mix up rows."""
    model = tiny_model(method, "m2m_100")
    rows = [row for row in (*TRANSLATIONS, *ROWS) if model.method.supports(Condition.parse(row))]
    weights = model.weights(rows)
    assert len(weights.decoder_keys) == len(rows)
    for (i, one), (j, other) in product(enumerate(weights.decoder_keys), repeat=2):
        same = [
            torch.equal(tensor[i, s], tensor[j, s])
            for block in weights.blocks
            for tensor in block.tensors.values()
            for s, site in enumerate(block.sites)
            if site.stack == "decoder" and len(tensor) > 1
        ]
        assert all(same) or one != other


@pytest.mark.parametrize("inputs_of_decoder", [("target",), ("source", "target"), ("source",), ()])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_over_rows_that_share_some_weights_is_each_row_alone(inputs_of_decoder, beams):
    model = tiny_model("hyper-adapters", "m2m_100", strength=1.0, decoder_inputs=inputs_of_decoder)
    rows, inputs = [row for row in TRANSLATIONS if row.startswith("mt")], tiny_inputs("m2m_100")
    inputs = {name: tensor[: len(rows)] for name, tensor in inputs.items() if name != "decoder_input_ids"}
    options: dict[str, Any] = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False}
    mixed = model.generate(inputs, rows, **options)
    for i, row in enumerate(rows):
        alone = model.generate({name: t[i : i + 1] for name, t in inputs.items()}, [row], **options)
        assert mixed[i, : alone.shape[1]].tolist() == alone[0].tolist()
    others = Weights(model.weights(rows[::-1]).blocks)  # weights that come without keys are each row's own
    swapped = model.generate(inputs, rows[::-1], **options)
    assert torch.equal(model.generate(inputs, rows, weights=others, **options), swapped)


def test_a_search_with_the_weights_of_other_conditions_mixes_up_no_rows():
    """The keys of weights are those of the conditions that they are of."""
    model, inputs = tiny_model("hyper-adapters", "m2m_100", strength=1.0), tiny_inputs("m2m_100")
    inputs = {name: tensor[:2] for name, tensor in inputs.items() if name != "decoder_input_ids"}
    rows = [Condition("mt", "en", "tr"), Condition("mt", "yo", "tr")]
    cache = DonatedCache(model)
    cache.donated = {rows[0]: Condition("mt", "en", "sw")}
    found = model.generate(inputs, rows, weights=cache.rows(rows), max_new_tokens=8)
    assert torch.equal(found, model.generate(inputs, ["mt/en/sw", "mt/yo/tr"], max_new_tokens=8))
    assert not torch.equal(found, model.generate(inputs, rows, max_new_tokens=8))


def test_a_search_holds_the_weights_of_a_decoder_once_for_rows_that_share_them():
    model = tiny_model("hyper-adapters", "m2m_100")

    def sets(rows: list[str]) -> dict[str, set[int]]:
        layout = model.backbone.lay_out(model.weights(rows), num_rows=len(rows), search=True)
        held: dict[str, set[int]] = {"encoder": set(), "decoder": set()}
        for (_, site), blocks in layout.at.items():
            held[site.stack] |= {
                len(t) if t.dim() == 3 else 1 for b in blocks for n, t in b.tensors.items() if n == "up"
            }
        return held

    assert sets([f"mt/{source}/tr" for source in ("en", "yo", "no", "sw")]) == {"encoder": {4}, "decoder": {1}}
    assert sets(["mt/en/tr", "mt/yo/tr", "mt/en/sw", "mt/yo/sw"]) == {"encoder": {4}, "decoder": {2}}
    assert sets(["mt/en/tr", "mt/yo/tr", "mt/no/tr", "mt/yo/sw"]) == {"encoder": {4}, "decoder": {3}}  # 2 + 1, 1
    assert sets([f"mt/en/{target}" for target in ("tr", "yo", "no", "sw")]) == {"encoder": {4}, "decoder": {4}}


def run(model: Model, inputs: dict[str, Tensor], rows: Any, *, total: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and gradients of all parameters under a loss that is a mean over `total` rows."""
    model.requires_grad_(True)
    model.zero_grad()
    ids = model.method.encode(rows)
    out = logits(model, inputs, ids)
    direction = torch.linspace(-1, 1, out[0].numel()).reshape(out[0].shape)
    ((out * direction).mean((1, 2)).sum() / total).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return out.detach(), {name: gradient.clone() for name, gradient in gradients.items()}


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_weights_for_rows_keep_one_condition_shared():
    weights = tiny_model(method_with("task", "language"), "bert").weights(["pos/en", "pos/en"])
    assert isinstance(weights, Weights)
    assert all(tensor.shape[0] == 1 for block in weights.blocks for tensor in block.tensors.values())
