"""Encode corpora once and keep them as datasets; the name of a dataset is a hash of everything that it depends on."""

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.conditions import Condition
from polyloom.data.catalog import Corpus
from polyloom.data.dataset_writer import write_packed
from polyloom.data.encoded import FORMAT, EncodedDataset, open_dataset
from polyloom.data.packing import Packed, select
from polyloom.data.readers.bitext import Filter, PairFilter, pair_key
from polyloom.data.readers.formats import reader_of
from polyloom.data.repeats import KEY_TYPE, Keys, Repeats
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import DataError, PolyloomWarning, TrainingError
from polyloom.io.atomic import remove_partial, scratch_dir
from polyloom.io.cache import cache_folder
from polyloom.io.files import File
from polyloom.methods import Method
from polyloom.methods.base import Stage
from polyloom.registry import code_hashes
from polyloom.tasks import TASKS
from polyloom.training.encoder import Encoded, Encoder, batched, encode_in_processes
from polyloom.training.plan import TrainDataset

LINES_PER_RUN = 32  # of raw text that stay together when a dataset is shuffled, so that packed lines are neighbours
CHECKED_BYTES = 1 << 20  # of a dataset that is checked when it is opened; of others, each block when it is read
PLAIN_RULES = Filter()


def prepare_dataset(
    condition: Condition,
    corpora: Sequence[Corpus],
    *,
    tokenizer: Tokenizer,
    rules: Filter = PLAIN_RULES,
    folder: Path | None = None,
    processes: int = 1,
) -> EncodedDataset:
    """Encode the corpora of a condition, or open the dataset if they were encoded before.

    Args:
        condition: The condition that they are examples of.
        corpora: The corpora, which are concatenated.
        tokenizer: The tokenizer.
        rules: Rules that filter bitext; ignored for other corpora.
        folder: Directory of the dataset. Default: ``datasets`` in the cache.
        processes: Number of processes that encode. The result is the same. Tasks with labels are encoded by one.

    Returns:
        The dataset. Its ``meta["labels"]`` has the labels in order of appearance, its ``meta["dropped"]`` the number of
        filtered pairs by rule.
    """
    # The name of the dataset is a hash of all that its content depends on, the code of tasks and readers from outside
    # the package included. So a dataset in the cache is the right one, or none.
    task = TASKS[condition.task]
    corpora_meta = [{"corpus": c.name, "sha256": c.sha256, "start": c.start, "stop": c.stop} for c in corpora]
    description = describe_dataset(task.name, tokenizer.fingerprint, corpora_meta)
    if task.kind == "bitext":
        description |= {"direction": [condition.source, condition.target], "rules": asdict(rules)}
    readers = [reader_of(c.source, task.kind) for c in corpora if isinstance(c.source, Path | File)]
    code = code_hashes([task, *readers])
    if code:
        description["code"] = code
    path = (folder or cache_folder("datasets")) / dataset_name(description)
    cached = _open_cached(path)
    if cached is not None:
        return cached

    path.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(path.parent)
    pair_filter, encoder = PairFilter(rules), Encoder(task, tokenizer)
    meta: dict[str, Any] = dict(description)

    def packs() -> Iterator[Packed]:
        records = batched(chain.from_iterable(task.records(corpus, condition) for corpus in corpora))
        # Labels are numbered in order of appearance, which takes one process. Code from outside the package may not be
        # there in another one.
        if processes == 1 or task.needs_labels or code:
            encoded: Iterator[Encoded] = map(encoder, records)
        else:
            encoded = encode_in_processes(encoder, records, processes)
        if task.kind == "bitext":
            yield from _filter_pairs(encoded, pair_filter, path)
        else:
            yield from (batch.packed for batch in encoded)
        meta.update(labels=list(encoder.index), dropped=dict(pair_filter.dropped))  # known after the last record

    run = LINES_PER_RUN if task.raw_text else 1
    dataset = write_packed(path, packs(), columns=encoder.columns, meta=meta, run=run)
    if not len(dataset):
        shutil.rmtree(path)
        raise DataError(", ".join(c.name for c in corpora), None, f"no examples for {condition}.")
    return dataset


