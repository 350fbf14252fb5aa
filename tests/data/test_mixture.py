"""Mixtures: a batch depends on seed and step alone, every example comes once per pass, shares are exact."""

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyloom.data.mixture import Mixture, MixtureConfig, Share, apportion, steps_of_epochs, temperature, unimax
from polyloom.data.shuffle import permuted
from polyloom.errors import ConfigError
from tests.data.in_memory import InMemory

SIZES = {"pos/en": 700, "pos/tr": 311, "ner/yo": 40, "ner/gn": 3}
ROWS_PER_BLOCK = 60  # so that datasets have many blocks, one, or one that is not full
BY_ROWS, BY_TOKENS = {"rows_per_batch": 8}, {"tokens_per_batch": 256}
CONFIGS = [
    MixtureConfig(),
    MixtureConfig(temperature=5.0),
    MixtureConfig(temperature=5.0, datasets_per_batch=4),
    MixtureConfig(strategy="weights", weights={"pos/en": 1, "pos/tr": 2.5, "ner/yo": 0, "ner/gn": 0.1}),
    MixtureConfig(strategy="unimax", max_repeats=1000, datasets_per_batch=2),
    MixtureConfig(strategy="round-robin"),
    MixtureConfig(strategy="ratio", ratio=(3, 1)),
]

GOLDEN_ROWS = [
    ("pos/en", 367, 5380521551615131765),
    ("pos/en", 472, 5380521551615131650),
    ("pos/en", 171, 5380521551615135537),
]
GOLDEN_ROWS_OF_BLOCKS = [
    ("pos/en", 550, 5380521551615132108),
    ("pos/en", 520, 5380521551615132114),
    ("pos/en", 556, 5380521551615132086),
]
GOLDEN_TOKENS = [("pos/en", 203, 5380521551615138021), ("pos/en", 244, 5380521551615137970)]


def datasets(sizes=SIZES):
    """Skewed lengths from 1 to 400, some of them longer than a draw may be."""
    made = {}
    for name, size in sizes.items():
        random = np.random.default_rng(size)
        made[name] = np.minimum(random.geometric(1 / 30, size), 400).astype(np.int32)
        made[name][: size // 40] = 400
    return made


def mixture(config=CONFIGS[1], *, sizes=SIZES, seed=0, **size):
    groups = [("pos/en", "pos/tr"), ("ner/yo", "ner/gn")] if config.strategy == "ratio" and sizes is SIZES else None
    return Mixture(stored(sizes), config, seed=seed, groups=groups, steps=1000, **(size or BY_ROWS))


def stored(sizes=SIZES, rows_per_block=ROWS_PER_BLOCK):
    return {name: InMemory(lengths, rows_per_block) for name, lengths in datasets(sizes).items()}


def name_of(value):
    return f"{value.strategy}-{value.datasets_per_batch}" if isinstance(value, MixtureConfig) else next(iter(value))


@pytest.mark.parametrize("size", [BY_ROWS, BY_TOKENS], ids=name_of)
@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_a_batch_is_the_same_in_whatever_order_batches_are_asked_for(config, size):
    steps = [*range(30), *range(4080, 4110), 10**6, 10**12]
    made = mixture(config, **size)
    in_order = {step: made.batch(step) for step in steps}
    mixed = np.random.default_rng(0).permutation(steps).tolist()
    assert {step: made.batch(step) for step in mixed} == in_order
    for step in mixed[:10]:
        assert mixture(config, **size).batch(step) == in_order[step], "a new start changes nothing"


SCRIPT = """
import json
from tests.data.test_mixture import BY_ROWS, BY_TOKENS, CONFIGS, picked
print(json.dumps([picked(config, size) for config in CONFIGS for size in (BY_ROWS, BY_TOKENS)]))
"""


def picked(config, size):
    made = mixture(config, **size)
    return [[[p.dataset, p.index, p.key] for p in made.batch(step)] for step in (0, 7, 5000, 10**9)]


def test_another_process_makes_the_same_batches():
    answer = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    assert json.loads(answer) == [picked(config, size) for config in CONFIGS for size in (BY_ROWS, BY_TOKENS)]


def fixed(config, rows_per_block, **size):
    lengths = {name: (np.arange(count) * 7 % 97 + 1).astype(np.int32) for name, count in SIZES.items()}
    held = {name: InMemory(each, rows_per_block) for name, each in lengths.items()}
    return [(p.dataset, p.index, p.key) for p in Mixture(held, config, seed=5, **size).batch(12345)]


def test_batches_never_change():
    """Runs that were interrupted continue by them."""
    assert fixed(MixtureConfig(temperature=2.0), None, rows_per_batch=3) == GOLDEN_ROWS
    assert fixed(MixtureConfig(temperature=2.0), 64, rows_per_batch=3) == GOLDEN_ROWS_OF_BLOCKS
    assert fixed(MixtureConfig(datasets_per_batch=2), 64, tokens_per_batch=140) == GOLDEN_TOKENS


def stream(made, steps):
    """Every cell's examples in the order drawn."""
    seen = defaultdict(list)
    for step in range(steps):
        for pick in made.batch(step):
            seen[pick.dataset].append(pick.index)
    return seen


@pytest.mark.parametrize("how", [BY_ROWS, BY_TOKENS], ids=name_of)
@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_every_example_comes_once_per_pass_and_passes_differ(config, how):
    for name, indices in stream(mixture(config, **how), 900).items():
        size = SIZES[name]
        whole = [tuple(indices[i : i + size]) for i in range(0, len(indices) - size + 1, size)]
        assert whole or size > 300
        assert all(sorted(one) == list(range(size)) for one in whole)
        if size > 10:
            assert len(set(whole)) == len(whole), "no order comes twice"
            assert tuple(range(size)) not in whole


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 70), block=st.integers(1, 70), rows=st.integers(1, 50), tokens=st.integers(1, 500),
    seed=st.integers(0, 2**40),
)  # fmt: skip
def test_passes_are_whole_for_every_size_of_dataset_block_and_batch(size, block, rows, tokens, seed):
    for how in ({"rows_per_batch": rows}, {"tokens_per_batch": tokens}):
        made = Mixture(stored({"a/b": size}, block), MixtureConfig(), seed=seed, **how)
        indices = []
        for step in itertools.count():
            indices += [pick.index for pick in made.batch(step)]
            if len(indices) >= 3 * size:
                break
        for begin in range(0, 3 * size, size):
            assert sorted(indices[begin : begin + size]) == list(range(size))


