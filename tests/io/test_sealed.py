"""Sealed files are read as they were written, or not at all."""

import json

import pytest

from polyloom.errors import DamagedError
from polyloom.io.sealed import read_sealed, seal
from polyloom.io.yaml import parse_yaml

TEXTS = {
    "json": json.dumps({"a": 1, "b": ["ü", None]}, ensure_ascii=False) + "\n",
    "lines": json.dumps({"a": 1, "b": {"c": "x"}}, indent=2) + "\n",
    "yaml": "a: 1\nb: [ü, null]\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_sealed_file_is_read_as_it_was_and_an_unsealed_one_too(tmp_path, name):
    file, text = tmp_path / name, TEXTS[name]
    file.write_text(seal(text))
    assert read_sealed(file) == (text, True)
    file.write_text(text)
    assert read_sealed(file) == (text, False)


def test_a_sealed_file_is_still_json_or_yaml():
    assert json.loads(seal(TEXTS["lines"])).items() >= json.loads(TEXTS["lines"]).items()
    assert parse_yaml(seal(TEXTS["yaml"]), source="x") == parse_yaml(TEXTS["yaml"], source="x")


@pytest.mark.parametrize("name", TEXTS)
def test_no_flipped_bit_gives_another_text(tmp_path, name):
    file, text = tmp_path / name, TEXTS[name]
    content = seal(text).encode()
    damaged = 0
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            found, sealed = read_sealed(file)
        except (DamagedError, UnicodeDecodeError):
            damaged += 1
        else:  # a bit of the words before the digest: the file counts as one of a former version
            assert not sealed
            assert found.partition("\n")[2] == content.decode().partition("\n")[2]
    assert damaged >= 8 * (len(content) - len('{"sha256": "'))


def test_a_file_that_was_shortened_is_damaged(tmp_path):
    for text in TEXTS.values():
        whole = seal(text)
        for length in range(20, len(whole)):
            (tmp_path / "file").write_text(whole[:length])
            with pytest.raises(DamagedError):
                read_sealed(tmp_path / "file")
