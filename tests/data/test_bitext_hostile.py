"""Damaged and hostile bitext is refused with its line, quickly and in little memory."""

import json
import lzma
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyloom.data.readers.bitext import Aligned, read_bitext
from polyloom.errors import DataError
from polyloom.io import files
from tests.data.test_bitext import UNIT, tmx, unit, write
from tests.data.test_fuzz import checked_line, damage, lines_of, use
from tests.shared import needs_data


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("t.tsv", "a\tb\na\tb\tc\n", r"t.tsv:2: 3 columns instead of 2. .* #en,de,_."),
        ("t.tsv", "a\tb\na\n", "t.tsv:2: 1 columns"),
        ("t.jsonl", '{"en": "a", "de": "b"}\n{"en": "a"}\n', "t.jsonl:2: no 'de' here.*Known: 'en'."),
        ("t.jsonl", '{"en": "a", "de": 1}\n', "t.jsonl:1: 'de' is not a string"),
        ("t.jsonl", '{"translation": ["a", "b"]}\n', "t.jsonl:1: 'translation' is not an object"),
        ("t.jsonl", '{"en": "a", "de": "\\ud800"}\n', "t.jsonl:1: .*surrogate"),
        ("t.tmx", tmx("<tu><seg>a</seg></tu>"), "t.tmx:5: <seg> stands in <tu>, but belongs in <tuv>"),
        ("t.tmx", tmx("<tu><tuv><seg>a</seg></tuv></tu>"), "t.tmx:5: <tuv> without xml:lang"),
        ("t.tmx", tmx("<tu>\n<tuv>"), "t.tmx:6: .*xml:lang"),
        ("t.tmx", tmx(unit(en="a", de="b") + "<tu>"), "t.tmx:8: not XML: mismatched tag"),
        ("t.tmx", tmx(unit(en="a&nbsp;", de="b")), "t.tmx:5: not XML: undefined entity"),
        ("t.tmx", tmx(""), "t.tmx:5: no translations"),
        ("t.tmx", tmx(unit(en="a", fr="b")), "t.tmx:8: no unit has both en and de. Known: en, fr."),
        ("t.tmx", "", "t.tmx:1: not XML: no element found"),
        ("t.tmx", "<html></html>", "t.tmx:1: no translations"),
        ("t.tmx", "en\tde\n", "t.tmx:1: not XML"),
    ],
)
def test_damage_is_refused_with_its_line(tmp_path, name, text, what):
    write(tmp_path, {name: text})
    with pytest.raises(DataError, match=what):
        list(read_bitext(tmp_path / name, ("en", "de")))


def test_entities_of_a_document_are_refused_and_those_of_its_dtd_are_not_dropped(tmp_path):
    laughs = '<!DOCTYPE tmx [<!ENTITY a "ha">\n' + "".join(
        f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">\n' for i in range(10)
    )
    external = '<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">'
    for before in (laughs, external, '<!DOCTYPE tmx [<!ENTITY % a "b"> %a;', '<!DOCTYPE tmx SYSTEM "tmx14.dtd" ['):
        write(tmp_path, {"t.tmx": tmx(unit(en="&a;", de="b"), before + "]>\n")})
        with pytest.raises(DataError, match=r"t.tmx:2: declarations .* refused"):
            list(read_bitext(tmp_path / "t.tmx", ("en", "de")))
    write(
        tmp_path, {"t.tmx": tmx(unit(en="a", de="b") + unit(en="a&nbsp;b", de="c"), '<!DOCTYPE tmx SYSTEM "x.dtd">\n')}
    )
    with pytest.raises(DataError, match=r"t.tmx:9: &nbsp; is no entity of XML"):
        list(read_bitext(tmp_path / "t.tmx", ("en", "de")))