@pytest.mark.parametrize("size", [BY_ROWS, BY_TOKENS], ids=name_of)
@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_shares_are_exact_in_every_round_and_passes_to_the_draw(config, size):
    made = mixture(config, **size)
    steps = len(made._slots) // config.datasets_per_batch
    drawn = Counter(pick.dataset for step in range(3 * steps, 4 * steps) for pick in one_of_each_draw(made, step))
    assert {name: drawn[name] / len(made._slots) for name in SIZES} == made.shares()
    if config.strategy in ("temperature", "weights", "unimax"):
        wanted = dict(zip(SIZES, made._target_shares(), strict=True))
        assert all(abs(share - wanted[name]) < 1 / len(made._slots) for name, share in made.shares().items())
    by_rows = stream(made, 333)
    if size is BY_ROWS:
        assert made.epochs(333) == {name: len(by_rows[name]) / SIZES[name] for name in SIZES}
    else:
        assert all(abs(epochs - len(by_rows[name]) / SIZES[name]) < 1 for name, epochs in made.epochs(333).items())


def one_of_each_draw(made, step):
    first = step * made.config.datasets_per_batch
    return [next(made._draw(draw)) for draw in range(first, first + made.config.datasets_per_batch)]


def test_temperature_one_passes_through_all_cells_equally_often():
    for size in (BY_ROWS, BY_TOKENS):
        made = mixture(MixtureConfig(), **size)
        epochs = made.epochs(10 * len(made._slots))
        assert max(epochs.values()) / min(epochs.values()) < 1.15, epochs


def test_the_table_says_what_a_run_takes():
    made = mixture()
    shares, epochs = made.shares(), made.epochs(500)
    assert made.table(500) == [Share(name, size, shares[name], epochs[name]) for name, size in SIZES.items()]
    assert sum(shares.values()) == 1


@pytest.mark.parametrize("size", [BY_ROWS, BY_TOKENS], ids=name_of)
def test_batches_of_one_draw_hold_one_cell(size):
    made = mixture(**size)
    order = [{pick.dataset for pick in made.batch(step)} for step in range(300)]
    assert all(len(names) == 1 for names in order)
    assert len(set().union(*order)) == len(SIZES)


def test_mixed_batches_hold_as_many_cells_as_asked_for_in_equal_parts():
    made = mixture(MixtureConfig(strategy="round-robin", datasets_per_batch=4), rows_per_batch=32)
    assert Counter(pick.dataset for pick in made.batch(5)) == dict.fromkeys(SIZES, 8)


