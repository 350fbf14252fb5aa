"""Datasets: what is read is what was written, whole or not at all, from any thread, whatever happens to the folder."""

import json
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from polyloom.data import blocks, dataset_writer
from polyloom.data.blocks import ColumnKind
from polyloom.data.dataset_writer import write_dataset
from polyloom.data.encoded import FORMAT, INDEX, LENGTHS, MANIFEST, EncodedDataset, open_dataset, part_name
from polyloom.data.order import RowStream
from polyloom.data.packing import ROWS_PER_PACK, EncodedExample
from polyloom.errors import DataError
from polyloom.io.sealed import seal

COLUMNS: dict[str, ColumnKind] = {"tokens": "ints", "heads": "ints", "label": "int", "length": "int"}
LIMIT = 2**31


def made(count, seed=0):
    random = np.random.default_rng(seed)
    for _ in range(count):
        tokenizer = random.integers(-LIMIT, LIMIT, random.integers(0, 9)).tolist()
        heads = random.integers(0, 9, random.integers(0, 4)).tolist()
        yield {
            "heads": heads,
            "tokens": tokenizer,
            "length": len(tokenizer) + 1,
            "label": int(random.integers(-LIMIT, LIMIT)),
        }


def write(path, rows, columns=COLUMNS):
    return write_dataset(path, rows, columns=columns, meta={})


def plain(rows):
    return [{name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in row.items()} for row in rows]


def key(row):
    return json.dumps(row, sort_keys=True)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Many blocks in several parts, the last ones not full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 1 << 15)
        patch.setattr(dataset_writer, "PART_BYTES", 4 << 15)
        patch.setattr(dataset_writer, "_CHUNK_BYTES", 5 << 15)
        return write(tmp_path_factory.mktemp("datasets") / "large", made(2 * ROWS_PER_PACK + 77))


@pytest.mark.parametrize("count", [0, 1, 50, 1000])
def test_rows_of_one_block_are_read_in_the_order_of_the_corpus(tmp_path, count):
    dataset = write_dataset(tmp_path / "a", made(count), columns=COLUMNS, meta={"task": "pos", "labels": ["ж", "b"]})
    expected = list(made(count))
    for opened in (dataset, open_dataset(tmp_path / "a")):
        assert len(opened) == count
        assert opened.num_blocks == (count > 0)
        assert plain(opened.rows(range(count))) == expected
        if count:
            assert opened.lengths(0, 1).tolist() == [row["length"] for row in expected]
        assert opened.meta == {"task": "pos", "labels": ["ж", "b"]}
        assert opened.columns == COLUMNS


def test_rows_of_many_blocks_are_shuffled_and_none_is_lost(large):
    rows, expected = plain(large.rows(range(len(large)))), list(made(len(large)))
    assert large.num_blocks > 8
    assert len(list(large.path.glob("part-*"))) > 2
    assert Counter(map(key, rows)) == Counter(map(key, expected))
    place = {key(row): number for number, row in enumerate(expected)}
    places = np.array([place[key(row)] for row in rows if row["tokens"]])
    assert abs(np.corrcoef(places, np.arange(len(places)))[0, 1]) < 0.05
    of_block = np.array([place[key(row)] for row in rows[: large.rows_per_block]])
    assert np.histogram(of_block, 8, (0, len(expected)))[0].min() > len(of_block) / 16, "a block is a random choice"


def test_the_same_rows_are_the_same_bytes_however_much_memory_there_is(tmp_path, monkeypatch):
    count, folders = 5000, []
    for number, chunk in enumerate((1 << 24, 1 << 16)):
        monkeypatch.setattr(dataset_writer, "_CHUNK_BYTES", chunk)
        folders.append(write(tmp_path / str(number), made(count)).path)
    names = sorted(file.name for file in folders[0].iterdir())
    assert names == [INDEX, LENGTHS, MANIFEST, part_name(0)]
    assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in names)


def test_lines_of_a_run_stay_together(tmp_path):
    rows: list[EncodedExample] = [{"tokens": [number] * 30, "length": 30} for number in range(8005)]
    columns: dict[str, ColumnKind] = {"tokens": "ints", "length": "int"}
    dataset = write_dataset(tmp_path / "a", rows, columns=columns, meta={}, run=32)
    assert dataset.num_blocks > 4
    assert dataset.rows_per_block % 32 == 0
    numbers = [int(np.asarray(row["tokens"])[0]) for row in dataset.rows(range(8005))]
    assert sorted(numbers) == list(range(8005))
    runs = [numbers[start : start + 32] for start in range(0, 8000, 32)]
    assert all(run == list(range(run[0], run[0] + 32)) for run in runs)
    assert [run[0] for run in runs] != sorted(run[0] for run in runs)


