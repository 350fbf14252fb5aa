"""Lines are those of the file, whatever its packing; what is damaged or too large is refused, in little memory."""

import gzip
import hashlib
import json
import lzma
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from polyloom.errors import DataError
from polyloom.io.files import Limits, ending_of, read_json_lines, read_lines
from polyloom.io.hashes import sha256_of

LINES = ["one", "", "zwei\u2028drei\x0bvier\x85fünf\x0c\x1c", "六", "last"]
TEXT = "\n".join(LINES)
PACKERS: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gz": gzip.compress, "xz": lzma.compress}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("packing", PACKERS)
def test_lines_end_at_newline_only_in_every_packing(tmp_path, packing, end):
    path = write(tmp_path / "a.txt", PACKERS[packing]((TEXT + end).encode()))
    assert list(read_lines(path)) == list(enumerate(LINES, start=1))
    assert "".join(line for _, line in read_lines(path, keep_ends=True)) == TEXT + end


def test_line_ends_of_windows_and_the_byte_order_mark_are_taken_off_or_kept(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffa\r\n\ufeffb\r\r\n\r\nc\r".encode())
    assert [line for _, line in read_lines(path)] == ["a", "\ufeffb\r", "", "c"]
    assert "".join(line for _, line in read_lines(path, keep_ends=True)).encode() == path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, 2, 32 * 1024, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 3_000_000])