def test_the_token_budget_is_never_exceeded_but_by_a_single_row():
    lengths, alone, filled = datasets(), 0, []
    for config in (MixtureConfig(temperature=2.0), MixtureConfig(datasets_per_batch=4)):
        made = mixture(config, tokens_per_batch=1024)
        budget = 1024 // config.datasets_per_batch
        for draw in range(2000):
            unit = [lengths[pick.dataset][pick.index] for pick in made._draw(draw)]
            assert len(unit) * max(unit) <= budget or len(unit) == 1
            alone += max(unit) > budget
            filled += [sum(unit) / budget] if len(unit) > 1 else []
    assert alone, "rows longer than the budget are not dropped"
    assert statistics.median(filled) > 0.75, "little is lost to padding"


def test_keys_are_unique_and_depend_on_the_seed():
    keys = [
        [p.key for step in range(800) for p in mixture_of.batch(step)] for mixture_of in (mixture(), mixture(seed=1))
    ]
    for found in keys:
        assert len(set(found)) == len(found)
        assert 0 <= min(found) <= max(found) < 2**63
    assert not set(keys[0]) & set(keys[1])
    by_rows = mixture(MixtureConfig(strategy="round-robin", datasets_per_batch=4), rows_per_batch=32)
    seen = [(p.dataset, p.index) for step in range(3) for p in by_rows.batch(step) if p.dataset == "ner/gn"]
    assert len(set(seen)) < len(seen), "an example that comes again in the same batch has another key"


def test_the_order_within_a_cell_does_not_depend_on_the_other_cells():
    alone = stream(mixture(sizes={"ner/yo": 40}), 50)["ner/yo"]
    among = stream(mixture(), 500)["ner/yo"]
    length = min(len(alone), len(among))
    assert length > 100
    assert alone[:length] == among[:length]


def test_seeds_change_the_order_of_cells_and_of_examples():
    one, other = (mixture(seed=seed) for seed in (0, 1))
    assert [one.batch(s)[0].dataset for s in range(50)] != [other.batch(s)[0].dataset for s in range(50)]
    assert stream(one, 200)["pos/tr"][:100] != stream(other, 200)["pos/tr"][:100]


def test_rounds_are_shuffled_each_in_its_own_way():
    made = mixture()
    rounds = [made._round(number)[0].tolist() for number in (0, 1)]
    assert rounds[0] != rounds[1]
    assert sorted(rounds[0]) == sorted(rounds[1])
    changes = sum(a != b for a, b in itertools.pairwise(rounds[0]))
    expected = 1 - sum(share**2 for share in made.shares().values())
    assert abs(changes / len(rounds[0]) - expected) < 0.05, "draws do not follow one another in blocks"


def test_a_ratio_alternates_within_each_pair_and_takes_pair_after_pair():
    order = [mixture(CONFIGS[-1]).batch(step)[0].dataset for step in range(16)]
    assert order == (["pos/en"] * 3 + ["pos/tr"] + ["ner/yo"] * 3 + ["ner/gn"]) * 2
    pair = mixture(MixtureConfig(strategy="ratio", ratio=(1, 2)), sizes={"a": 5, "b": 6})
    assert [pair.batch(step)[0].dataset for step in range(6)] == ["a", "b", "b"] * 2
    shared = Mixture(
        stored(), MixtureConfig(strategy="ratio", ratio=(2, 1)), seed=0, rows_per_batch=7,
        groups=[("pos/en", name) for name in ("pos/tr", "ner/yo", "ner/gn")],
    )  # fmt: skip
    assert shared.shares()["pos/en"] == 2 / 3
    assert sorted(stream(shared, 150)["pos/en"][:700]) == list(range(700)), "a cell in several pairs is one cell"


def test_round_robin_takes_cells_in_turn():
    assert [mixture(CONFIGS[-2]).batch(step)[0].dataset for step in range(8)] == [*SIZES, *SIZES]


def test_any_number_of_processes_share_the_same_batches():
    made = mixture(MixtureConfig(datasets_per_batch=2), tokens_per_batch=512)
    for step in (0, 1, 999):
        batch = made.batch(step)
        for world in (2, 3):
            slices = [mixture(made.config, tokens_per_batch=512).batch(step)[rank::world] for rank in range(world)]
            assert sorted(p.key for part in slices for p in part) == sorted(p.key for p in batch)


