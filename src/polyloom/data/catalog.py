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
    Table,
    is_reversed,
    parse_aligned,
    parse_languages,
    parse_table,
    reverse,
    split_file,
)
from polyloom.data.readers.formats import parse_file, read_records
from polyloom.data.readers.huggingface import HubTable
from polyloom.data.records import Kind, Record
from polyloom.data.slices import Sample, parse_slice
from polyloom.data.synthetic import LICENCE, SyntheticCorpus
from polyloom.errors import DataError, suggest
from polyloom.io.files import File
from polyloom.io.hashes import remembered_sha256

# The kind of record of each task, so that checks of corpora need not import tasks; `register_task` adds others.
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
_UNITS = ("split", "vref", "url", "ids")  # files of an aligned collection that are about its lines, not a language
_RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Collection:
    """A collection of corpora of one kind and origin."""

    task: str
    """The task that it is mostly used for."""
    summary: str
    """A description in one line."""
    layout: str
    """Paths of its files under the root (or under ``nc/``), without the ending of compression."""
    licence: str
    """The licence, unless ``catalog.tsv`` has another for an item."""
    url: str | None = None
    """The pinned address of a file; ``None`` if only a mirror has it."""
    splits: Mapping[str, str] = field(default_factory=lambda: _SPLITS)
    """The name of each split in the layout."""
    language: str | None = None
    """For a collection of one language: its only item."""
    aligned: bool = False
    """Whether it has a file for each language, all with the same lines, and the splits of the lines in ``split.txt``.
    Any two files are then a corpus of translations."""

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


class CorpusFile(NamedTuple):
    """A file under the root, and the corpus of a collection that it is."""

    collection: str
    item: str
    split: str | None
    path: Path

    @property
    def name(self) -> str:
        """The name of the corpus, as it is written in recipes."""
        return corpus_name(self.collection, self.item, self.split)