@pytest.mark.parametrize("packing", PACKERS)
def test_nothing_is_lost_at_the_borders_of_chunks(tmp_path, packing, size):
    line = "".join(chr(0x4E00 + i * i % 20000) for i in range(97)) + "\n"
    data = (line * (size // len(line.encode()) + 1)).encode()[:size].decode(errors="ignore").encode()
    path = write(tmp_path / "a", PACKERS[packing](data))
    assert "".join(line for _, line in read_lines(path, keep_ends=True)).encode() == data


@pytest.mark.parametrize("packing", ["gz", "xz"])
def test_streams_one_after_another_are_one_file(tmp_path, packing):
    pack = PACKERS[packing]
    half = len(TEXT.encode()) // 2
    packed = [pack(TEXT.encode()[:half]), pack(b""), pack(TEXT.encode()[half:])]
    assert [line for _, line in read_lines(write(tmp_path / "a", b"".join(packed)))] == LINES
    padded = b"".join(part + bytes(8) for part in packed)
    assert [line for _, line in read_lines(write(tmp_path / "b", padded))] == LINES


@pytest.mark.parametrize("packing", ["gz", "xz"])
def test_every_truncation_is_refused(tmp_path, packing):
    packed = PACKERS[packing](("line\n" * 10 + "end").encode())
    for length in range(len(packed)):
        path = write(tmp_path / f"a.{packing}", packed[:length])
        with pytest.raises(DataError) as error:
            list(read_lines(path))
        assert error.value.line, str(error.value)


@pytest.mark.parametrize("packing", ["gz", "xz"])
def test_damage_is_refused_with_the_line_that_was_reached(tmp_path, packing):
    rows = b"".join(hashlib.sha256(str(i).encode()).hexdigest().encode() + b"\n" for i in range(20_000))
    packed = bytearray(PACKERS[packing](rows))
    packed[len(packed) * 3 // 4] ^= 0xFF
    with pytest.raises(DataError, match=r"a:[0-9]+: ") as error:
        list(read_lines(write(tmp_path / "a", bytes(packed))))
    assert error.value.line
    assert error.value.line > 1
    with pytest.raises(DataError, match="damaged"):
        list(read_lines(write(tmp_path / "b", PACKERS[packing](b"a\n") + b"garbage")))


@pytest.mark.parametrize("data", [b"", b"<html>404</html>\n", b"\xfd7z"])
@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_name_that_promises_packing_is_held_to_it(tmp_path, ending, data):
    with pytest.raises(DataError, match=f"ends in {ending}"):
        list(read_lines(write(tmp_path / f"a.txt{ending}", data)))


@pytest.mark.parametrize(
    ("data", "what"), [(b"a\nb\n\xff\nc\n", "not UTF-8"), (b"a\nb\n\xed\xa0\x80", "not UTF-8"), (b"a\nb\nc\0\n", "NUL")]
)
def test_what_is_no_text_is_refused_after_the_lines_before_it(tmp_path, data, what):
    lines = read_lines(write(tmp_path / "a.txt", data))
    assert [next(lines), next(lines)] == [(1, "a"), (2, "b")]
    with pytest.raises(DataError, match=f"a.txt:3: .*{what}"):
        next(lines)


@pytest.mark.parametrize("packing", PACKERS)
def test_limits_hold_exactly(tmp_path, packing):
    path = write(tmp_path / "a", PACKERS[packing](b"ab\nabcd\nabc\n"))
    assert len(list(read_lines(path, limits=Limits(line_bytes=5, total_bytes=12)))) == 3
    with pytest.raises(DataError, match="a:2: a line of more than 4"):
        list(read_lines(path, limits=Limits(line_bytes=4)))
    with pytest.raises(DataError, match="more than 11 bytes"):
        list(read_lines(path, limits=Limits(total_bytes=11)))


def test_a_missing_file_or_a_directory_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "none.txt"):
        for read in (lambda path: list(read_lines(path)), sha256_of):
            with pytest.raises(DataError, match=f"{path.name}: cannot be read"):
                read(path)


def test_xz_that_asks_for_much_memory_is_refused(tmp_path):
    packed = bytearray(lzma.compress(b"a\n"))
    # from byte 12 on: size of the block's header, flags, filter, size of properties, dictionary size, padding, CRC32
    packed[16] = 36  # 1 GiB
    packed[20:24] = zlib.crc32(bytes(packed[12:20])).to_bytes(4, "little")
    with pytest.raises(DataError, match="Memory"):
        list(read_lines(write(tmp_path / "a.xz", bytes(packed))))


BOMBS = {  # what is repeated, how often, packed by whom, read as what: 10 GiB of xz, 3 GiB of gz
    "xz zeros": (bytes(16 << 20), 640, "xz", ".txt"),
    "xz empty lines": (b"\n" * (16 << 20), 640, "xz", ".txt"),
    "xz no words": (b"\n" * (16 << 20), 640, "xz", ".conllu"),
    "gz zeros": (bytes(16 << 20), 192, "gz", ".conllu"),
    "gz endless sentence": (b"a\tO\n" * (4 << 20), 192, "gz", ".tsv"),
    "gz short sentences": ((b"a\tO\n" * 1000 + b"\n") * 4096, 192, "gz", ".tsv"),
}
READ = """
import json, re, sys
from pathlib import Path
from polyloom.data.readers.formats import read_records
from polyloom.errors import DataError
def peak():  # not ru_maxrss, which begins with what the parent had
    return int(re.search(r"VmHWM:\\s*([0-9]+) kB", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
try:
    for _ in read_records(Path(sys.argv[1]), sys.argv[2]):
        pass
    refused, line = "", 0
except DataError as error:
    refused, line = error.what, error.line
print(json.dumps([refused, line, peak() - before]))
"""


def read_alone(path: Path, kind: str) -> tuple[str, int, float]:
    """What was refused and where, MiB that memory grew by."""
    done = subprocess.run([sys.executable, "-c", READ, path, kind], capture_output=True, check=True, text=True)
    refused, line, grown = json.loads(done.stdout)
    print(f"{path.name} {kind}: {refused} (line {line}), {grown:.0f} MiB")
    return refused, line, grown


SLOW = ("xz empty lines", "gz short sentences")  # a limit of bytes ends them, after seconds


@pytest.mark.parametrize("bomb", [pytest.param(b, marks=pytest.mark.nightly if b in SLOW else ()) for b in BOMBS])
def test_bombs_are_refused_in_little_memory(tmp_path, bomb):
    unit, times, packing, ending = BOMBS[bomb]
    packed = PACKERS[packing](unit)
    path = write(tmp_path / f"bomb{ending}.{packing}", packed * times)
    refused, line, grown = read_alone(path, "text" if ending == ".txt" else "tags")
    path.unlink()
    assert refused
    assert line
    assert grown < 64


def test_the_measure_of_memory_measures(tmp_path):
    """One sentence of a megabyte takes tens of them; were it always 0, the tests here would say nothing."""
    _, _, grown = read_alone(write(tmp_path / "a.conllu", b"1" + b"\ta" * 9 + b"\n" * 1_000_000), "tags")
    assert grown > 4


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.conllu", b"1-2147483647\ta" + b"\t_" * 8 + b"\n1\ta" + b"\t_" * 8 + b"\n\n", "tags"),
        ("a.conllu", b"1\t_\t_\t_\t_\t_\t_\t_\t_\t_\n" * 10, "tags"),
        ("a.conllu", b"".join(b"%d" % i + b"\ta" * 9 + b"\n" for i in range(1, 2_000_000)), "tags"),
        ("a.txt", b"a" * (100 << 20), "text"),
        ("a.tsv", b"a\tO\n" * 10_000_000, "tags"),
        ("a.jsonl", b'{"text": ' + b"[" * 1_000_000 + b"}\n", "text"),
        ("a.jsonl", b'{"text": ' + b"1" * 1_000_000 + b"}\n", "text"),
    ],
    ids=["range", "ids", "long sentence", "long line", "long column", "deep", "long number"],
)
def test_what_grows_without_end_is_refused_in_little_memory(tmp_path, name, data, kind):
    refused, line, grown = read_alone(write(tmp_path / name, data), kind)
    assert refused
    assert line
    assert grown < 128


def test_json_lines_are_objects_with_their_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"a": 1}\r\n\n{"a": NaN}\n')
    assert [(at.line, list(row)) for at, row in read_json_lines(path)] == [(1, ["a"]), (3, ["a"])]
    for bad in (b"[1]", b"{", b'"text"', b"{'a': 1}"):
        with pytest.raises(DataError, match=r"a\.jsonl:2: "):
            list(read_json_lines(write(tmp_path / "a.jsonl", b'{"a": 1}\n' + bad)))


def test_the_hash_is_that_of_the_bytes_at_rest(tmp_path):
    packed = gzip.compress(b"abc")
    assert sha256_of(write(tmp_path / "a.gz", packed)) == hashlib.sha256(packed).hexdigest()


def test_the_ending_is_the_one_before_the_packing():
    names = {"a.b.conllu.xz": ".conllu", "a.tsv": ".tsv", "a.iob2.gz": ".iob2", "a": "", "a.xz": "", "v1.2.txt": ".txt"}
    assert {name: ending_of(Path(name)) for name in names} == names