def _filter_pairs(encoded: Iterable[Encoded], pair_filter: PairFilter, path: Path) -> Iterator[Packed]:
    """Yield the pairs that a filter keeps, each once; temporary files are written beside a path."""

    def filter_by_length() -> Iterator[tuple[Packed, Keys]]:
        for records, packed, sides in encoded:
            assert sides is not None  # all bitext has them
            rows = np.flatnonzero([pair_filter.keeps(*lengths) for lengths in zip(*sides, strict=True)])
            keys = b"".join(pair_key(records[row]) for row in rows.tolist())
            yield select(packed, rows), np.frombuffer(keys, KEY_TYPE)

    if not pair_filter.rules.deduplicate:
        yield from (packed for packed, _ in filter_by_length())
        return
    # The filter by length comes first: what it leaves out need not be written to the disk.
    with scratch_dir(path) as temporary:
        repeats = Repeats(temporary)
        yield from repeats.without(filter_by_length())
    if repeats.dropped:
        pair_filter.dropped["duplicate"] = repeats.dropped


def describe_dataset(task: str, tokenizer: str, corpora: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the encoding of corpora depends on: the metadata of a dataset, and the source of its name."""
    return {"format": FORMAT, "task": task, "tokenizer": tokenizer, "corpora": corpora}


def dataset_name(description: Mapping[str, Any]) -> str:
    """Return the name of the dataset that a description belongs to."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    return f"{description['task']}-{digest[:24]}"


def _open_cached(path: Path) -> EncodedDataset | None:
    """Open a dataset that was encoded before; a damaged one is reported and removed, to be encoded again."""
    if not path.exists():
        return None
    try:
        dataset = open_dataset(path)
        if dataset.num_bytes <= CHECKED_BYTES:
            dataset.check()
        return dataset
    except DataError as error:
        damage = f"{path}: this cached dataset is damaged ({error.__cause__}). It is encoded again."
        warnings.warn(damage, PolyloomWarning, stacklevel=2)
        shutil.rmtree(path)
        return None


def label_sets(
    datasets: Mapping[Condition, EncodedDataset], fixed: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Collect the labels of every task from all its datasets, in alphabetical order.

    Args:
        datasets: The training data.
        fixed: Label sets of the recipe, by task, in their order; other labels in the data are an error.
    """
    fixed = fixed or {}
    by_task: dict[str, set[str]] = {}
    for condition, dataset in datasets.items():
        labels, known = dataset.meta["labels"], fixed.get(condition.task)
        if known and (unknown := [label for label in labels if label not in known]):
            corpora = ", ".join(corpus["corpus"] for corpus in dataset.meta["corpora"])
            raise DataError(corpora, None, f"tasks.{condition.task}.labels does not list {', '.join(unknown)}.")
        by_task.setdefault(condition.task, set()).update(labels)
    return {task: fixed.get(task) or tuple(sorted(labels)) for task, labels in by_task.items()}


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
            in_data, in_model = (", ".join(list(names)[:8]) for names in (dataset.meta["labels"], label_ids))
            what = f"the model has none of its labels ({in_data}), so nothing can be learnt from it. It has {in_model}."
            corpora = ", ".join(corpus["corpus"] for corpus in dataset.meta["corpora"])
            raise DataError(corpora, None, f"{data_condition}: {what} Take data with these labels, or train a new run.")
        # A method may train the weights of several conditions on one text (BAD-X: a pair's, on either language).
        for condition in method.trained_by(data_condition):
            name = str(condition) if condition == data_condition else f"{condition}@{data_condition.source}"
            selected.append(TrainDataset(name, condition, dataset, numbers))
    if not selected:
        kind, hint = {"raw-text": "raw text", "labelled": "labelled data", "all": "data"}[stage.tasks], ""
        if stage.tasks == "raw-text":
            hint = ", such as mlm/tr. That needs a masked language model as backbone, not an encoder-decoder"
        raise TrainingError(f"stage {stage.name}: no {kind} to train on. Add datasets to data.train{hint}.")
    return tuple(selected)
