"""Languages are found under all their codes, and what is not known is not guessed."""

import lzma

import numpy as np
import pytest

from polyloom.data.catalog import treebanks
from polyloom.data.typology import _TWO, Typology, iso3, script_of
from polyloom.errors import DataError
from tests.shared import DATA, needs_data

FAMILIES = "code\tname\tfamily_name\ntur\tTurkish\tTurkic\nkaz\tKazakh\tTurkic\nfin\tFinnish\tUralic\neus\tBasque\t\n"
FEATURES = "code\tA\tB\tC\tD\ntur\t0\t1\t1\t\nkaz\t0\t1\t0\t1\nfin\t1\t0\t0\t1\nxxx\t?\t--\t\t-\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "families.tsv").write_text(FAMILIES)
    with lzma.open(tmp_path / "features.tsv.xz", "wt") as file:
        file.write(FEATURES)
    (tmp_path / "README.md").write_text("not a table")
    return tmp_path


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("tr", "tur"), ("tur", "tur"), ("tur_Latn", "tur"), ("tr-a", "tur"), ("TR", "tur"), ("tr_boun", "tur"),
        ("ar", "arb"), ("ara", "arb"), ("zh", "cmn"), ("zh-Hant", "cmn"), ("zh_hk", "cmn"), ("zh-yue", "yue"),
        ("zh-min-nan", "nan"), ("et", "ekk"), ("est", "ekk"), ("no", "nob"), ("quy", "quy"),
        ("xx", None), ("boza", None), ("t", None), ("12", None), ("a1b", None),
    ],
)  # fmt: skip
def test_codes_lead_to_the_individual_language_or_nowhere(code, found):
    assert iso3(code) == found


def test_the_table_of_two_letter_codes_is_whole():
    words = _TWO.split()
    codes, meant = words[::2], words[1::2]
    assert len(codes) == len(set(codes)) == 184  # of ISO 639-1, with the old one for Serbo-Croatian
    assert codes == sorted(codes)
    assert all(len(code) == 2 for code in codes)
    assert all(len(code) == 3 for code in meant)
    assert all(iso3(code) == code for code in meant), "an individual language leads no further"


def test_every_treebank_of_the_catalogue_has_a_language():
    assert not [item for item in treebanks("ud") if iso3(item) is None]


def test_families_and_distances_by_hand(folder):
    typology = Typology.read(folder)
    assert typology.family("tr") == typology.family("tur_Latn") == "Turkic"
    assert typology.family("eu") is None, "an empty cell is no family"
    assert (typology.same_family("tr", "kk"), typology.same_family("tr", "fi")) == (True, False)
    assert typology.same_family("tr", "eu") is typology.same_family("tr", "boza") is None
    assert typology.distance("tr", "kk") == pytest.approx(1 / 3), "D is not known of Turkish"
    assert typology.distance("kk", "tr") == typology.distance("tur", "kaz-b")
    assert typology.distance("kk", "fi") == 0.5
    assert typology.distance("fi", "fi") == 0.0
    assert typology.distance("tr", "xxx") is None, "nothing is known of both"
    assert typology.distance("tr", "eu") is None


def test_files_may_be_named_one_by_one(folder):
    assert not Typology.read(folder / "families.tsv").features
    only = Typology.read([folder / "features.tsv.xz"])
    assert only.family("tr") is None
    assert only.distance("kk", "fi") == 0.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("code\tfamily\ntur\tTurkic\tmore\n", r"table.tsv:2: 3 columns, but the header has 2"),
        ("code\tA\ntur\t1\ntur\t0\n", r"table.tsv:3: 'tur' is there already"),
        ("code\tA\ntur\tyes\n", r"table.tsv:2: A: 'yes' is not a number"),
        ("code\tA\ntur\tinf\n", r"table.tsv:2: A: infinite"),
        ("code\n", r"table.tsv:1: no table"),
        ("", r"table.tsv:1: no table"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, content, message):
    (tmp_path / "table.tsv").write_text(content)
    with pytest.raises(DataError, match=message):
        Typology.read(tmp_path)


def test_what_cannot_be_told_apart_or_found_is_refused(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no tables here"):
        Typology.read(tmp_path / "empty")
    with pytest.raises(DataError, match="cannot be read"):
        Typology.read(tmp_path / "nowhere.tsv")
    (folder / "more.tsv").write_text(FEATURES)
    with pytest.raises(DataError, match="a second table of features"):
        Typology.read(folder)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Ünlü bir şehir", "Latin"), ("Привет, world!", "Cyrillic"), ("مرحبا", "Arabic"), ("中文 and 日本語", "Cjk"),
        ("中文日本", "Cjk"), ("कखग", "Devanagari"), ("ＡＢ", "Latin"), ("ʰʷ 12 …", None), ("", None),
    ],
)  # fmt: skip
def test_scripts_by_majority_of_letters(text, script):
    assert script_of(text) == script


@needs_data
def test_real_metadata():
    typology = Typology.read(DATA / "meta")
    assert len(typology.families) == 258
    assert len(typology.features) == 233
    assert {len(row) for row in typology.features.values()} == {289}
    assert {typology.family(code) for code in ("tr", "kk", "sah", "tt")} == {"Turkic"}
    assert not [code for code in typology.families if iso3(code) != code], "the table's own codes are kept"
    near, far = typology.distance("de", "nl"), typology.distance("de", "ja")
    assert near is not None
    assert far is not None
    assert near < far
    assert np.isclose(near, np.mean(typology.features["deu"] != typology.features["nld"]))