@pytest.mark.parametrize("how", [BY_ROWS, BY_TOKENS], ids=name_of)
def test_no_step_looks_at_more_than_its_round_its_own_rows_and_the_blocks_they_are_in(monkeypatch, how):
    looked_at: list[int] = []

    def watched(positions, *args):
        looked_at.append(len(positions))
        return permuted(positions, *args)

    for module in ("mixture", "order"):
        monkeypatch.setattr(f"polyloom.data.{module}.permuted", watched)
    for step in (0, 10**9, 10**12):
        made = mixture(**how)
        looked_at.clear()
        rows = len(made.batch(step))
        read = [span for dataset in made.datasets.values() for span in dataset.read]
        if how is BY_ROWS:
            assert sum(looked_at) <= len(made._slots) + 2 * rows
            assert not read, "the order of rows needs no lengths"
        else:
            ((first, last),) = read
            units = sum(len(stream.draws) for stream in made._streams)
            assert sum(looked_at) <= len(made._slots) + units + (last - first) * ROWS_PER_BLOCK + 1


@pytest.mark.timing
def test_late_steps_cost_what_early_ones_cost():
    made = mixture(sizes={f"a/{i}": 100 * 2**i for i in range(12)}, rows_per_batch=32)

    def seconds(first):
        found = []
        for step in range(first, first + 200):
            started = time.perf_counter()
            made.batch(step)
            found.append(time.perf_counter() - started)
        return statistics.median(found)

    seconds(0)
    assert seconds(10**9) < 3 * seconds(0)


def test_temperature_is_a_power_of_the_size():
    sizes = np.array([1.0, 32.0])
    np.testing.assert_allclose(temperature(sizes, 1), [1 / 33, 32 / 33])
    np.testing.assert_allclose(temperature(sizes, 5), [1 / 3, 2 / 3])
    np.testing.assert_allclose(temperature(sizes, 1e9), [0.5, 0.5])


def test_temperature_counts_examples_not_tokens():
    """Of two languages with as many sentences, the one with long ones has more draws, but not more sentences."""
    lengths = {"mt/long": np.full(4000, 60, dtype=np.int32), "mt/short": np.full(4000, 12, dtype=np.int32)}
    lengths |= {"mt/few": np.full(1000, 30, dtype=np.int32)}
    for value in (1.0, 2.0, 5.0):
        config = MixtureConfig(temperature=value, datasets_per_batch=4)
        held = {name: InMemory(each) for name, each in lengths.items()}
        made = Mixture(held, config, seed=0, tokens_per_batch=4 * 600)
        steps = len(made._slots) // 4
        drawn = Counter(pick.dataset for step in range(steps) for pick in made.batch(step))
        assert drawn["mt/long"] == pytest.approx(drawn["mt/short"], rel=0.02)
        assert drawn["mt/few"] / drawn["mt/long"] == pytest.approx((1 / 4) ** (1 / value), rel=0.05)


def test_epochs_are_counted_in_steps_over_all_datasets():
    lengths = [InMemory(np.full(count, 10)) for count in (100, 28)]
    assert steps_of_epochs(20, lengths, rows_per_batch=32) == 80
    assert steps_of_epochs(20, lengths, rows_per_batch=32, datasets_per_batch=2) == 80
    assert steps_of_epochs(0.5, lengths, rows_per_batch=32) == 2
    assert steps_of_epochs(1, lengths, tokens_per_batch=320) == 4 + 1, "the last draw of an epoch is not full"


def test_unimax_is_even_but_for_capped_cells():
    """Worked by hand: 10 and 40 are capped at twice their size, the others share what is left."""
    sizes = np.array([1000.0, 10.0, 500.0, 40.0])
    np.testing.assert_allclose(unimax(sizes, 500, 2) * 500, [200, 20, 200, 80])
    np.testing.assert_allclose(unimax(sizes, 40, 4), [0.25] * 4)
    np.testing.assert_allclose(unimax(sizes, 3000, 1) * sizes.sum(), sizes)


@pytest.mark.parametrize("datasets_per_batch", [1, 4])
def test_unimax_keeps_its_promise_for_cells_much_rarer_than_a_slot(datasets_per_batch):
    sizes = {"a/big": 2_000_000, "a/small": 5000, "a/tiny": 64}
    config = MixtureConfig(strategy="unimax", max_repeats=4, datasets_per_batch=datasets_per_batch)
    made = Mixture(stored(sizes), config, seed=0, rows_per_batch=32, steps=200_000)
    epochs = made.epochs(200_000)
    assert 3.2 < epochs["a/tiny"] <= 5, epochs
    assert 3.7 < epochs["a/small"] < 4.3, epochs
    assert made.shares()["a/tiny"] < 1 / 4096


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-12, 1) | st.just(0.0), min_size=1, max_size=200).filter(any))
def test_slots_are_apportioned_in_full_and_fairly(weights):
    shares = np.array(weights) / np.sum(weights)
    quotas = apportion(shares, 4096)
    assert quotas.sum() == 4096
    assert ((quotas > 0) == (shares > 0)).all()
    common = shares * 4096 >= 1
    assert (quotas[common] <= shares[common] * 4096 + 1).all(), "rare cells are paid for by the others"
    assert (np.diff(quotas[np.argsort(shares, kind="stable")]) >= -1).all(), "no cell gets less than a smaller one"