@dataclass(frozen=True)
class Corpus:
    """A corpus: a named sequence of examples."""

    name: str
    """The name as it is written in a recipe, with the slice."""
    source: Path | File | Table | Aligned | HubTable | SyntheticCorpus
    """A file, two aligned files or one of them, a data set of the Hugging Face Hub, or a generator."""
    task: str | None = None
    """The task that it is mostly used for; ``None`` if unknown."""
    language: str | None = None
    """Code of the language, as the collection writes it; ``None`` if unknown."""
    split: str | None = None
    """``train``, ``dev`` or ``test``; ``None`` if unknown."""
    licence: str | None = None
    """``None`` if unknown."""
    non_commercial: bool = False
    """Whether the licence forbids commercial use."""
    sample: Sample | None = None
    """A random choice of its examples; ``None`` for all."""
    start: int = 0
    """First example of the slice, counted from 0, among those of the random choice."""
    stop: int | None = None
    """The end of the slice, exclusive; ``None`` for all."""
    languages: tuple[str, str] | None = None
    """For bitext: the languages of its two sides, in the order of the name; ``None`` if unknown."""
    at_most: bool = False
    """Whether there may be fewer examples than the slice asks for."""

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
        source = self.source
        if isinstance(source, HubTable) and kind == "bitext":
            raise DataError(self.name, None, "translations are not read from the Hub. Save them as JSON lines.")
        if isinstance(source, Path | File):
            records = read_records(source, kind, direction=direction)
        else:
            records = source.records(kind)
        # A corpus has `languages` if its sides have a fixed order. Files that name the languages of each text are read
        # in the right direction already.
        if kind == "bitext" and self.languages and direction and is_reversed(self.languages, direction, self.name):
            records = reverse(records)

        # The random choice comes first: its position decides what `[random:20][5:10]` is.
        rows: Iterable[tuple[int, Record]] = enumerate(records)
        if self.sample:
            rows = self.sample.of(rows)
            if len(rows) < self.sample.size:
                what = f"there are {len(rows):,} examples only, so {self.sample.size:,} cannot be chosen."
                raise DataError(self.name, None, what)
        end = self.start
        for row in islice(rows, self.start, self.stop):
            end += 1
            yield row
        # A slice without an end, such as [10:], needs one example.
        is_slice = self.start > 0 or self.stop is not None
        if is_slice and not self.at_most and end < (self.stop or self.start + 1):
            raise DataError(self.name, None, "there are fewer examples than the slice asks for.")

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from; none of data sets on the Hub and of generated ones."""
        source = self.source
        if isinstance(source, Table | Aligned):
            return source.files
        if isinstance(source, File):
            return (source.path,)
        return (source,) if isinstance(source, Path) else ()

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
    whole = _resolve_whole(name, bare, data_root(root), check)
    return replace(whole, sample=part.sample, start=part.start, stop=part.stop, at_most=part.at_most)


def _resolve_whole(name: str, bare: str, root: Path, check: Callable[[Path], None]) -> Corpus:
    """Find a corpus by its name without a slice."""
    # A known prefix decides, even if there is a file of this name: a recipe means the same on every machine.
    prefix, colon, _ = bare.partition(":")
    if colon and prefix == "hf":
        table = HubTable.parse(bare)
        if Path(table.repository).exists():
            check(Path(table.repository))
        return Corpus(name, table, split=table.split)
    if colon and prefix == "synthetic":
        generator = SyntheticCorpus.parse(bare)
        return Corpus(
            name, generator, generator.task, generator.language, generator.split, LICENCE, languages=generator.languages
        )
    if colon and prefix in COLLECTIONS:
        if COLLECTIONS[prefix].task == "mt":
            return _resolve_bitext(name, bare, root)
        collection, item, split = parse_name(bare)
        file = _find_file(collection, item, split=split, root=root)
        licence, non_commercial = licence_of(file, root)
        return Corpus(name, file.path, COLLECTIONS[collection].task, language_of(item), split, licence, non_commercial)

    # Not a collection: a file here or below the root, what may follow it after #, or two files written with braces.
    corpus = None
    for place in (bare, str(root / bare)):
        if Path(place).is_file():
            corpus = Corpus(name, Path(place))
        elif parsed := parse_file(place):
            columns = parse_table(parsed, bare)
            corpus = Corpus(name, columns[0], "mt", languages=columns[1]) if columns else Corpus(name, parsed)
        if corpus:
            break
    if corpus is None and (aligned := parse_aligned(bare, root)):
        corpus = Corpus(name, aligned[0], "mt", languages=aligned[1])
    if corpus:
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


def _resolve_bitext(name: str, bare: str, root: Path) -> Corpus:
    """Find a pair of languages of a collection, in either order, or one language as raw text."""
    bare, sign, after = bare.partition("#")
    collection, item, split = parse_name(bare)
    source: Path | Table | Aligned
    if COLLECTIONS[collection].aligned:
        # Any two files are a corpus, and any file is one: `bible:eng-deu/train`, `bible:eng/train`.
        if split and (files := corpus_files(collection, root=root, item=item)):
            side = Aligned((files[0].path,), split_file(files[0].path), split)
            licence, non_commercial = licence_of(files[0], root)
            return Corpus(name, side, "lm", item, split, licence, non_commercial)
        # Codes may contain a hyphen: of all ways to cut `ha-ne-en`, the one with the most languages that have a file.
        known = {file.item for file in corpus_files(collection, root=root)}
        cuts = [(item[: at.start()], item[at.end() :]) for at in re.finditer("-", item)]
        first, second = max(cuts, key=lambda cut: sum(language in known for language in cut), default=("", ""))
        if first == second or split is None:
            single = f"{collection}:{item}-LANGUAGE/SPLIT, or {collection}:{item}/SPLIT for the text of one"
            shape = f"{collection}:{item}/SPLIT" if cuts else single
            what = f"two languages and a split are needed. Write {shape}."
            raise DataError(corpus_name(collection, item, split), None, what)
        files = [_find_file(collection, language, split=None, root=root) for language in (first, second)]
        source = Aligned((files[0].path, files[1].path), split_file(files[0].path), split)
        languages = files[0].item, files[1].item
    else:
        # One file for both directions, named in one order: `tatoeba-mt:deu-eng` is `tatoeba-mt:eng-deu`, reversed.
        first, _, second = item.partition("-")
        other = f"{second}-{first}"
        is_other = not corpus_files(collection, root=root, item=item) and corpus_files(
            collection, root=root, item=other
        )
        files = [_find_file(collection, other if is_other else item, split=split, root=root)]
        source = Table(files[0].path, (1, 0)) if is_other else files[0].path
        languages = first, second
    # Languages of one collection may stand under `nc/` and outside of it: one such side forbids commercial use.
    licence, _ = licence_of(files[0], root)
    non_commercial = any(licence_of(file, root)[1] for file in files)
    if sign:
        languages = parse_languages(after, name)
    return Corpus(name, source, "mt", None, split, licence, non_commercial, languages=languages)


def _find_file(collection: str, item: str, *, split: str | None, root: Path) -> CorpusFile:
    """Find the file of a corpus; if there is none or several, the error says what there is and how to get more."""
    about, name = COLLECTIONS[collection], corpus_name(collection, item, split)
    here = corpus_files(collection, root=root, item=item)
    splits = ", ".join(sorted({file.split for file in here if file.split}))
    if here and about.has_splits and split is None:
        raise DataError(name, None, f"which split? Here: {splits}. Write {collection}:{item}/SPLIT.")
    matching = [file for file in here if file.split == split]
    if len(matching) == 1:
        return matching[0]
    if matching:
        paths = " and ".join(str(file.path) for file in matching)
        raise DataError(name, None, f"there are several files: {paths}. Keep the one that is meant.")
    if here:
        fetch = f" If it exists at the source: polyloom data fetch {name}" if about.url else ""
        what = f"no {split} split. Here: {splits}. Another split is never taken in its place.{fetch}"
        raise DataError(name, None, what)

    # Nothing of this item is here: say how to get it, or which items of the same language there are.
    where = f"not under {root}" if root.is_dir() else f"there is no data root {root} (POLYLOOM_DATA or --root)"
    table = treebanks(collection)
    if item in table:
        raise DataError(name, None, f"{where}. To get it: polyloom data fetch {name}")
    known = sorted({file.item for file in corpus_files(collection, root=root)} | set(table))
    kin = [other for other in known if language_of(other) == language_of(item)]
    fetch = "" if table else f" If there is such a corpus: polyloom data fetch {name}"
    mirror = "" if about.url else " --mirror URL"
    raise DataError(name, None, f"{where}. {suggest(item, kin or known)}{fetch}{mirror}")


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
        raise DataError(name, None, f"{collection} has no splits. Write {corpus_name(collection, item, None)}.")
    if slash and split not in about.splits:
        raise DataError(name, None, f"unknown split {split!r}. {suggest(split, about.splits)}")
    return collection, item, split or None


def corpus_name(collection: str, item: str, split: str | None) -> str:
    """Return the name of a corpus."""
    return f"{collection}:{item}/{split}" if split else f"{collection}:{item}"


def language_of(item: str) -> str:
    """Return the language of an item such as ``tr_boun`` or ``tr``."""
    return item.partition("_")[0]


def licence_of(file: CorpusFile, root: Path) -> tuple[str, bool]:
    """Return the licence and whether it forbids commercial use, as for everything under ``nc/``."""
    entry = treebanks(file.collection).get(file.item)
    licence = entry.licence if entry else COLLECTIONS[file.collection].licence
    return licence, "-NC" in licence or file.path.relative_to(root).parts[0] == NON_COMMERCIAL


def corpus_files(collection: str, *, root: Path, item: str | None = None) -> list[CorpusFile]:
    """List the files of a collection, or of one of its items, that are under the root, in the order of names."""
    about = COLLECTIONS[collection]
    if about.language and item not in (None, about.language):
        return []
    pattern = about.layout.format(repository="*", item=item or "*", split="*") + "*"
    files = []
    for base in (root, root / NON_COMMERCIAL):
        for path in base.glob(pattern):
            parsed = parse_path(collection, path.relative_to(base).as_posix())
            if parsed and (item is None or parsed[0] == item):
                files.append(CorpusFile(collection, *parsed, path))
    return sorted(files, key=lambda file: (file.item, file.split or "", file.path))


def parse_path(collection: str, path: str) -> tuple[str, str | None] | None:
    """Return item and split of a path below the root (or below ``nc/``), if it belongs to the collection."""
    about = COLLECTIONS[collection]
    match = _path_pattern(collection).fullmatch(path)
    if match is None:
        return None
    groups = match.groupdict()
    if about.aligned and groups["item"] in _UNITS:
        return None
    split_of = {word: split for split, word in about.splits.items()}
    return about.language or groups["item"], split_of[groups["split"]] if about.has_splits else None


@cache
def _path_pattern(collection: str) -> re.Pattern[str]:
    """Turn the layout of a collection into a regular expression."""
    about = COLLECTIONS[collection]
    words = "|".join(map(re.escape, about.splits.values()))
    body = re.escape(about.layout)
    for name, group in {"repository": _NAME, "item": f"(?P<item>{_NAME})", "split": f"(?P<split>{words})"}.items():
        body = body.replace(re.escape(f"{{{name}}}"), group)
    return re.compile(body + r"(?:\.gz|\.xz)?")
