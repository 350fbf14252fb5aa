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
from polyloom.errors import DataError, Location, PolyloomError

# Kinds that are read from whole rows: their parts are nested, or have other names in each of several layouts.
_WHOLE_ROWS: Mapping[Kind, Callable[[Mapping[str, Any], Location], Record]] = {
    "choices": make_choices, "question": make_question, "conversation": make_conversation,
}  # fmt: skip


@dataclass(frozen=True)
class HubTable:
    """One split of a data set, loaded through ``datasets``; no code of the data set is run."""

    name: str
    """The name as it is written in a recipe."""
    repository: str
    """``org/name``, or a local folder."""
    config: str | None
    """One of the data set's configurations, such as a language."""
    split: str
    columns: tuple[str, ...]
    """Names of columns: of the labels (or the text), or of all parts of a record in order. By default columns are found
    by their usual names."""

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
            if self.columns:
                raise DataError(self.name, None, f"read as {kind} it has no columns to name.")
            yield from (
                _WHOLE_ROWS[kind](row, Location(self.name, number)) for number, row in enumerate(table, start=1)
            )
            return
        places = choose_columns(table.column_names, COLUMNS[kind], self.columns, at=Location(self.name))
        columns = [table.column_names[place] for place in places]
        # A column of classes has numbers, or lists of numbers; its feature, or that of its items, has the names.
        classes = {}
        for column in columns:
            feature = table.features[column]
            classes[column] = getattr(getattr(feature, "feature", feature), "names", None)
        for number, row in enumerate(table.select_columns(columns), start=1):
            cells = [self._cell(row[column], classes[column], column, number) for column in columns]
            if kind not in ("tags", "tree") or cells[0] != []:
                yield make_record(kind, cells, Location(self.name, number))

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

    def _cell(self, value: Any, classes: Sequence[str] | None, column: str, number: int) -> Any:
        """Turn the numbers of classes into their names."""
        if isinstance(value, list):
            return [self._cell(item, classes, column, number) for item in value]
        if classes is None or isinstance(value, str):
            return value
        if value is None or not 0 <= value < len(classes):
            raise DataError(self.name, number, f"column {column}: no label ({value}).")
        return classes[value]