READ = """
import json, re, sys
from pathlib import Path
from polyloom.data.readers.bitext import read_bitext
from polyloom.errors import DataError
def peak():
    return int(re.search(r"VmHWM:\\s*([0-9]+) kB", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
try:
    for _ in read_bitext(Path(sys.argv[1]), ("en", "de")):
        pass
    refused, line = "", 0
except DataError as error:
    refused, line = error.what, error.line
print(json.dumps([refused, line, peak() - before]))
"""
OPEN = b"<tmx><body>\n<tu><tuv xml:lang='en'><seg>"
EMPTY = b"<tuv xml:lang='%d'><seg/></tuv>\n"
ENDLESS: dict[str, tuple[Callable[[], bytes], str]] = {
    "text": (lambda: OPEN + b"abc\n" * 5_000_000, "a unit of more than"),
    "nested": (lambda: b"<a>\n" * 1_000_000, "nested deeper"),
    "attribute": (lambda: b"<tmx a='" + b"abc\n" * 5_000_000, "a tag or a comment"),
    "comment": (lambda: b"<tmx><!--" + b"abc\n" * 5_000_000, "a tag or a comment"),
    "languages": (lambda: b"<tmx><body><tu>" + b"".join(EMPTY % i for i in range(100_000)), "a unit of more than"),
    "xz bomb": (lambda: lzma.compress(b"<tmx>" + b" \n" * (16 << 20), preset=0), "a decompression bomb"),
    "line": (lambda: OPEN + b"a" * (2 << 20), "a line of more than"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_memories_without_end_are_refused_in_little_memory(tmp_path, kind):
    make, what = ENDLESS[kind]
    path = tmp_path / ("t.tmx.xz" if kind == "xz bomb" else "t.tmx")
    path.write_bytes(make())
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, check=True, text=True)
    refused, line, grown = json.loads(done.stdout)
    print(f"{kind}: {refused} (line {line}), {grown:.0f} MiB")
    assert what in refused
    assert line
    assert grown < 64


@pytest.mark.parametrize("wanted", [5_000, pytest.param(50_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("form", ["aligned", "table", "json", "tmx"])
@needs_data
def test_damaged_lines_are_read_or_refused_with_their_number(monkeypatch, form, wanted):
    rng = random.Random(f"fuzz {form}")
    rows = [line.split(b"\t") for line in lines_of("mt/tatoeba/zero-shot/*.tsv.xz", 5000) if b"\t" in line]
    contents: dict[str, bytes] = {}
    monkeypatch.setattr(files, "_read_bytes", lambda path, limits: iter([contents[str(path)]]))
    seen = errors = 0
    used: list[type] = []
    while seen < wanted:
        start = rng.randrange(len(rows))
        texts = damaged_files(rows[start : start + 12], form, rng)
        contents |= {name: b"\n".join(lines) for name, (lines, _) in texts.items()}
        reached = dict.fromkeys(texts, 10**9)
        records = Aligned((Path("en"), Path("de"))).records("bitext") if form == "aligned" else None
        try:
            use(records or read_bitext(Path(next(iter(texts))), ("en", "de")), b"".join(contents.values()), used)
        except DataError as error:
            line = checked_line(error, texts[str(error.path)][0])
            reached, errors = dict.fromkeys(texts, line), errors + 1
        seen += sum(sum(flags[: reached[name]]) for name, (_, flags) in texts.items())
    print(f"{form}: {seen} damaged lines, {errors} errors, {len(used)} records")
    assert errors > wanted / 1000
    assert len(used) > wanted / 100


def damaged_files(rows: list[list[bytes]], form: str, rng: random.Random) -> dict[str, tuple[list[bytes], list[bool]]]:
    """Real pairs in one of the forms, with damaged lines, and which they are."""
    if form == "aligned":
        return {name: damage([row[side] for row in rows], rng) for side, name in enumerate(("en", "de"))}
    if form == "table":
        return {"a.tsv": damage([b"\t".join(row) for row in rows], rng)}
    if form == "json":
        texts = [json.dumps({"en": one.decode(), "de": two.decode()}, ensure_ascii=False) for one, two in rows]
        return {"a.jsonl": damage([text.encode() for text in texts], rng)}
    plain = [[side.decode().replace("&", "&amp;").replace("<", "&lt;") for side in row] for row in rows]
    lines = tmx("".join(UNIT.format("en", one, "de", two) for one, two in plain)).encode().split(b"\n")
    few = rng.sample(range(len(lines)), 3)  # were there many, all but the first would go unread
    flags = [False] * len(lines)
    for place in few:
        (changed, *more), _ = damage([lines[place]], rng)
        flags[place] = changed != lines[place] or bool(more)
        lines[place] = b" ".join([changed, *more])
    return {"a.tmx": (lines, flags)}
