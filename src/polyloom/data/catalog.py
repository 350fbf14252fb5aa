"""Resolve names of corpora such as ``ud:tr_boun/test[:20]``: find their files, languages and licences.

A collection is a row of ``COLLECTIONS``: the paths of its files under the data root, their origin, their licence.
Treebanks (repository, commit, licence) are rows of ``catalog.tsv``. Everything else is found by listing the data root.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from polyloom.data.readers.bitext import (
    SPLITS,
    Aligned,
    OneSide,
    Table,
    aligned_of,
    is_turned,
    mirrored,
    renamed,
    split_file,
    table_of,
)
from polyloom.data.readers.formats import parse_file, read_records
from polyloom.data.readers.huggingface import HubTable
from polyloom.data.records import Kind, Record
from polyloom.data.slices import Sample, parse_slice
from polyloom.data.synthetic import LICENCE, SyntheticCorpus
from polyloom.errors import DataError, suggest
from polyloom.io.files import File
from polyloom.io.hashes import remembered_sha256

KINDS = dict[str, Kind](
    pos="tags",
    ner="tags",
    dep="tree",
    nli="pair",
    cls="labelled",
    mlm="text",
    lm="text",
    chat="conversation",
    choice="choices",
    mt="bitext",
    copa="choices",
    qa="question",
)
NON_COMMERCIAL = "nc"  # the folder of the root with corpora for non-commercial use

_NAME = r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*"
_SPLITS = {split: split for split in SPLITS}
_UNITS = (
    "split",
    "vref",
    "url",
    "ids",
)  # files of an aligned collection that describe its lines and are not a language
_RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Collection:
    """A collection of corpora of one kind and origin.

    Attributes:
        task: The task that it is mostly used for.
        summary: A description in one line.
        layout: Paths of its files under the root (or under ``nc/``), without the ending of compression.
        licence: The licence, unless ``catalog.tsv`` has another for an item.
        url: The pinned address of a file; ``None`` if only a mirror has it.
        splits: The name of each split in the layout.
        language: For a collection of one language: its only item.
        aligned: Whether it has a file for each language, all with the same lines, and the splits of the lines in
            ``split.txt``. Any two files are then a corpus.
    """

    task: str
    summary: str
    layout: str
    licence: str
    url: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: _SPLITS)
    language: str | None = None
    aligned: bool = False

    @property
    def has_splits(self) -> bool:
        """Whether each split has a separate file."""
        return "{split}" in self.layout


COLLECTIONS: Mapping[str, Collection] = {
    "ud": Collection(
        "pos", "Universal Dependencies", "ud/{repository}/{item}-ud-{split}.conllu", "unknown",
        url=f"{_RAW}/UniversalDependencies/{{repository}}/{{commit}}/{{item}}-ud-{{split}}.conllu",
    ),
    "wikiann": Collection(
        "ner", "WikiANN, silver labels", "ner/wikiann/{item}/{split}.tsv", "CC BY-SA 3.0 (unclear)",
    ),
    "uner": Collection(
        "ner", "Universal NER, on UD text", "ner/uner/{repository}/{item}-ud-{split}.iob2", "unknown",
        url=f"{_RAW}/UniversalNER/{{repository}}/{{commit}}/{{item}}-ud-{{split}}.iob2",
    ),
    "masakhaner2": Collection(
        "ner", "MasakhaNER 2.0, Africa", "ner/masakhaner2/{item}/{split}.txt", "CC BY-NC 4.0",
        url=f"{_RAW}/masakhane-io/masakhane-ner/ba5843cd08aa491d5f96a5e809e71eb9ec461391"
        "/MasakhaNER2.0/data/{item}/{split}.txt",
    ),
    "americasnli": Collection(
        "nli", "AmericasNLI", "nli/americasnli/{split}/{item}.tsv", "CC BY-SA 4.0",
        url=f"{_RAW}/abteen/americasnli/bebd02ca1e4529016fca2e4554a5c48c285b8fba/data/anli_final/{{split}}/{{item}}.tsv",
    ),
    "xnli": Collection("nli", "XNLI", "nli/xnli/{split}-{item}.tsv", "CC BY-NC 4.0"),
    "kornli": Collection("nli", "KorNLI, Korean", "nli/kornli/xnli.{split}.{item}.tsv", "CC BY-SA 4.0"),
    "farstail": Collection(
        "nli", "FarsTail, Persian", "nli/farstail/{split}.csv", "Apache-2.0", language="fa",
        splits={"train": "Train-word", "dev": "Val-word", "test": "Test-word"},
    ),
    "sick": Collection(
        "nli", "SICK, English", "nli/sick/{split}.txt", "CC BY-NC-SA 3.0", language="en",
        splits={"train": "SICK_train", "dev": "SICK_trial", "test": "SICK_test_annotated"},
    ),
    "med": Collection("nli", "MED, English", "nli/med/MED.tsv", "CC BY-SA 4.0", language="en"),
    "pawsx": Collection(
        "nli", "PAWS-X, paraphrases", "nli/pawsx/{split}-{item}.tsv", "free, with credit",
    ),
    "leipzig": Collection("mlm", "Leipzig corpora, web", "mono/leipzig/{item}.txt", "CC BY 4.0"),
    "tatoeba": Collection("mlm", "Tatoeba, volunteers", "mono/tatoeba/{item}.txt", "CC BY 2.0 FR"),
    "giellalt": Collection(
        "mlm", "GiellaLT, laws and more", "mono/giellalt/{item}.txt", "free (olo: CC BY-SA)",
    ),
    "tatoeba-mt": Collection("mt", "Tatoeba, with English", "mt/tatoeba/{item}/{split}.tsv", "CC BY 2.0 FR"),
    "tatoeba-zero": Collection(
        "mt", "Tatoeba, without English", "mt/tatoeba/zero-shot/{item}.{split}.tsv", "CC BY 2.0 FR",
    ),
    "bible": Collection("mt", "Bibles, by verse", "mt/bible/{item}.txt", "free, by text (README)", aligned=True),
    "seed": Collection("mt", "OLDI Seed, Wikipedia", "mt/seed/{item}.txt", "CC BY-SA 4.0", aligned=True),
    "storybooks": Collection(
        "mt", "African Storybook, by page", "mt/storybooks/{item}.txt", "CC BY (credits.tsv)", aligned=True,
    ),
}  # fmt: skip


class Entry(NamedTuple):
    """A row of the packaged table of treebanks."""

    repository: str
    commit: str
    licence: str


class Place(NamedTuple):
    """A file under the root and the corpus that it is."""

    collection: str
    item: str
    split: str | None
    path: Path

    @property
    def name(self) -> str:
        """The name as it is written in recipes."""
        return written(self.collection, self.item, self.split)


@dataclass(frozen=True)
class Corpus:
    """A corpus: a named sequence of examples.

    Attributes:
        name: The name as written, including the slice.
        source: A file, two aligned files or one of them, a data set of the Hugging Face Hub, or a generator.
        task: The task that it is mostly used for; ``None`` if unknown.
        language: Code of the language, as the collection writes it; ``None`` if unknown.
        split: ``train``, ``dev`` or ``test``; ``None`` if unknown.
        licence: The licence; ``None`` if unknown.
        non_commercial: Whether the licence forbids commercial use.
        sample: A random choice of its examples; ``None`` for all.
        start: First example, counted from 0, of those chosen.
        stop: The end of the slice, exclusive; ``None`` for all.
        languages: For bitext: the languages of its two sides, in the order of the name; ``None`` if unknown.
        at_most: Whether there may be fewer examples than the slice asks for.
    """

    name: str
    source: Path | File | Table | Aligned | OneSide | HubTable | SyntheticCorpus
    task: str | None = None
    language: str | None = None
    split: str | None = None
    licence: str | None = None
    non_commercial: bool = False
    sample: Sample | None = None
    start: int = 0
    stop: int | None = None
    languages: tuple[str, str] | None = None
    at_most: bool = False

    def records(self, kind: Kind, *, direction: tuple[str, str] | None = None) -> Iterator[Record]:
        """Read the examples of the slice; too few examples are an error.

        Args:
            kind: The kind of record.
            direction: For bitext: source and target language. If neither the name nor the file names the languages,
                the first side is the source.
        """
        return (record for _, record in self.numbered(kind, direction=direction))

    def numbered(self, kind: Kind, *, direction: tuple[str, str] | None = None) -> Iterator[tuple[int, Record]]:
        """Read the examples of the slice, each with its position in the whole corpus, from 0."""
        rows: Iterable[tuple[int, Record]] = enumerate(self._all(kind, direction))
        if self.sample:
            rows = self.sample.of(rows)
            if len(rows) < self.sample.size:
                what = f"there are {len(rows):,} examples only, so {self.sample.size:,} cannot be chosen."
                raise DataError(self.name, None, what)
        seen = self.start
        for row in islice(rows, self.start, self.stop):
            seen += 1
            yield row
        if seen < (self.stop or self.start + 1) and (self.start or self.stop) and not self.at_most:
            raise DataError(self.name, None, "there are fewer examples than the slice asks for.")

    def _all(self, kind: Kind, direction: tuple[str, str] | None) -> Iterator[Record]:
        source = self.source
        if isinstance(source, HubTable) and kind == "bitext":
            raise DataError(self.name, None, "translations are not read from the Hub. Save them as JSON lines.")
        if isinstance(source, Path | File):
            rows = read_records(source, kind, direction=direction)
        else:
            rows = source.records(kind)
        if kind == "bitext" and self.languages and direction and is_turned(self.languages, direction, self.name):
            return mirrored(rows)
        return rows

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from; none of data sets on the Hub and of generated ones."""
        source = self.source
        if isinstance(source, Aligned):
            return source.paths
        if isinstance(source, OneSide):
            return (source.path,)
        return (source,) if isinstance(source, Path) else (source.path,) if isinstance(source, File | Table) else ()

    @cached_property
    def sha256(self) -> str:
        """Hash of the files as they are stored, or of the rows if there is no file; the same for every slice."""
        return remembered_sha256(self.source) if isinstance(self.source, Path) else self.source.sha256()


