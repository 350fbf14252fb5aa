"""Encode corpora once and keep them as memory-mapped datasets; the file name is a hash of everything they depend on."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.conditions import Condition
from polyloom.data.catalog import Corpus
from polyloom.data.encoded import EncodedDataset, open_dataset, write_dataset
from polyloom.data.readers.bitext import Filter, PairFilter
from polyloom.data.readers.formats import reader_of
from polyloom.data.records import Bitext
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import DataError, PolyloomWarning, TrainingError
from polyloom.io.atomic import remove_partial
from polyloom.io.cache import cache_folder
from polyloom.io.files import File
from polyloom.methods import Method
from polyloom.methods.base import Stage
from polyloom.registry import code_hashes
from polyloom.tasks import TASKS
from polyloom.training.loop import TrainDataset

FORMAT = 3  # of encoded datasets; raise it when the encoding or the file changes
PLAIN_RULES = Filter()
_BATCH = 1000


def prepare_dataset(
    condition: Condition,
    corpora: Sequence[Corpus],
    *,
    tokenizer: Tokenizer,
    rules: Filter = PLAIN_RULES,
    folder: Path | None = None,
) -> EncodedDataset:
    """Encode the corpora of a condition, or open the dataset if they were encoded before.

    Args:
        condition: The condition that they are examples of.
        corpora: The corpora, which are concatenated.
        tokenizer: The tokenizer.
        rules: Rules that filter bitext; ignored for other corpora.
        folder: Directory of the dataset. Default: ``datasets`` in the cache.

    Returns:
        The dataset. Its ``meta["labels"]`` has the labels in order of appearance, its ``meta["dropped"]`` the number of
        filtered pairs by rule.
    """
    task = TASKS[condition.task]
    origin = [{"corpus": c.name, "sha256": c.sha256, "start": c.start, "stop": c.stop} for c in corpora]
    described: dict[str, Any] = {
        "format": FORMAT,
        "task": task.name,
        "tokenizer": tokenizer.fingerprint,
        "corpora": origin,
    }
    if task.kind == "bitext":
        described |= {"direction": [condition.source, condition.target], "rules": asdict(rules)}
    readers = [reader_of(c.source, task.kind) for c in corpora if isinstance(c.source, Path | File)]
    if code := code_hashes([task, *readers]):
        described["code"] = code
    name = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]
    path = (folder or cache_folder("datasets")) / f"{task.name}-{name}.arrow"
    if (cached := _open_cached(path)) is not None:
        return cached
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(path.parent)
    index: dict[str, int] = {}
    pair_filter = PairFilter(rules)
    meta: dict[str, Any] = dict(described)

    def rows() -> Iterator[Mapping[str, Any]]:
        for corpus in corpora:
            for records in batched_records(task.records(corpus, condition)):
                for record, row in zip(records, task.encode(records, tokenizer, index), strict=True):
                    is_pair = isinstance(record, Bitext)
                    if not is_pair or pair_filter.keeps(record, len(row["source"]), len(row["target"])):
                        yield row
        meta.update(labels=list(index), dropped=dict(pair_filter.dropped))

    dataset = write_dataset(path, rows(), columns={**task.columns, "length": "int"}, meta=meta)
    if not len(dataset):
        path.unlink()
        raise DataError(", ".join(c.name for c in corpora), None, f"no examples for {condition}.")
    return dataset


def _open_cached(path: Path) -> EncodedDataset | None:
    """Open a dataset that was encoded before; a damaged one is reported, and is to be encoded again."""
    if not path.exists():
        return None
    try:
        return open_dataset(path)
    except DataError as error:
        damage = f"{path}: this cached dataset is damaged ({error.__cause__}). It is encoded again."
        warnings.warn(damage, PolyloomWarning, stacklevel=2)
        return None


def batched_records(records: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield records in lists of at most 1000."""
    while batch := list(islice(records, _BATCH)):
        yield batch


def label_sets(
    datasets: Mapping[Condition, EncodedDataset], given: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Collect the labels of every task from all its datasets, in alphabetical order.

    Args:
        datasets: The training data.
        given: Label sets that are fixed, by task, in their order; other labels in the data are an error.
    """
    by_task: dict[str, set[str]] = {}
    for condition, dataset in datasets.items():
        labels, fixed = dataset.meta["labels"], (given or {}).get(condition.task)
        if fixed and (unknown := [label for label in labels if label not in fixed]):
            corpora = ", ".join(corpus["corpus"] for corpus in dataset.meta["corpora"])
            raise DataError(corpora, None, f"tasks.{condition.task}.labels does not list {', '.join(unknown)}.")
        by_task.setdefault(condition.task, set()).update(labels)
    return {task: (given or {}).get(task) or tuple(sorted(labels)) for task, labels in by_task.items()}


def training_datasets(
    datasets: Mapping[Condition, EncodedDataset], *, method: Method, labels: Mapping[str, Sequence[str]], stage: Stage
) -> tuple[TrainDataset, ...]:
    """Select the datasets of a stage, each under all conditions whose weights the method trains on it.

    Raises:
        TrainingError: The stage has no dataset.
        DataError: The model has none of the labels of a dataset.
    """
    selected = []
    for data_condition, dataset in datasets.items():
        if stage.tasks != "all" and (stage.tasks == "raw-text") != TASKS[data_condition.task].raw_text:
            continue
        label_ids = {label: number for number, label in enumerate(labels.get(data_condition.task, ()))}
        # Labels that the model does not have (it may continue another run) are ignored in the loss, as padding is.
        numbers = np.array([label_ids.get(label, -1) for label in dataset.meta["labels"]], dtype=np.int64)
        if len(numbers) and (numbers < 0).all():
            found, known = (", ".join(list(names)[:8]) for names in (dataset.meta["labels"], label_ids))
            what = f"the model has none of its labels ({found}), so nothing can be learnt from it. It has {known}."
            corpora = ", ".join(corpus["corpus"] for corpus in dataset.meta["corpora"])
            raise DataError(corpora, None, f"{data_condition}: {what} Take data with these labels, or train a new run.")
        for condition in method.trained_by(data_condition):
            name = str(condition) if condition == data_condition else f"{condition}@{data_condition.source}"
            selected.append(TrainDataset(name, condition, dataset, numbers))
    if not selected:
        kind, hint = {
            "raw-text": (
                "raw text",
                ", such as mlm/tr. That needs a masked language model as backbone, not an encoder-decoder",
            ),
            "labelled": ("labelled data", ""),
            "all": ("data", ""),
        }[stage.tasks]
        raise TrainingError(f"stage {stage.name}: no {kind} to train on. Add datasets to data.train{hint}.")
    return tuple(selected)
