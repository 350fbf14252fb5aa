"""A million damaged lines: every one is read or refused with its number, and what is read can be used.

Real lines are damaged as disks, editors, converters and attackers do it. After an error a new reader begins behind the
line it names, so that all lines counted here were seen by a reader.
"""

import dataclasses
import lzma
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyloom.data.readers.columns import read_columns
from polyloom.data.readers.conllu import Sentence, read_conllu, write_sentence
from polyloom.data.readers.tables import read_pairs
from polyloom.data.readers.text import read_json_text, read_text
from polyloom.errors import DataError
from polyloom.io import files
from tests.shared import DATA, needs_data, nightly

pytestmark = needs_data

LINES_PER_FILE = 60
ODD = [
    chr(code).encode() for code in (0x85, 0xA0, 0x2028, 0x2029, 0x3000, 0xFEFF, 0x200F, 0x301, 0x1F600, 0x10FFFF, 0xB2)
]
ODD += [
    b"\0",
    b"\r",
    b"\n",
    b"\x0b",
    b"\x1c",
    b"\t",
    b"\t\t",
    b" ",
    b'"',
    b'""',
    b"#",
    b"_",
    b"-",
    b".",
    b":",
    b"|",
    b"\\",
]
ODD += [
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xed\xb0\x80",
    b"\xc0\x80",
    b"\xf4\x90\x80\x80",
    b"\x1f\x8b",
    b"\xfd7zXZ\0",
]
ODD += [b"NaN", b"1e999", b"-1", b"\\ud800", b"\\u0000", b"[" * 3000, b'{"text": ' * 2000, b"9" * 5000, b"{}", b"null"]
IDS = [
    b"0",
    b"1",
    b"2",
    b"01",
    b"-1",
    b"1-2",
    b"2-1",
    b"1-1",
    b"1-2147483647",
    b"1-99999999999999999999",
    b"0.1",
    b"1.1",
    b"1.0",
]
IDS += [
    b"1.99999999999",
    b"2147483648",
    b"9" * 4400,
    b"1e9",
    b"\xd9\xa1",
    b"\xc2\xb2",
    b"1-2-3",
    b"1.1.1",
    b"_",
    b"",
    b" 1",
    b"+1",
]


def cut(line: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(line) + 1)
    return line[:start] + line[start + 1 + rng.randrange(4) :]


def change(line: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(line) + 1)
    return line[:place] + rng.randbytes(1) + line[place + 1 :]


def insert(line: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(line) + 1)
    return line[:place] + rng.choice(ODD) + line[place:]


def replace_column(line: bytes, rng: random.Random) -> bytes:
    datasets = line.split(b"\t")
    datasets[rng.choice((0, 0, 6, -1)) if len(datasets) > 6 else rng.randrange(len(datasets))] = rng.choice(IDS)
    return b"\t".join(datasets)


def move_columns(line: bytes, rng: random.Random) -> bytes:
    datasets = line.split(b"\t")
    datasets.insert(rng.randrange(len(datasets)), datasets.pop(rng.randrange(len(datasets))))
    return b"\t".join(datasets if rng.random() < 0.5 else datasets[:-1] or datasets)


def repeat(line: bytes, rng: random.Random) -> bytes:
    return (line + b"\n") * rng.randrange(2, 4)


