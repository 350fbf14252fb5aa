"""Read data sets of the Hugging Face Hub, or of a local folder, as records; columns are found by name."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyloom.data.readers.choices import make_choices
from polyloom.data.readers.conversations import make_conversation
from polyloom.data.readers.questions import make_question
from polyloom.data.readers.tables import COLUMNS, choose_columns, make_record
from polyloom.data.records import Kind, Record
from polyloom.errors import DataError, PolyloomError

_WHOLE_ROWS: Mapping[Kind, Callable[[Mapping[str, Any], str, int], Record]] = {
    "choices": make_choices, "question": make_question, "conversation": make_conversation,
}  # fmt: skip


@dataclass(frozen=True)
class HubTable:
    """One split of a data set, loaded through ``datasets``; no code of the data set is run.

    Attributes:
        name: The name as written.
        repository: ``org/name``, or a local folder.
        config: One of the data set's configurations, such as a language.
        split: The split.
        wanted: Names of columns: of the labels (or the text), or of all parts of a record in order. By default columns
            are found by the names that are usual.
    """

    name: str
    repository: str
    config: str | None
    split: str
    wanted: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> "HubTable":
        """Parse ``hf:org/name[:config]/split[#column]``."""
        rest, _, columns = name.removeprefix("hf:").partition("#")
        where, _, split = rest.rpartition("/")
        repository, _, config = where.partition(":")
        if not (repository and split):
            raise DataError(name, None, "expected hf:org/name/split, hf:org/name:config/split, either with #column.")
        return cls(name, repository, config or None, split, tuple(columns.split(",")) if columns else ())

    def records(self, kind: Kind) -> Iterator[Record]:
        """Read the rows as records; sentences without words are left out."""
        table = self._table()
        if kind in _WHOLE_ROWS:
            if self.wanted:
                raise DataError(self.name, None, f"read as {kind} it has no columns to name.")
            yield from (_WHOLE_ROWS[kind](row, self.name, number) for number, row in enumerate(table, start=1))
            return
        places = choose_columns(table.column_names, COLUMNS[kind], self.wanted, source=self.name)
        columns = [table.column_names[place] for place in places]
        names = [_class_names(table.features[column]) for column in columns]
        for number, row in enumerate(table.select_columns(columns), start=1):
            fields = [
                self._cell(row[column], names=known, place=(column, number))
                for column, known in zip(columns, names, strict=True)
            ]
            if kind not in ("tags", "tree") or fields[0] != []:
                yield make_record(kind, fields, source=self.name, number=number)

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

    def _cell(self, value: Any, *, names: Sequence[str] | None, place: tuple[str, int]) -> Any:
        """Turn the numbers of classes into their names."""
        if isinstance(value, list):
            return [self._cell(item, names=names, place=place) for item in value]
        if names is None or isinstance(value, str):
            return value
        if value is None or not 0 <= value < len(names):
            raise DataError(self.name, place[1], f"column {place[0]}: no label ({value}).")
        return names[value]


def _class_names(feature: Any) -> Sequence[str] | None:
    inner = getattr(feature, "feature", feature)
    names: Sequence[str] | None = getattr(inner, "names", None)
    return names
