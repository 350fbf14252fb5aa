"""What a model that has learnt nothing would score: the most frequent label of the test data, everywhere."""

import math
from collections import Counter
from collections.abc import Sequence

from polyloom.data.catalog import Corpus
from polyloom.data.records import Pair, Tagged
from polyloom.tasks import TASKS


def majority(task: str, corpora: Sequence[Corpus]) -> float:
    """The score of the best constant answer; nan where there is no such thing (dep, mlm).

    For entities that answer is that there are none, whose F1 is 0.
    """
    if task == "ner":
        return 0.0
    labels: Counter[str] = Counter()
    for record in (record for corpus in corpora for record in corpus.records(TASKS[task].kind)):
        labels.update(record.tags if isinstance(record, Tagged) else [record.label] if isinstance(record, Pair) else [])
    return 100 * labels.most_common(1)[0][1] / labels.total() if labels else math.nan
