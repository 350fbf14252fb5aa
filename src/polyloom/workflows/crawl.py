"""Steps of datatrove pipelines that encode a crawl: one dataset for each language, to train from with `data.prepared`.

datatrove's executors run pipelines on one machine, under Slurm or on Ray. `EncodeDocuments` stands at the end of a
pipeline that knows the languages of its documents; each task leaves what it encoded in a working folder.
`WriteDatasets` puts the shares of each language together, and `WriteCatalogue`, with one task, names the datasets. What
a task writes is a function of what it reads, so a task that was killed can run again.
"""

import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from datatrove.data import Document
from datatrove.io import DataFolderLike, get_datafolder
from datatrove.pipeline.base import PipelineStep

from polyloom.conditions import Condition
from polyloom.data.dataset_writer import Spool, write_packed
from polyloom.data.packing import Packed
from polyloom.data.records import Text
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import DataError
from polyloom.io.hashes import sha256_of
from polyloom.tasks import find_task
from polyloom.training.encoder import BATCH, Encoder
from polyloom.training.prepare import LINES_PER_RUN, dataset_name, describe_dataset
from polyloom.training.published import add_to_catalogue, upload

WAITING = 20 * BATCH  # documents in memory at most, of all languages
SHARES, WRITTEN = "shares", "written"  # folders with a note of each task


