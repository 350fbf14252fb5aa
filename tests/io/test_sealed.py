"""Sealed files are read as they were written, or not at all."""

import json

import pytest

from polyloom.errors import DamagedError
from polyloom.io.sealed import check_line, read_sealed, seal, seal_line
from polyloom.io.yaml import parse_yaml

TEXTS = {
    "json": json.dumps({"a": 1, "b": ["ü", None]}, ensure_ascii=False) + "\n",
    "lines": json.dumps({"a": 1, "b": {"c": "x"}}, indent=2) + "\n",
    "yaml": "a: 1\nb: [ü, null]\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_sealed_file_is_read_as_it_was_and_an_unsealed_one_only_if_users_may_change_it(tmp_path, name):
    file, text = tmp_path / name, TEXTS[name]
    file.write_text(seal(text))
    assert read_sealed(file) == read_sealed(file, editable=True) == text
    file.write_text(text)
    assert read_sealed(file, editable=True) == text
    with pytest.raises(DamagedError, match=f"^{file}: damaged: its first line has no SHA-256"):
        read_sealed(file)


def test_a_sealed_file_is_still_json_or_yaml():
    assert json.loads(seal(TEXTS["lines"])).items() >= json.loads(TEXTS["lines"]).items()
    assert parse_yaml(seal(TEXTS["yaml"]), source="x") == parse_yaml(TEXTS["yaml"], source="x")


@pytest.mark.parametrize("name", TEXTS)
def test_every_flipped_bit_is_noticed(tmp_path, name):
    file = tmp_path / name
    content = seal(TEXTS[name]).encode()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(DamagedError):
            read_sealed(file)


def test_a_flipped_bit_in_a_file_that_users_may_change_gives_no_other_text(tmp_path):
    file = tmp_path / "yaml"
    content = seal(TEXTS["yaml"]).encode()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            text = read_sealed(file, editable=True)
        except (DamagedError, UnicodeDecodeError):
            continue
        assert bit // 8 < len("# sha256: "), "the file counts as one whose seal was removed"
        assert text.partition("\n")[2] == TEXTS["yaml"]


@pytest.mark.parametrize("line", [seal_line('{"a": 1}').replace("1", "2", 1), '{"a": 1}', ""])
def test_a_line_without_its_checksum_or_with_another_is_refused(line):
    check_line(seal_line('{"a": 1}'))
    with pytest.raises(ValueError, match="damaged"):
        check_line(line)


def test_a_file_that_was_shortened_is_damaged(tmp_path):
    for text in TEXTS.values():
        whole = seal(text)
        for length in range(20, len(whole)):
            (tmp_path / "file").write_text(whole[:length])
            with pytest.raises(DamagedError):
                read_sealed(tmp_path / "file")