def test_blocks_know_the_lengths_of_their_rows(large):
    counts = large.bucket_counts()
    for number in range(large.num_blocks):
        lengths = large.lengths(number, number + 1)
        buckets = np.searchsorted(large.longest, lengths)
        assert np.bincount(buckets, minlength=len(large.longest)).tolist() == counts[number].tolist()
    assert large.lengths(2, 7).tolist() == [
        row["length"] for row in large.rows(range(2 * large.rows_per_block, 7 * large.rows_per_block))
    ]
    assert large.longest[-1] == max(row["length"] for row in made(len(large)))


def test_rows_come_in_the_order_asked_for_repeats_included(large):
    rows = plain(large.rows(range(len(large))))
    wanted = np.random.default_rng(1).integers(0, len(large), 3000)
    assert plain(large.rows(wanted)) == [rows[i] for i in wanted]
    assert plain(large.rows([3, 3, 0])) == [rows[3], rows[3], rows[0]]
    assert large.rows([]) == []


def test_lists_one_after_another_are_those_of_the_block_from_a_row_on(large):
    draw = np.random.default_rng(2)
    for length in (1, 8, 9, 50, 1000, 50_000):
        for index in [0, large.rows_per_block - 1, len(large) - 1, *draw.integers(0, len(large), 20).tolist()]:
            block = index // large.rows_per_block
            start, stop = block * large.rows_per_block, min((block + 1) * large.rows_per_block, len(large))
            turn = [row["tokens"].tolist() for row in large.rows(np.roll(range(start, stop), start - index))]
            tokens, starts = large.filled(index, "tokens", length)
            if len(turn[0]) > length:
                assert (tokens.tolist(), starts.tolist()) == (turn[0], [0])
                continue
            lists = turn * (length // sum(map(len, turn)) + 1)
            assert tokens.tolist() == [token for one in lists for token in one][:length]
            begins = np.cumsum([0, *map(len, lists)])
            assert starts.tolist() == begins[begins < length].tolist()


def test_rows_may_add_to_what_is_known_of_the_cell(tmp_path):
    labels: dict[str, int] = {}

    def rows():
        for label in ["B", "A", "B"]:
            yield {"label": labels.setdefault(label, len(labels)), "length": 1}

    dataset = write_dataset(tmp_path / "a", rows(), columns={"label": "int", "length": "int"}, meta={"labels": labels})
    assert dataset.meta == {"labels": {"B": 0, "A": 1}}
    assert [row["label"] for row in dataset.rows(range(3))] == [0, 1, 0]


def test_lists_are_views_of_the_file_that_nobody_can_write_to(large):
    row = next(row for row in large.rows(range(100)) if len(row["tokens"]))
    assert row["tokens"].base is not None
    assert row["tokens"].dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        row["tokens"][0] = 1
    assert isinstance(row["label"], int)


@pytest.mark.parametrize("index", [-1, 2 * ROWS_PER_PACK + 77])
def test_rows_outside_are_refused(large, index):
    with pytest.raises(IndexError, match=r"large: rows"):
        large.rows([0, index])


def test_columns_of_empty_lists_only_are_empty(tmp_path):
    dataset = write(tmp_path / "a", [{"tokens": [], "length": 1}] * 3, {"tokens": "ints", "length": "int"})
    assert plain(dataset.rows([0, 2])) == [{"tokens": [], "length": 1}] * 2


def test_a_dataset_may_be_removed_while_it_is_read(tmp_path):
    before, rows = write(tmp_path / "a", made(500, seed=1)), list(made(500, seed=1))
    shutil.rmtree(tmp_path / "a")
    assert plain(before.rows(range(500))) == rows


def test_threads_read_side_by_side(large):
    expected = plain(large.rows(range(len(large))))

    def right(seed):
        wanted = np.random.default_rng(seed).integers(0, len(large), 500)
        return plain(large.rows(wanted)) == [expected[i] for i in wanted]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, range(40)))


def test_a_failing_source_leaves_nothing_behind(tmp_path):
    def failing():
        yield from made(ROWS_PER_PACK + 1)
        raise RuntimeError("the corpus ends here")

    with pytest.raises(RuntimeError, match="ends here"):
        write(tmp_path / "a", failing())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1, None]}, "rows 0 to 4, column tokens: "),
        ({"tokens": None}, "rows 0 to 4, column tokens: "),
        ({"tokens": [2**31]}, "column tokens: .* greater than maximum"),
        ({"tokens": [1.5]}, "column tokens: .*float"),
        ({"label": "x"}, "column label"),
        ({"length": 0}, "row 3: its length is 0"),
        ({"lable": 3}, r"row 3 has the columns .*lable\. Known: tokens, heads, label, length"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path, change, message):
    rows = list(made(5))
    rows[3] = rows[3] | change
    with pytest.raises(DataError, match=message):
        write(tmp_path / "a", rows)
    assert not list(tmp_path.iterdir())


def test_a_cell_without_length_is_refused(tmp_path):
    with pytest.raises(DataError, match="needs a column `length`"):
        write(tmp_path / "a", [], {"tokens": "ints"})


