"""Look up families, typological features and scripts of languages in the user's own tables.

Languages have many codes (``tr``, ``tur``, ``tur_Latn``, ``tr-a``); tables are read by ISO 639-3. Unknown values are
``None``, never guessed.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyloom.data.catalog import data_root
from polyloom.errors import DataError
from polyloom.io.files import ending_of, read_lines

FAMILY = ("family_name", "family")  # columns of a table of families, the preferred one first
UNKNOWN = ("", "-", "--", "?")  # how tables write that a feature is not known

# ISO 639-1 in the order of codes; macro-languages stand for the individual language that is usually meant.
_TWO = """
aa aar ab abk ae ave af afr ak aka am amh an arg ar arb as asm av ava ay ayr az azj ba bak be bel bg bul bi bis bm bam
bn ben bo bod br bre bs bos ca cat ce che ch cha co cos cr cre cs ces cu chu cv chv cy cym da dan de deu dv div dz dzo
ee ewe el ell en eng eo epo es spa et ekk eu eus fa pes ff fuv fi fin fj fij fo fao fr fra fy fry ga gle gd gla gl glg
gn gug gu guj gv glv ha hau he heb hi hin ho hmo hr hrv ht hat hu hun hy hye hz her ia ina id ind ie ile ig ibo ii iii
ik ipk io ido is isl it ita iu ike ja jpn jv jav ka kat kg kng ki kik kj kua kk kaz kl kal km khm kn kan ko kor kr knc
ks kas ku kmr kv kpv kw cor ky kir la lat lb ltz lg lug li lim ln lin lo lao lt lit lu lub lv lvs mg plt mh mah mi mri
mk mkd ml mal mn khk mr mar ms zsm mt mlt my mya na nau nb nob nd nde ne npi ng ndo nl nld nn nno no nob nr nbl nv nav
ny nya oc oci oj oji om gaz or ory os oss pa pan pi pli pl pol ps pus pt por qu quy rm roh rn run ro ron ru rus rw kin
sa san sc src sd snd se sme sg sag sh hbs si sin sk slk sl slv sm smo sn sna so som sq als sr srp ss ssw st sot su sun
sv swe sw swh ta tam te tel tg tgk th tha ti tir tk tuk tl tgl tn tsn to ton tr tur ts tso tt tat tw aka ty tah ug uig
uk ukr ur urd uz uzn ve ven vi vie vo vol wa wln wo wol xh xho yi ydd yo yor za zha zh cmn zu zul
"""
_MACRO = """
ara arb aym ayr aze azj est ekk fas pes ful fuv grn gug iku ike kom kpv kon kng kur kmr lav lvs mlg plt mon khk msa zsm
nep npi nor nob ori ory orm gaz que quy sqi als srd src swa swh twi aka uzb uzn yid ydd zho cmn
"""


def _table(text: str) -> dict[str, str]:
    """Read a list of codes, each followed by its ISO 639-3 code."""
    words = text.split()
    return {words[place]: words[place + 1] for place in range(0, len(words), 2)}


ISO3 = _table(_TWO) | _table(_MACRO)  # ISO 639-3 by other codes


def iso3(code: str) -> str | None:
    """Return the ISO 639-3 code of a language, or ``None`` if the code is not known.

    Args:
        code: ISO 639-1 or 639-3; what follows ``-``, ``_`` or ``.`` (a script, a region, any name) is ignored. Three
            letters are not checked; ``zh-yue`` is a separate language, as in BCP 47.
    """
    if chinese := re.fullmatch(r"zh(?:-[a-z]{3})*-([a-z]{3})", code):
        return chinese[1]
    language = re.split(r"[-_.]", code, maxsplit=1)[0].lower()
    known = ISO3.get(language)
    return known or (language if re.fullmatch("[a-z]{3}", language) else None)


def script_of(text: str) -> str | None:
    """Return the script of most letters of a text, by their Unicode names, such as ``Latin`` or ``Cjk``."""
    letters = Counter(letter for letter in text if letter.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        words = unicodedata.name(letter, "").split()
        # Unicode names begin with the script: LATIN SMALL LETTER A, HALFWIDTH KATAKANA LETTER A, CJK UNIFIED IDEOGRAPH.
        words = words[1:] if words[:1] in (["FULLWIDTH"], ["HALFWIDTH"]) else words
        if len(words) > 1 and words[0] != "MODIFIER":  # which all scripts share
            scripts[words[0].capitalize()] += count
    # Ties go to the first in the alphabet, so that the order of a text does not matter.
    return min(scripts, key=lambda script: (-scripts[script], script), default=None)


@dataclass(frozen=True)
class Typology:
    """Families and features of languages, by ISO 639-3."""

    families: Mapping[str, str] = field(default_factory=dict)
    """The name of each language's family."""
    features: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Numbers from 0 to 1, or on any scale that all languages share; nan where unknown."""

    @classmethod
    def read(cls, source: Path | Sequence[Path]) -> Self:
        """Read tables: TSV with a header and the code in the first column; plain, gzip or xz.

        A table with a column ``family_name`` (or ``family``) lists families. In any other table all columns are
        features.

        Args:
            source: A folder, of which all ``.tsv`` files are read, or files.
        """
        files = [source] if isinstance(source, Path) else list(source)
        if isinstance(source, Path) and source.is_dir():
            files = sorted(path for path in source.iterdir() if ending_of(path) == ".tsv")
            if not files:
                raise DataError(source, None, "no tables here. Expected .tsv files with a header, or .tsv.xz.")
        families: dict[str, str] = {}
        features: dict[str, NDArray[Any]] = {}
        for path in files:
            rows = _rows(path)
            _, header = rows[0]
            column = next((header.index(name) for name in FAMILY if name in header), None)
            if column is not None:
                families |= {row[0]: row[column] for _, row in rows[1:] if row[column]}
            elif features:
                raise DataError(path, 1, f"a second table of features. Put them into one. Columns: {header[1]}, …")
            else:
                features = {row[0]: _numbers(row, header, path=path, line=line) for line, row in rows[1:]}
        return cls(families, features)

    def family(self, code: str) -> str | None:
        """Return the family of a language, or ``None`` if it is not known."""
        return self.families.get(code) or self.families.get(iso3(code) or "")

    def same_family(self, a: str, b: str) -> bool | None:
        """Return whether two languages are of one family; ``None`` if either family is not known."""
        families = self.family(a), self.family(b)
        return None if None in families else families[0] == families[1]

    def distance(self, a: str, b: str) -> float | None:
        """Return the mean difference over the features known of both; for 0/1 features, the share that differs."""
        first_F, second_F = self._features_of(a), self._features_of(b)
        if first_F is None or second_F is None:
            return None
        differences_F = np.abs(first_F - second_F)
        known_F = ~np.isnan(differences_F)
        return float(differences_F[known_F].mean()) if known_F.any() else None

    def vectors(self, codes: Sequence[str], size: int) -> dict[str, list[float]]:
        """Return languages as vectors: principal components of the features in the tables, scaled to mean square 1.

        An unknown feature counts as the mean of the other languages. A language without features is an error. With
        fewer features than `size`, the last numbers are zero.
        """
        known = {code: self._features_of(code) for code in codes}
        missing = [code for code, features_F in known.items() if features_F is None]
        if missing:
            what = f"no features of {', '.join(missing)}. Add a line to the table, or do without."
            raise DataError("typology", None, what)
        # The axes come from all languages of the tables, so that the vectors of a language do not depend on the others
        # of a run. The sign of a principal component is arbitrary: here its largest weight is positive.
        # N languages, F features, E components.
        table_NF = np.array(list(self.features.values()))
        mean_F = np.nanmean(table_NF, axis=0)
        centred_NF = np.nan_to_num(table_NF - mean_F)  # an unknown feature is at the mean
        # The rows of V^T in U S V^T are the principal axes, in the order of their variance.
        axes_EF = np.linalg.svd(centred_NF, full_matrices=False)[2][:size]
        largest_E = np.abs(axes_EF).argmax(axis=1)
        axes_EF *= np.sign(axes_EF[np.arange(len(axes_EF)), largest_E])[:, None]
        scale = math.sqrt(np.square(centred_NF @ axes_EF.T).mean())
        vectors = {}
        for code, features_F in known.items():
            vector_E = np.nan_to_num(features_F - mean_F) @ axes_EF.T / scale
            # There are at most as many axes as languages or features in the tables: the rest is zero.
            vectors[code] = np.pad(vector_E, (0, size - len(vector_E))).tolist()
        return vectors

    def _features_of(self, code: str) -> NDArray[Any] | None:
        return self.features.get(code, self.features.get(iso3(code) or ""))


def read_typology(root: str | None = None) -> Typology | None:
    """Read the tables in the data root's folder ``meta``, if there is one."""
    folder = data_root(Path(root) if root else None) / "meta"
    return Typology.read(folder) if folder.is_dir() else None


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    rows = [(number, line.split("\t")) for number, line in read_lines(path) if line]
    if not rows or len(rows[0][1]) < 2:
        raise DataError(path, 1, "no table: expected a header with at least two columns, separated by tabs.")
    width, seen = len(rows[0][1]), set()
    for number, row in rows:
        if len(row) != width:
            raise DataError(path, number, f"{len(row)} columns, but the header has {width}.")
        if row[0] in seen:
            raise DataError(path, number, f"{row[0]!r} is there already.")
        seen.add(row[0])
    return rows


def _numbers(row: Sequence[str], header: Sequence[str], *, path: Path, line: int) -> NDArray[Any]:
    values = []
    for name, text in zip(header[1:], row[1:], strict=True):
        try:
            value = math.nan if text in UNKNOWN else float(text)
        except ValueError:
            hint = "A table of families has a column family_name."
            raise DataError(path, line, f"{name}: {text!r} is not a number. {hint}") from None
        if math.isinf(value):
            raise DataError(path, line, f"{name}: infinite.")
        values.append(value)
    return np.array(values)