def data_root(root: Path | None = None) -> Path:
    """Return the data root: the argument, else ``POLYLOOM_DATA``, else ``~/.cache/polyloom/data``."""
    return root or Path(os.environ.get("POLYLOOM_DATA") or Path.home() / ".cache" / "polyloom" / "data")


@cache
def treebanks(collection: str) -> Mapping[str, Entry]:
    """Return the rows of the packaged table, by item such as ``tr_boun``."""
    lines = Path(__file__).with_name("catalog.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines[1:])
    return {item: Entry(*rest) for owner, item, *rest in rows if owner == collection}


def resolve(name: str, *, root: Path | None = None, check: Callable[[Path], None] = lambda _: None) -> Corpus:
    """Find a corpus by its name.

    Args:
        name: ``collection:item/split``, ``hf:org/name[:config]/split[#column]``, or the path of a file, with its format
            and columns after ``#``; for bitext also ``train.{en,de}`` and ``pairs.tsv#en,de``. A path may also be below
            the root. A slice such as ``[:20]``, ``[10:20]``, ``[<=20]`` or ``[random:20]`` may follow.
        root: The folder of the corpora; see ``data_root``.
        check: Called with every file or folder that the name is a path of; raises an error if it may not be read.
    """
    bare, part = parse_slice(name)
    return replace(_resolve(name, bare, data_root(root), check), **part._asdict())


def _resolve(name: str, bare: str, root: Path, check: Callable[[Path], None]) -> Corpus:
    prefix = bare.partition(":")[0]
    if prefix == "hf":
        table = HubTable.parse(bare)
        if Path(table.repository).exists():
            check(Path(table.repository))
        return Corpus(name, table, split=table.split)
    if bare.startswith("synthetic:"):
        generated = SyntheticCorpus.parse(bare)
        return Corpus(
            name, generated, generated.task, generated.language, generated.split, LICENCE, languages=generated.languages
        )
    if prefix in COLLECTIONS and prefix != bare:
        if COLLECTIONS[prefix].task == "mt":
            return _resolve_bitext(name, bare, root)
        collection, item, split = parse_name(bare)
        place = _find(collection, item, split=split, root=root)
        licence, non_commercial = licence_of(place, root)
        return Corpus(name, place.path, COLLECTIONS[collection].task, language_of(item), split, licence, non_commercial)
    if corpus := _resolve_path(name, bare, root):
        for path in corpus.files:
            check(path)
        return corpus
    if Path(bare).is_dir():
        raise DataError(name, None, "is a folder. Name a file in it.")
    if re.fullmatch(r"[a-z0-9-]+:[^\\]+", bare):
        known = [*COLLECTIONS, "synthetic", "hf"]
        raise DataError(name, None, f"unknown collection {prefix!r}. {suggest(prefix, known, limit=len(known))}")
    what = "no such file. A corpus is collection:item/split, such as ud:tr_boun/test, hf:org/name/split, or a path."
    raise DataError(name, None, what)


def _resolve_path(name: str, bare: str, root: Path) -> Corpus | None:
    """Find a file, with what may follow it after ``#``, or two files that belong together: here, or below the root."""
    for path in (bare, str(root / bare)):
        if Path(path).is_file():
            return Corpus(name, Path(path))
        if file := parse_file(path):
            table = table_of(file, bare)
            return Corpus(name, table[0], "mt", languages=table[1]) if table else Corpus(name, file)
    aligned = aligned_of(bare, root)
    return Corpus(name, aligned[0], "mt", languages=aligned[1]) if aligned else None


def _resolve_bitext(name: str, bare: str, root: Path) -> Corpus:
    """Resolve a pair of languages of a collection, in either order, or one language as raw text."""
    bare, sign, after = bare.partition("#")
    collection, item, split = parse_name(bare)
    if COLLECTIONS[collection].aligned and split and (alone := places(collection, root=root, item=item)):
        side = OneSide(alone[0].path, split_file(alone[0].path), split)
        licence, non_commercial = licence_of(alone[0], root)
        return Corpus(name, side, "lm", item, split, licence, non_commercial)
    source: Path | Table | Aligned
    if COLLECTIONS[collection].aligned:
        sides = _find_sides(collection, item, split=split, root=root)
        source = Aligned((sides[0].path, sides[1].path), split_file(sides[0].path), split)
        languages = sides[0].item, sides[1].item
    else:
        first, _, second = item.partition("-")
        turned = not places(collection, root=root, item=item) and places(
            collection, root=root, item=f"{second}-{first}"
        )
        sides = [_find(collection, f"{second}-{first}" if turned else item, split=split, root=root)]
        source = Table(sides[0].path, (1, 0)) if turned else sides[0].path
        languages = first, second
    non_commercial = any(licence_of(place, root)[1] for place in sides)
    licence, languages = licence_of(sides[0], root)[0], renamed(after, name) if sign else languages
    return Corpus(name, source, "mt", None, split, licence, non_commercial, languages=languages)


def _find_sides(collection: str, item: str, *, split: str | None, root: Path) -> list[Place]:
    """Find the files of two languages; codes such as ``ha-ne`` may contain a hyphen."""
    known = {place.item for place in places(collection, root=root)}
    cuts = [(item[: at.start()], item[at.end() :]) for at in re.finditer("-", item)]
    first, second = max(cuts, key=lambda cut: sum(language in known for language in cut), default=("", ""))
    if first == second or split is None:
        one = f"{collection}:{item}-LANGUAGE/SPLIT, or {collection}:{item}/SPLIT for the text of one"
        shape = one if not cuts else f"{collection}:{item}/SPLIT"
        raise DataError(written(collection, item, split), None, f"two languages and a split are needed. Write {shape}.")
    return [_find(collection, language, split=None, root=root) for language in (first, second)]


def parse_name(name: str) -> tuple[str, str, str | None]:
    """Parse ``ud:tr_boun/test`` without checking whether the corpus exists."""
    collection, _, rest = name.partition(":")
    if collection not in COLLECTIONS:
        raise DataError(name, None, f"unknown collection {collection!r}. {suggest(collection, COLLECTIONS, limit=20)}")
    about = COLLECTIONS[collection]
    with_split = about.has_splits or about.aligned
    shape = f"{collection}:ITEM/SPLIT" if with_split else f"{collection}:ITEM"
    item, slash, split = rest.partition("/")
    if not re.fullmatch(_NAME, item):
        raise DataError(name, None, f"{item!r} is not the name of a corpus. Write {shape}.")
    if slash and not with_split:
        raise DataError(name, None, f"{collection} has no splits. Write {written(collection, item, None)}.")
    if slash and split not in about.splits:
        raise DataError(name, None, f"unknown split {split!r}. {suggest(split, about.splits)}")
    return collection, item, split or None


def written(collection: str, item: str, split: str | None) -> str:
    """Return the name of a corpus."""
    return f"{collection}:{item}/{split}" if split else f"{collection}:{item}"


def language_of(item: str) -> str:
    """Return the language of an item such as ``tr_boun`` or ``tr``."""
    return item.partition("_")[0]


def licence_of(place: Place, root: Path) -> tuple[str, bool]:
    """Return the licence and whether it forbids commercial use, as for everything under ``nc/``."""
    entry = treebanks(place.collection).get(place.item)
    licence = entry.licence if entry else COLLECTIONS[place.collection].licence
    return licence, "-NC" in licence or place.path.relative_to(root).parts[0] == NON_COMMERCIAL


def places(collection: str, *, root: Path, item: str | None = None) -> list[Place]:
    """List the files of a collection, or of one of its items, that are under the root, in the order of names."""
    about = COLLECTIONS[collection]
    if about.language and item not in (None, about.language):
        return []
    wild = about.layout.format(repository="*", item=item or "*", split="*")
    listed = []
    for base in (root, root / NON_COMMERCIAL):
        for path in base.glob(wild + "*"):
            place = place_of(collection, path.relative_to(base).as_posix())
            if place and (item is None or place[0] == item):
                listed.append(Place(collection, *place, path))
    return sorted(listed, key=lambda place: (place.item, place.split or "", place.path))


def place_of(collection: str, path: str) -> tuple[str, str | None] | None:
    """Return item and split of a path below the root (or below ``nc/``), if it belongs to the collection."""
    about = COLLECTIONS[collection]
    match = _pattern(collection).fullmatch(path)
    if match is None:
        return None
    groups = match.groupdict()
    if about.aligned and groups["item"] in _UNITS:
        return None
    inside = {word: split for split, word in about.splits.items()}
    return about.language or groups["item"], inside[groups["split"]] if about.has_splits else None


@cache
def _pattern(collection: str) -> re.Pattern[str]:
    about = COLLECTIONS[collection]
    words = "|".join(map(re.escape, about.splits.values()))
    groups = {"repository": _NAME, "item": f"(?P<item>{_NAME})", "split": f"(?P<split>{words})"}
    parts = re.split(r"\{(\w+)\}", about.layout)
    body = "".join(groups[part] if odd % 2 else re.escape(part) for odd, part in enumerate(parts))
    return re.compile(body + r"(?:\.gz|\.xz)?")


def _find(collection: str, item: str, *, split: str | None, root: Path) -> Place:
    """Find the file of a corpus; if there is none or several, the error says what there is and how to get more."""
    about, name = COLLECTIONS[collection], written(collection, item, split)
    here = places(collection, root=root, item=item)
    splits = ", ".join(sorted({place.split for place in here if place.split}))
    if here and about.has_splits and split is None:
        raise DataError(name, None, f"which split? Here: {splits}. Write {collection}:{item}/SPLIT.")
    matching = [place for place in here if place.split == split]
    if len(matching) == 1:
        return matching[0]
    if matching:
        files = " and ".join(str(place.path) for place in matching)
        raise DataError(name, None, f"there are several files: {files}. Keep the one that is meant.")
    if here:
        fetch = f" If it exists at the source: polyloom data fetch {name}" if about.url else ""
        raise DataError(
            name, None, f"no {split} split. Here: {splits}. Another split is never taken in its place.{fetch}"
        )
    raise DataError(name, None, _absent(collection, item, name=name, root=root))


def _absent(collection: str, item: str, *, name: str, root: Path) -> str:
    """Explain why a corpus is missing, and what there is."""
    about = COLLECTIONS[collection]
    where = f"not under {root}" if root.is_dir() else f"there is no data root {root} (POLYLOOM_DATA or --root)"
    if item in treebanks(collection):
        return f"{where}. To get it: polyloom data fetch {name}"
    known = sorted({place.item for place in places(collection, root=root)} | set(treebanks(collection)))
    kin = [other for other in known if language_of(other) == language_of(item)]
    more = "" if treebanks(collection) else f" If there is such a corpus: polyloom data fetch {name}"
    return f"{where}. {suggest(item, kin or known)}{more}{'' if about.url else ' --mirror URL'}"