def read_all(path):
    dataset = open_dataset(path)
    dataset.bucket_counts()
    return dataset.rows(range(len(dataset)))


@pytest.fixture
def small(tmp_path):
    write_dataset(tmp_path / "a", made(3), columns=COLUMNS, meta={"labels": ["x", "y"]})
    return tmp_path / "a"


@pytest.mark.parametrize("name", [MANIFEST, INDEX, LENGTHS, part_name(0)])
def test_a_file_cut_anywhere_is_refused(small, name):
    content = (small / name).read_bytes()
    for size in [*range(0, len(content), 7), len(content) - 1]:
        (small / name).write_bytes(content[:size])
        with pytest.raises(DataError, match=r"(?s)not a readable dataset .* prepare the corpus again"):
            read_all(small)


@pytest.mark.parametrize("name", [MANIFEST, INDEX, LENGTHS, part_name(0)])
def test_a_file_that_is_missing_is_noticed(small, name):
    (small / name).unlink()
    with pytest.raises(DataError, match="no such dataset" if name == MANIFEST else "not a readable dataset|no such"):
        read_all(small)


@pytest.mark.parametrize("name", [MANIFEST, INDEX, LENGTHS, part_name(0)])
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_every_flipped_bit_is_found(small, name, every):
    content = (small / name).read_bytes()
    for position in range(0, len(content), every):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        (small / name).write_bytes(damaged)
        with pytest.raises(DataError, match=r"not a readable dataset|block 0 is damaged"):
            read_all(small)


def test_a_damaged_block_is_found_when_it_is_read_and_not_before(large, tmp_path):
    shutil.copytree(large.path, tmp_path / "b")
    part = tmp_path / "b" / part_name(1)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    dataset = open_dataset(tmp_path / "b")
    dataset.rows(range(dataset.rows_per_block))
    with pytest.raises(
        DataError, match=r"b: block \d+ is damaged \(it does not match its checksum\)\. Remove this dataset"
    ):
        dataset.rows(range(len(dataset)))


def test_lists_without_order_are_refused_even_if_their_checksum_is_right(small):
    dataset = open_dataset(small)
    words = np.frombuffer((small / part_name(0)).read_bytes(), np.int32).copy()
    words[1] = 10**6
    (small / part_name(0)).write_bytes(words.tobytes())
    import zlib

    index = dataset._index.copy()
    index["crc"] = zlib.crc32(words.tobytes())
    (small / INDEX).write_bytes(index.tobytes())
    about = json.loads((small / MANIFEST).read_text()) | {"index_crc": zlib.crc32(index.tobytes())}
    about.pop("sha256")
    (small / MANIFEST).write_text(seal(json.dumps(about)))
    with pytest.raises(DataError, match="block 0 is damaged"):
        read_all(small)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "its first line has no SHA-256"),
        (seal("{}"), "format"),
        (seal(json.dumps({"format": FORMAT + 1})), f"its format is {FORMAT + 1} instead of {FORMAT}"),
        ("no JSON", "its first line has no SHA-256"),
    ],
)
def test_other_folders_are_refused(small, content, reason):
    (small / MANIFEST).write_text(content)
    with pytest.raises(DataError, match=rf"a: not a readable dataset \(.*{reason}"):
        open_dataset(small)


def test_a_dataset_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"no such dataset\. Prepare the corpus first"):
        open_dataset(tmp_path / "a")


def test_neighbouring_blocks_are_read_at_once(large):
    class Counted:
        def __init__(self, folder):
            self.folder, self.ranges = folder, []

        def read(self, name):
            return self.folder.read(name)

        def read_range(self, name, start, stop):
            self.ranges.append((name, start, stop))
            return self.folder.read_range(name, start, stop)

    folder = Counted(large._folder)
    dataset = EncodedDataset(folder, "counted")
    per_part = dataset._blocks_per_part
    expected = large.lengths(1, per_part + 2).tolist()
    assert dataset.lengths(1, per_part + 2).tolist() == expected
    assert [name for name, _, _ in folder.ranges] == [part_name(0), part_name(1)], "one request for each part"
    assert dataset.lengths(0, per_part + 2).tolist()[-len(expected) :] == expected
    assert len(folder.ranges) == 3, "what is in memory is not read again"


@pytest.mark.timing
def test_three_hundred_thousand_short_rows_are_read_in_a_second_in_the_order_of_training(tmp_path):
    rows = [{"tokens": [1] * (i % 30), "length": i % 30 + 1} for i in range(3 * ROWS_PER_PACK)]
    dataset = write(tmp_path / "a", rows, {"tokens": "ints", "length": "int"})
    assert dataset.num_blocks > 8
    stream, seconds = RowStream(dataset, 64), []
    for epoch in range(20):
        draws = [stream.take(100 * epoch + draw, (1,)) % len(dataset) for draw in range(100)]
        started = time.process_time()
        for draw in draws:
            dataset.rows(draw)
        seconds.append(time.process_time() - started)
    assert 6400 / min(seconds) > 300_000