def empty(line: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", b" ", b"\t", b"#", b"# text =", b"-DOCSTART-"))


DAMAGE: list[Callable[[bytes, random.Random], bytes]] = [
    cut, cut, change, change, insert, insert, insert, replace_column, replace_column, move_columns, repeat, empty,
]  # fmt: skip


def lines_of(pattern: str, count: int) -> list[bytes]:
    """Real lines, some of every file."""
    paths = sorted(DATA.glob(pattern))
    share = count // len(paths) + 1
    return [line for path in paths for line in lzma.decompress(path.read_bytes()).split(b"\n")[:share]]


def json_lines(count: int) -> list[bytes]:
    pairs = lines_of("nli/xcopa/*/val.*.jsonl.xz", count)
    named = [line.replace(b'"choice1"', b'"hypothesis"').replace(b'"choice2"', b'"text"') for line in pairs]
    return [line.rstrip(b"\r") for line in named]


def plain_lines(pattern: str) -> Callable[[int], list[bytes]]:
    return lambda count: lines_of(pattern, count)


# what is damaged: name of the file, its reader, real lines, how many are damaged
FORMATS: dict[str, tuple[str, Callable[[Path], Iterator[object]], Callable[[int], list[bytes]], int]] = {
    "conllu": ("a.conllu", read_conllu, plain_lines("ud/UD_*-PUD/*.conllu.xz"), 300_000),
    "tags": ("a.tsv", read_columns, plain_lines("ner/wikiann/*/dev.tsv.xz"), 150_000),
    "entities": ("a.iob2", read_columns, plain_lines("ner/uner/*-PUD/*.iob2.xz"), 150_000),
    "pairs": ("a.tsv", read_pairs, plain_lines("nli/pawsx/dev-*.tsv.xz"), 150_000),
    "json pairs": ("a.jsonl", read_pairs, json_lines, 80_000),
    "json text": ("a.jsonl", read_json_text, json_lines, 70_000),
    "text": ("a.txt", read_text, plain_lines("mono/leipzig/*.txt.xz"), 100_000),
}


def test_a_million_lines_are_damaged():
    assert sum(count for *_, count in FORMATS.values()) >= 1_000_000


@pytest.mark.parametrize("share", [0.05, *nightly(1.0)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_lines_are_read_or_refused_with_their_number(name, share, monkeypatch):
    file, read, source, count = FORMATS[name]
    wanted = count * share
    rng = random.Random(f"fuzz {name}")
    real = source(20_000)
    content = b""
    monkeypatch.setattr(files, "_read_bytes", lambda path, limits: iter([content]))
    seen = errors = 0
    used: list[type] = []
    while seen < wanted:
        start = rng.randrange(len(real))
        lines, damaged = damage(real[start : start + LINES_PER_FILE], rng)
        while lines:
            content = b"\n".join(lines)
            try:
                use(read(Path(file)), content, used)
                stop = len(lines)
            except DataError as error:
                stop = checked_line(error, lines)
                if file in ("a.conllu", "a.iob2"):
                    drop_rest_of_sentence(lines, damaged, stop)
                errors += 1
            seen += sum(damaged[:stop])
            lines, damaged = lines[stop:], damaged[stop:]
    print(f"{name}: {seen} damaged lines, {errors} errors, {len(used)} records")
    assert errors > wanted / 1000
    assert len(used) > wanted / 100


def damage(lines: list[bytes], rng: random.Random) -> tuple[list[bytes], list[bool]]:
    """Damage few, some or nearly all lines; also says which are other than they were, one for each that was split."""
    found, flags = [], []
    rate = rng.choice((0.03, 0.3, 0.9))
    for line in lines:
        changed = rng.choice(DAMAGE)(line, rng) if rng.random() < rate else line
        parts = changed.split(b"\n")
        found += parts
        flags += [changed != line] + [False] * (len(parts) - 1)
    return found, flags


def checked_line(error: DataError, lines: list[bytes]) -> int:
    """The number in the message, which is that of a line."""
    assert error.line is not None
    assert 1 <= error.line <= len(lines)
    assert str(error).startswith(f"{error.path}:{error.line}: ")
    str(error).encode()
    return error.line


def drop_rest_of_sentence(lines: list[bytes], damaged: list[bool], start: int) -> None:
    """Where words are numbered, the rest of a sentence would be refused for not beginning with 1, and test nothing."""
    stop = next((number for number in range(start, len(lines)) if not lines[number]), len(lines))
    del lines[start:stop], damaged[start:stop]


def use(records: Iterator[object], content: bytes, used: list[type]) -> None:
    """Use what was read as a task would: it has words, as many tags, and can be written as UTF-8."""
    written = 0
    for record in records:
        used.append(type(record))
        if isinstance(record, Sentence):
            data = write_sentence(record).encode()
            assert content.startswith(data, written)
            written += len(data)
            ask(record)
            continue
        values = [getattr(record, field.name) for field in dataclasses.fields(record) if field.compare]  # type: ignore[arg-type]
        assert len({len(value) for value in values if isinstance(value, tuple)}) <= 1
        text = "".join(value if isinstance(value, str) else "".join(value) for value in values)
        assert "\0" not in text.encode().decode()
        assert "\n" not in text or b"\\n" in content


def ask(sentence: Sentence) -> None:
    """Everything that is checked late either comes or is refused with a line of this sentence."""
    assert sentence.words
    assert sentence.text is not None
    last = sentence.line + len(sentence.comments) + len(sentence.rows) - 1
    refused = []
    for late in (lambda: sentence.upos, lambda: sentence.heads, sentence.tree):
        try:
            assert late()
        except DataError as error:
            refused.append(error.line)
    assert all(line is not None and sentence.line <= line <= last for line in refused)
