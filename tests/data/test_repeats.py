"""Of rows with the same key the first is kept, in order, however the rows come and whatever was written to the disk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyloom.data import dataset_writer, repeats
from polyloom.data.blocks import Columns
from polyloom.data.catalog import resolve
from polyloom.data.packing import pack
from polyloom.data.readers.bitext import pair_key
from polyloom.data.repeats import KEY_TYPE, Repeats
from tests.data.test_bitext import pairs_of
from tests.reliability.forks import peak_memory
from tests.shared import DATA, needs_data

COLUMNS: Columns = {"tokens": "ints", "length": "int"}


def kept(folder, keys, *, batch=7):
    """Which of the keys are left, and what is left in the folder."""
    batches = [range(start, min(start + batch, len(keys))) for start in range(0, len(keys), batch)]

    def packs():
        for numbers in batches:
            (packed,) = pack([{"tokens": [n] * (n % 3), "length": n + 1} for n in numbers], COLUMNS, name="test")
            yield packed, np.array([(keys[n] >> 64, keys[n] & (2**64 - 1)) for n in numbers], KEY_TYPE)

    found = Repeats(folder)
    left = [int(length) - 1 for packed in found.without(packs()) for length in packed.lengths]
    assert found.dropped == len(keys) - len(left)
    assert not list(folder.iterdir())
    return left


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**128 - 1) | st.integers(0, 9) | st.integers(0, 9).map(lambda n: n << 120)))
def test_the_first_of_each_key_is_kept_in_order(tmp_path_factory, keys):
    first: dict[int, int] = {}
    for number, key in enumerate(keys):
        first.setdefault(key, number)
    assert kept(tmp_path_factory.mktemp("keys"), keys) == list(first.values())


@pytest.mark.parametrize("waiting", [1, 10, 1 << 20])
def test_it_does_not_matter_when_keys_are_written(tmp_path, monkeypatch, waiting):
    monkeypatch.setattr(repeats, "_WAITING", waiting)
    keys = [(n * 37 % 50) << 118 for n in range(200)]
    assert kept(tmp_path, keys) == list(range(50))


@needs_data
def test_real_repetitions_are_found(tmp_path):
    pairs = pairs_of(resolve("bible:eng-deu/train", root=DATA))
    left = kept(tmp_path, [int.from_bytes(pair_key(pair)) for pair in pairs], batch=1000)
    assert [pairs[n] for n in left] == list(dict.fromkeys(pairs))
    assert len(left) < len(pairs)


def test_memory_hardly_grows_with_the_number_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(repeats, "_WAITING", 4096)
    monkeypatch.setattr(dataset_writer, "_CHUNK_BYTES", 1 << 18)
    peaks = []
    for number, count in enumerate((20_000, 200_000)):
        (packed,) = pack([{"tokens": [1] * 20, "length": 20}] * 1000, COLUMNS, name="test")

        def packs(count=count, packed=packed):
            for start in range(0, count, 1000):
                keys = np.zeros(1000, KEY_TYPE)
                keys["high"] = np.arange(start, start + 1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                yield packed, keys

        def work(count=count, packs=packs, folder=tmp_path / str(number)):
            folder.mkdir()
            assert sum(len(part.sizes) for part in Repeats(folder).without(packs())) == count

        peaks.append(peak_memory(work, tmp_path / f"child-{number}"))
    assert peaks[1] - peaks[0] < 8 * (200_000 - 20_000), "a set of hashes would take 12 to 24 bytes for each row"
