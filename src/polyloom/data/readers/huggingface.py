"""Tables of the Hugging Face Hub (or of a local folder) as records, their columns found by name."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyloom.data.records import Kind, Pair, Record, Tagged, Text, Tree
from polyloom.errors import DataError, PolyloomError, suggest

# By kind: for each part of a record, the names that its column goes by.
COLUMNS: Mapping[Kind, tuple[tuple[str, ...], ...]] = {
    "text": (("text", "sentence", "content"),),
    "tags": (("tokens", "words"), ("tags", "ner_tags", "upos", "pos_tags", "upos_tags", "labels")),
    "tree": (("tokens", "words"), ("head", "heads"), ("deprel", "deprels", "relations")),
    "pair": (
        ("premise", "sentence1", "sentence_A"),
        ("hypothesis", "sentence2", "sentence_B"),
        ("label", "gold_label"),
    ),
}


@dataclass(frozen=True)
class HubTable:
    """One split of a data set, loaded through ``datasets``; no code of the data set is run.

    Attributes:
        name: As written.
        repository: ``org/name``, or a local folder.
        config: Which of its configurations, such as a language.
        split: Which split.
        column: The column with the labels (or the text), where several could be meant.
    """

    name: str
    repository: str
    config: str | None
    split: str
    column: str | None

    @classmethod
    def parse(cls, name: str) -> "HubTable":
        """Read ``hf:org/name[:config]/split[#column]``."""
        rest, _, column = name.removeprefix("hf:").partition("#")
        where, _, split = rest.rpartition("/")
        repository, _, config = where.partition(":")
        if not (repository and split):
            raise DataError(name, None, "expected hf:org/name/split, hf:org/name:config/split, either with #column.")
        return cls(name, repository, config or None, split, column or None)

    def records(self, kind: Kind) -> Iterator[Record]:
        """Read the rows as records."""
        table = self._table()
        columns = self._columns(kind, table.column_names)
        names = [_class_names(table.features[column]) for column in columns]
        for number, row in enumerate(table.select_columns(columns), start=1):
            fields = [
                self._cell(row[column], names=known, place=(column, number))
                for column, known in zip(columns, names, strict=True)
            ]
            yield self._record(kind, fields, number=number)

    def sha256(self) -> str:
        """Hash of all rows and columns: it changes if the data set does."""
        digest = hashlib.sha256()
        for row in self._table():
            digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        return digest.hexdigest()

    def _table(self) -> Any:
        try:
            import datasets  # noqa: PLC0415 - slow, and only for those who use it
        except ImportError:
            raise PolyloomError(f"{self.name}: this needs the package datasets. pip install datasets") from None
        try:
            return datasets.load_dataset(self.repository, self.config, split=self.split)
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            raise DataError(self.name, None, f"cannot be loaded: {error}") from error

    def _columns(self, kind: Kind, there: Sequence[str]) -> list[str]:
        """The columns that make up a record; ``#column`` stands for the last, or for the text."""
        chosen = []
        for part, names in enumerate(COLUMNS[kind]):
            if self.column and part == (1 if kind == "tags" else len(COLUMNS[kind]) - 1):
                if self.column not in there:
                    raise DataError(self.name, None, f"no column {self.column!r}. {suggest(self.column, there)}")
                chosen.append(self.column)
                continue
            found = [name for name in names if name in there]
            if len(found) > 1:
                raise DataError(self.name, None, f"which column? {', '.join(found)}. Write {self.name}#{found[0]}.")
            if not found:
                raise DataError(
                    self.name, None, f"no column for {kind}: looked for {', '.join(names)}. {suggest(names[0], there)}"
                )
            chosen += found
        return chosen

    def _cell(self, value: Any, *, names: Sequence[str] | None, place: tuple[str, int]) -> Any:
        """Turn the numbers of classes into their names."""
        if isinstance(value, list):
            return [self._cell(one, names=names, place=place) for one in value]
        if names is None or isinstance(value, str):
            return value
        if value is None or not 0 <= value < len(names):
            raise DataError(self.name, place[1], f"column {place[0]}: no label ({value}).")
        return names[value]

    def _record(self, kind: Kind, fields: list[Any], *, number: int) -> Record:
        if kind == "text" and isinstance(fields[0], str):
            return Text(fields[0])
        if kind == "pair" and isinstance(fields[0], str) and isinstance(fields[1], str) and fields[2] is not None:
            return Pair(fields[0], fields[1], str(fields[2]))
        if kind in ("tags", "tree") and all(isinstance(field, list) for field in fields):
            if len(set(map(len, fields))) > 1:
                raise DataError(self.name, number, "the columns of a row differ in length.")
            if all(isinstance(value, str) for field in (fields[0], fields[-1]) for value in field):
                words, last = tuple(fields[0]), tuple(fields[-1])
                return Tagged(words, last) if kind == "tags" else Tree(words, self._heads(fields[1], number), last)
            raise DataError(self.name, number, "words and labels must be text, or classes with names.")
        raise DataError(self.name, number, f"this row is not a {kind} record.")

    def _heads(self, heads: list[Any], number: int) -> tuple[int, ...]:
        if not all(str(head).isdecimal() and int(head) <= len(heads) for head in heads):
            raise DataError(self.name, number, f"heads must be numbers from 0 to {len(heads)}.")
        return tuple(map(int, heads))


def _class_names(feature: Any) -> Sequence[str] | None:
    inner = getattr(feature, "feature", feature)
    names: Sequence[str] | None = getattr(inner, "names", None)
    return names
