"""Publish encoded datasets in object storage, and open them there: training then needs no corpora.

A folder has one folder for each dataset, and a catalogue that names them by condition.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyloom.conditions import Condition
from polyloom.data.encoded import MANIFEST, EncodedDataset, open_dataset
from polyloom.data.readers.bitext import Filter
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import DataError, MissingObjectError, suggest
from polyloom.io.cache import cache_folder
from polyloom.io.range_cache import RangeCache
from polyloom.io.remote import RemoteFolder
from polyloom.io.sealed import parse_sealed, seal

CATALOGUE = "datasets.json"
CACHED_BYTES = 20 << 30  # of blocks from object storage, on the disk of this machine


class _Inside:
    """A folder inside another one in object storage."""

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        self._folder, self._name = folder, name

    def read(self, name: str) -> bytes:
        return self._folder.read(f"{self._name}/{name}")

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        return self._folder.read_range(f"{self._name}/{name}", start, stop)


def publish(datasets: Mapping[Condition, EncodedDataset], url: str) -> None:
    """Upload datasets, and name them in the catalogue."""
    for dataset in datasets.values():
        upload(dataset, url)
    add_to_catalogue(url, {str(condition): Path(dataset.path).name for condition, dataset in datasets.items()})


def upload(dataset: EncodedDataset, url: str) -> None:
    """Upload a dataset. Its manifest comes last, so that an interrupted upload is resumed and never read."""
    folder, path = RemoteFolder(url), Path(dataset.path)
    if not folder.exists(f"{path.name}/{MANIFEST}"):
        for file in sorted(path.iterdir(), key=lambda file: (file.name == MANIFEST, file.name)):
            folder.write(f"{path.name}/{file.name}", file)


def add_to_catalogue(url: str, names: Mapping[str, str]) -> None:
    """Name the datasets of conditions in the catalogue, beside those that it has. One process at a time may do so."""
    folder = RemoteFolder(url)
    try:
        catalogue = _read_catalogue(folder)
    except MissingObjectError:
        catalogue = {}
    folder.write(CATALOGUE, seal(json.dumps(catalogue | dict(names), ensure_ascii=False)).encode())


def open_published(
    corpora: Mapping[Condition, Sequence[str]], url: str, *, tokenizer: Tokenizer, rules: Filter
) -> dict[Condition, EncodedDataset]:
    """Open datasets in object storage; each must have been made from these corpora, with this tokenizer and rules.

    Args:
        corpora: Names of the corpora of each condition.
        url: Address of the folder.
        tokenizer: The tokenizer.
        rules: Rules that filter bitext.
    """
    folder = RemoteFolder(url, cache=RangeCache(cache_folder("blocks"), CACHED_BYTES))
    catalogue, datasets = _read_catalogue(folder), {}
    for condition, names in corpora.items():
        where = f"{url}: {condition}"
        if str(condition) not in catalogue:
            raise DataError(where, None, f"no such dataset. {suggest(str(condition), catalogue)} {_HINT}")
        # The name of a dataset is a hash of what it was made from. The catalogue may still name one of another recipe,
        # so its metadata are compared.
        name = catalogue[str(condition)]
        dataset = open_dataset(f"{folder.url}/{name}", _Inside(folder, name))
        expected: dict[str, Any] = {"corpora": list(names), "tokenizer": tokenizer.fingerprint}
        actual = {key: dataset.meta.get(key) for key in expected}
        actual["corpora"] = [corpus["corpus"] for corpus in dataset.meta["corpora"]]
        if "rules" in dataset.meta:
            expected["rules"], actual["rules"] = asdict(rules), dataset.meta["rules"]
        wrong = [key for key, value in expected.items() if actual[key] != value]
        if wrong:
            differences = "; ".join(f"its {key}: {actual[key]}, of this recipe: {expected[key]}" for key in wrong)
            raise DataError(where, None, f"made in another way: {differences}. {_HINT}")
        datasets[condition] = dataset
    return datasets


_HINT = "To make it: polyloom data prepare RECIPE --to ADDRESS."


def _read_catalogue(folder: RemoteFolder) -> dict[str, str]:
    content: dict[str, str] = json.loads(parse_sealed(folder.read(CATALOGUE), f"{folder.url}/{CATALOGUE}"))
    return content
