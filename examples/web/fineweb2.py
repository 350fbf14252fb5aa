"""Turn a crawl into encoded datasets: deduplicated, one for each language, to train from with `data.prepared`.

    python examples/web/fineweb2.py --crawl crawl --work work --to file:///datasets --tokenizer my-model --task lm

The crawl is Parquet files with the columns `id`, `text` and `language`, as FineWeb2 has them. Where languages are not
known, datatrove's `LanguageFilter(backend="glotlid", label_only=True)` detects them. The pipelines consist of steps of
datatrove and of Polyloom, and datatrove runs them on one machine, on Ray (--ray) or under Slurm. If a task is killed,
run the same command again; the result is the same. Needs `pip install "polyloom[crawl]"`.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import ParquetReader
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer

from polyloom.workflows.crawl import EncodeDocuments, WriteCatalogue, WriteDatasets

# A character of a script without spaces, from Thai to Chinese, or a word.
WORD = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\w+")


class Words(WordTokenizer):  # type: ignore[misc]
    """Words of any language, by which documents are compared."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Return the whole text: MinHash needs no sentences."""
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return the range of the text."""
        return [(0, len(text))]


def pipelines(options: argparse.Namespace) -> list[tuple[str, Sequence[Any], int]]:
    """Return name, steps and number of tasks of the pipelines, which run one after another."""
    work, config = options.work, MinhashConfig(n_grams=options.n_grams, hash_config=HashConfig(hash_fc="sha1"))

    def read() -> ParquetReader:
        return ParquetReader(options.crawl)

    signatures = MinhashDedupSignature(f"{work}/signatures", config=config, language=Words())
    buckets = MinhashDedupBuckets(f"{work}/signatures", f"{work}/buckets", config=config)
    clusters = MinhashDedupCluster(f"{work}/buckets", f"{work}/removed", config=config)
    encode = EncodeDocuments(
        f"{work}/encoded", task=options.task, tokenizer=options.tokenizer, language=options.language
    )
    write = WriteDatasets(f"{work}/encoded", options.to, corpus=options.name)
    return [
        ("signatures", [read(), signatures], options.tasks),
        ("buckets", [buckets], config.num_buckets),
        ("clusters", [clusters], 1),
        # As many tasks as for signatures: each filters the share of the crawl that it read there.
        ("encode", [read(), MinhashDedupFilter(f"{work}/removed"), encode], options.tasks),
        ("write", [write], options.tasks),
        ("catalogue", [WriteCatalogue(f"{work}/encoded", options.to)], 1),
    ]


def main() -> None:
    """Run all pipelines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crawl", required=True, help="folder of the Parquet files, on disk or in object storage")
    parser.add_argument("--work", required=True, help="folder for intermediate files")
    parser.add_argument("--to", required=True, help="address of the folder for datasets, such as s3://bucket/datasets")
    parser.add_argument("--tokenizer", required=True, help="folder or name of the tokenizer")
    parser.add_argument("--task", required=True, help="a task on raw text: lm or mlm")
    parser.add_argument("--name", default="crawl", help="name of the crawl in recipes: crawl:swh (default: crawl)")
    parser.add_argument("--language", default="language", help="column of the language (default: language)")
    parser.add_argument("--n-grams", type=int, default=5, help="words of the n-grams that are compared (default: 5)")
    parser.add_argument("--tasks", type=int, default=8, help="shares of the crawl (default: 8)")
    parser.add_argument("--workers", type=int, default=2, help="tasks at a time (default: 2)")
    parser.add_argument("--ray", action="store_true", help="run on the Ray cluster that RAY_ADDRESS names")
    options = parser.parse_args()
    if options.ray:
        import ray  # noqa: PLC0415 - an extra

        ray.init()
    Executor = RayPipelineExecutor if options.ray else LocalPipelineExecutor
    for name, steps, tasks in pipelines(options):
        Executor(list(steps), tasks=tasks, workers=options.workers, logging_dir=f"{options.work}/logs/{name}").run()


if __name__ == "__main__":
    main()
