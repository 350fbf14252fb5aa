"""Cells: what is read is what was written, whole or not at all, from any thread, whatever happens to the name."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from polyloom.data.encoded import ROWS_PER_RECORD_BATCH, ColumnKind, open_dataset, write_dataset
from polyloom.errors import DataError

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


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """More than two record batches, the last one not full."""
    return write(tmp_path_factory.mktemp("datasets") / "large.arrow", made(2 * ROWS_PER_RECORD_BATCH + 77))


@pytest.mark.parametrize(
    "count", [0, 1, ROWS_PER_RECORD_BATCH - 1, ROWS_PER_RECORD_BATCH, 2 * ROWS_PER_RECORD_BATCH + 1]
)
def test_rows_are_read_as_they_were_written(tmp_path, count):
    dataset = write_dataset(
        tmp_path / "a.arrow", made(count), columns=COLUMNS, meta={"task": "pos", "labels": ["ж", "b"]}
    )
    expected = list(made(count))
    for opened in (dataset, open_dataset(tmp_path / "a.arrow")):
        assert len(opened) == count
        assert plain(opened.rows(range(count))) == expected
        assert opened.lengths.tolist() == [row["length"] for row in expected]
        assert opened.lengths.dtype == np.int32
        assert opened.meta == {"task": "pos", "labels": ["ж", "b"]}
        assert opened.columns == COLUMNS


def test_rows_come_in_the_order_asked_for_repeats_included(large):
    expected = list(made(len(large)))
    wanted = np.random.default_rng(1).integers(0, len(large), 3000)
    assert plain(large.rows(wanted)) == [expected[i] for i in wanted]
    assert plain(large.rows([3, 3, 0])) == [expected[3], expected[3], expected[0]]
    assert large.rows([]) == []


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


@pytest.mark.parametrize("index", [-1, 2 * ROWS_PER_RECORD_BATCH + 77])
def test_rows_outside_are_refused(large, index):
    with pytest.raises(IndexError, match=r"large\.arrow: rows"):
        large.rows([0, index])


def test_columns_of_empty_lists_only_are_empty(tmp_path):
    dataset = write(tmp_path / "a", [{"tokens": [], "length": 1}] * 3, {"tokens": "ints", "length": "int"})
    assert plain(dataset.rows([0, 2])) == [{"tokens": [], "length": 1}] * 2


def test_a_cell_may_be_replaced_or_removed_while_it_is_read(tmp_path):
    path = tmp_path / "a.arrow"
    before, rows = write(path, made(500, seed=1)), list(made(500, seed=1))
    write(path, made(300, seed=2))
    assert plain(before.rows(range(500))) == rows
    path.unlink()
    assert plain(before.rows([499])) == rows[499:]


def test_threads_read_side_by_side(large):
    expected = list(made(len(large)))

    def right(seed):
        wanted = np.random.default_rng(seed).integers(0, len(large), 500)
        return plain(large.rows(wanted)) == [expected[i] for i in wanted]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, range(40)))


def test_a_failing_source_leaves_nothing_behind_and_the_old_cell_as_it_was(tmp_path):
    path = tmp_path / "a.arrow"
    write(path, made(5))

    def failing():
        yield from made(ROWS_PER_RECORD_BATCH + 1)
        raise RuntimeError("the corpus ends here")

    with pytest.raises(RuntimeError, match="ends here"):
        write(path, failing())
    assert [file.name for file in tmp_path.iterdir()] == ["a.arrow"]
    assert len(open_dataset(path)) == 5


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


def test_a_file_cut_anywhere_is_refused(tmp_path):
    write(tmp_path / "a", made(200))
    content = (tmp_path / "a").read_bytes()
    for size in [*range(0, len(content), 97), len(content) - 1]:
        (tmp_path / "b").write_bytes(content[:size])
        with pytest.raises(DataError, match=r"not a readable dataset .* prepare the corpus again"):
            open_dataset(tmp_path / "b")


def test_damaged_offsets_are_refused_before_anything_is_read_through_them(tmp_path):
    dataset = write(tmp_path / "a", [{"tokens": [7, 8, 9], "length": 3}] * 50, {"tokens": "ints", "length": "int"})
    content = bytearray((tmp_path / "a").read_bytes())
    begin = 4 * int(dataset._starts["tokens"][0, 0])
    content[begin + 40 : begin + 44] = (10**6).to_bytes(4, "little")
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(DataError, match="not a readable dataset"):
        open_dataset(tmp_path / "b")


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_every_flipped_bit_is_found(tmp_path, every):
    write_dataset(tmp_path / "a", made(3), columns=COLUMNS, meta={"labels": ["x", "y"]})
    content = (tmp_path / "a").read_bytes()
    for position in range(0, len(content), every):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        (tmp_path / "b").write_bytes(damaged)
        with pytest.raises(DataError, match=r"b: not a readable dataset"):
            open_dataset(tmp_path / "b")


def test_a_file_of_a_former_version_without_a_checksum_is_recognised(tmp_path):
    write(tmp_path / "a", made(3))
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content[: content.rindex(b"polyloom crc32")])
    with pytest.raises(DataError, match="it has no checksum; a former version wrote it"):
        open_dataset(tmp_path / "a")


def foreign(columns, metadata, compression=None):
    def save(path):
        table = pa.table(columns)
        with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table)
            writer.write_batch(pa.RecordBatch.from_pylist([], table.schema), custom_metadata=metadata)

    return save


MARK = {b"polyloom.cell": b"{}"}
INTS = pa.array(list(range(1, 1000)), pa.int32())


@pytest.mark.parametrize(
    ("save", "reason"),
    [
        (foreign({"length": INTS}, {}), "not written as a dataset"),
        (foreign({"length": INTS, "text": ["a"] * 999}, MARK), "column text is of type string"),
        (foreign({"length": INTS.cast(pa.int64())}, MARK), "column length is of type int64"),
        (foreign({"tokens": INTS}, MARK), "no column length"),
        (foreign({"length": pa.array([1, None], pa.int32())}, MARK), "a column has gaps"),
        (foreign({"length": INTS[:1], "x": pa.array([[1, None]], pa.list_(pa.int32()))}, MARK), "a list has gaps"),
        (foreign({"length": pa.array([1, 0], pa.int32())}, MARK), "a length is less than 1"),
        (foreign({"length": INTS}, MARK, "zstd"), "compressed"),
        (lambda path: path.write_text("no Arrow"), ""),
    ],
)
def test_other_files_are_refused(tmp_path, save, reason):
    save(tmp_path / "a")
    with pytest.raises(DataError, match=rf"a: not a readable dataset \(.*{reason}"):
        open_dataset(tmp_path / "a")


def test_a_cell_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"no such dataset\. Prepare the corpus first"):
        open_dataset(tmp_path / "a")


@pytest.mark.timing
def test_three_hundred_thousand_short_rows_are_read_in_a_second(tmp_path):
    rows = [{"tokens": [1] * (i % 30), "length": i % 30 + 1} for i in range(3 * ROWS_PER_RECORD_BATCH)]
    dataset = write(tmp_path / "a", rows, {"tokens": "ints", "length": "int"})
    seconds = []
    for seed in range(20):
        wanted = np.random.default_rng(seed).integers(0, len(dataset), (100, 64))
        started = time.process_time()
        for batch in wanted:
            dataset.rows(batch)
        seconds.append(time.process_time() - started)
    assert wanted.size / min(seconds) > 300_000