class EncodeDocuments(PipelineStep):  # type: ignore[misc]
    """Encode the documents of a task, and pass them on.

    Args:
        folder: Working folder, empty at first, on disk or in object storage.
        task: A task on raw text.
        tokenizer: Folder or name of the tokenizer.
        language: Where the metadata of a document has its language.
    """

    name, type = "Encode", "Polyloom"

    def __init__(self, folder: DataFolderLike, *, task: str, tokenizer: str, language: str = "language") -> None:
        super().__init__()
        self.folder, self.task, self.tokenizer, self.language = get_datafolder(folder), task, tokenizer, language

    def run(self, data: Iterator[Document] | None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Encode a share of the documents."""
        tokenizer = load_tokenizer(self.tokenizer)
        encoder = Encoder(find_task(self.task), tokenizer)
        with TemporaryDirectory() as temporary:
            spools: dict[str, Spool] = {}
            waiting: defaultdict[str, list[Text]] = defaultdict(list)

            def encode(language: str) -> None:
                """Encode the documents of a language that wait, and write them to its spool."""
                if language not in spools:
                    spools[language] = Spool(Path(temporary, str(len(spools))))
                spools[language].append(encoder(waiting.pop(language)).packed)

            count = 0
            for document in data or ():
                if document.text.strip():
                    language = document.metadata.get(self.language)
                    if not isinstance(language, str):
                        what = f"its metadata has no {self.language!r}."
                        raise DataError(f"document {document.id}", None, what)
                    language = Condition(self.task, language).source  # refuses what is no code
                    waiting[language].append(Text(document.text))
                    count += 1
                    if len(waiting[language]) == BATCH:
                        encode(language)
                    # Batches of rare languages fill slowly; all are encoded now and then, so that memory stays limited.
                    if count % WAITING == 0:
                        for name in list(waiting):
                            encode(name)
                    self.stat_update(language)
                yield document
            for name in list(waiting):
                encode(name)

            # The note is written after all files: without it, `WriteDatasets` takes the task for unfinished.
            hashes = {}
            for language, spool in spools.items():
                with spool.path.open("rb") as source, self.folder.open(_share(language, rank), "wb") as file:
                    shutil.copyfileobj(source, file)
                hashes[language] = sha256_of(spool.path)
        share = {"task": self.task, "tokenizer": tokenizer.fingerprint, "hashes": hashes}
        _note(self.folder, SHARES, rank, world_size, share)


class WriteDatasets(PipelineStep):  # type: ignore[misc]
    """Write the datasets of some languages; as many tasks as languages are of use.

    Args:
        folder: The working folder of `EncodeDocuments`.
        into: Address of the folder for datasets: ``file:///…``, ``s3://…``, ``gs://…`` or ``az://…``.
        corpus: Name of the crawl. A recipe calls the text of a language ``<corpus>:<language>``.
    """

    name, type = "Write datasets", "Polyloom"

    def __init__(self, folder: DataFolderLike, into: str, *, corpus: str) -> None:
        super().__init__()
        self.folder, self.into, self.corpus = get_datafolder(folder), into, corpus

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:  # noqa: ARG002 - reads no documents
        """Write the datasets of every `world_size`-th language."""
        shares = _notes(self.folder, SHARES)
        if len({(share["task"], share["tokenizer"]) for share in shares}) != 1:
            raise DataError(self.folder.path, None, "tasks differ in task or tokenizer. Begin with an empty folder.")
        languages = sorted({language for share in shares for language in share["hashes"]})
        names = {}
        for language in languages[rank::world_size]:
            names[str(Condition(shares[0]["task"], language))] = self._write(language, shares)
            self.stat_update("datasets")
        _note(self.folder, WRITTEN, rank, world_size, {"names": names})

    def _write(self, language: str, shares: list[dict[str, Any]]) -> str:
        """Write the dataset of a language and return its name."""
        task, hashes = find_task(shares[0]["task"]), [share["hashes"].get(language) for share in shares]
        # All shares in their order are the corpus, so their hashes identify it; a task without this language has none.
        corpus_hash = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
        corpora = [{"corpus": f"{self.corpus}:{language}", "sha256": corpus_hash}]
        meta = describe_dataset(task.name, shares[0]["tokenizer"], corpora)
        with TemporaryDirectory() as temporary:

            def packs() -> Iterator[Packed]:
                for rank, expected in enumerate(hashes):
                    if expected is None:
                        continue
                    # One share is on disk at a time.
                    name, local = _share(language, rank), Path(temporary, "share")
                    with self.folder.open(name, "rb") as file, local.open("wb") as copy:
                        shutil.copyfileobj(file, copy)
                    if sha256_of(local) != expected:
                        what = "damaged, or written by another run. Begin again with an empty folder."
                        raise DataError(name, None, what)
                    yield from Spool(local).read()

            path, columns = Path(temporary, dataset_name(meta)), {**task.columns, "length": "int"}
            about = meta | {"labels": [], "dropped": {}}
            upload(write_packed(path, packs(), columns=columns, meta=about, run=LINES_PER_RUN), self.into)
        return path.name


class WriteCatalogue(PipelineStep):  # type: ignore[misc]
    """Name the datasets in the catalogue, in one task.

    Args:
        folder: The working folder.
        into: Address of the folder for datasets, as `WriteDatasets` has it.
    """

    name, type = "Write catalogue", "Polyloom"

    def __init__(self, folder: DataFolderLike, into: str) -> None:
        super().__init__()
        self.folder, self.into = get_datafolder(folder), into

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:  # noqa: ARG002 - reads no documents
        """Collect the names from all tasks."""
        if world_size != 1:
            raise DataError(self.into, None, f"WriteCatalogue runs in one task, not in {world_size}.")
        names = [note["names"] for note in _notes(self.folder, WRITTEN)]
        add_to_catalogue(self.into, {condition: name for part in names for condition, name in part.items()})


def _share(language: str, rank: int) -> str:
    """Return the name of the file with what a task encoded in a language."""
    return f"encoded/{language}/{rank:05d}"


def _note(folder: Any, kind: str, rank: int, world_size: int, content: dict[str, Any]) -> None:
    """Note that a task is done, and what it did."""
    with folder.open(f"{kind}/{rank:05d}.json", "w") as file:
        json.dump({"tasks": world_size, **content}, file)


def _notes(folder: Any, kind: str) -> list[dict[str, Any]]:
    """Read the notes of all tasks, each of which must be done."""
    notes = []
    for name in sorted(folder.list_files(kind)):
        with folder.open(name, "r") as file:
            notes.append(json.load(file))
    if not notes or any(note["tasks"] != len(notes) for note in notes):
        done = f"{len(notes)} tasks are done, of {sorted({note['tasks'] for note in notes})}"
        raise DataError(f"{folder.path}/{kind}", None, f"{done}. Run the step before.")
    return notes