def test_shares_below_a_slot_get_one_and_no_more():
    """Worked by hand: the small ones have half a slot each; what is left after theirs is the large one's."""
    assert apportion(np.array([0.9, 0.05, 0.05]), 10).tolist() == [8, 1, 1]


@pytest.mark.parametrize(
    ("options", "mistakes"),
    [
        ({"strategy": "temprature"}, ["mixture.strategy: unknown strategy 'temprature'. Did you mean 'temperature'?"]),
        ({"temperature": 0.0}, ["mixture.temperature: 0.0 is not above 0."]),
        ({"strategy": "unimax", "max_repeats": 0.0}, ["mixture.max_repeats: 0.0 is not above 0."]),
        ({"strategy": "weights"}, ["mixture.weights: missing."]),
        ({"strategy": "ratio", "ratio": (3, 0)}, ["mixture.ratio: 0 is not above 0."]),
        ({"max_repeats": 2.0, "ratio": (1, 1)}, ["max_repeats: belongs to strategy unimax", "ratio: belongs to"]),
        ({"strategy": "round-robin", "temperature": 5.0}, ["mixture.temperature: belongs to strategy temperature,"]),
        ({"datasets_per_batch": 3}, ["train.rows_per_batch: 8 cannot be divided by mixture.datasets_per_batch, 3."]),
        ({"datasets_per_batch": 0}, ["mixture.datasets_per_batch: 0 is not above 0."]),
        (
            {"strategy": "weights", "weights": {"pos/en": 1, "pos/tk": 1, "ner/yo": -1}},
            ["mixture.weights.pos/tk: unknown dataset. Did you mean 'pos/tr'?", "ner/yo: -1 is not a weight",
             "mixture.weights: none for pos/tr, ner/gn. Set 0"],
        ),
        ({"strategy": "weights", "weights": dict.fromkeys(SIZES, 0)}, ["mixture.weights: all are 0."]),
        ({"strategy": "unimax", "max_repeats": 2.0}, ["2 epochs of all datasets are 263 steps, fewer than 1000"]),
    ],
)  # fmt: skip
def test_every_mistake_in_the_settings_is_named(options, mistakes):
    with pytest.raises(ConfigError) as caught:
        mixture(MixtureConfig(**options))
    assert len(caught.value.mistakes) == len(mistakes)
    for found, expected in zip(caught.value.mistakes, mistakes, strict=True):
        assert expected in found


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"datasets": {}}, "there is no dataset"),
        ({"datasets": stored({"a/b": 0, "a/c": 1})}, "dataset 'a/b': has no examples"),
        ({"rows_per_batch": None}, "set either this or train.tokens_per_batch"),
        ({"tokens_per_batch": 100}, "set either this or train.tokens_per_batch"),
        ({"rows_per_batch": 0}, "0 cannot be divided"),
        ({"rows_per_batch": None, "tokens_per_batch": 0}, "0 is less than mixture.datasets_per_batch, 1"),
        ({"config": MixtureConfig(strategy="unimax", max_repeats=2)}, "train.steps: missing"),
        ({"config": CONFIGS[-1]}, "would never be drawn"),
        ({"config": CONFIGS[-1], "groups": [("pos/en", "pos/tr"), ("ner/yo",)]}, "ner/yo is not a pair"),
        ({"config": CONFIGS[-1], "groups": [("pos/en", "pos/tr"), ("ner/yo", "ner/gm")]}, "Did you mean 'ner/gn'?"),
    ],
)
def test_what_cannot_be_mixed_is_refused(change, mistake):
    arguments = {"datasets": stored(), "config": MixtureConfig(), "seed": 0, "rows_per_batch": 8} | change
    with pytest.raises(ConfigError) as caught:
        Mixture(**arguments)
    assert mistake in str(caught.value)


def test_steps_before_the_first_are_refused():
    with pytest.raises(IndexError, match="step -1"):
        mixture().batch(-1)
