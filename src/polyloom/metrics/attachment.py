"""Count attachment scores of dependency trees by the rules of the CoNLL 2018 shared task.

All words count, punctuation too. UAS: the head is right. LAS: the universal part of the relation is right,
too (``acl`` of ``acl:relcl``). Gold and predicted words are the same here, so precision, recall and F1 are equal.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from polyloom.metrics.score import Array, zip_sentences


class Attached(Protocol):
    """A sentence with a head and a relation per word, such as a `Tree`."""

    @property
    def heads(self) -> Sequence[int]:
        """Position of each word's head, counted from 1; 0 is the root."""

    @property
    def relations(self) -> Sequence[str]:
        """Relation of each word to its head."""


def attachment_statistics(gold: Sequence[Attached], predicted: Sequence[Attached]) -> Array:
    """Count words with the right head, with the right head and relation, and all words: ``[N, 3]``."""
    counts = []
    arcs = [[_arcs(tree) for tree in trees] for trees in (gold, predicted)]
    for gold_arcs, predicted_arcs in zip_sentences(*arcs, what="words"):
        uas = sum(a[0] == b[0] for a, b in zip(gold_arcs, predicted_arcs, strict=True))
        las = sum(a == b for a, b in zip(gold_arcs, predicted_arcs, strict=True))
        counts.append((uas, las, len(gold_arcs)))
    return np.array(counts, np.int64).reshape(-1, 3)  # also of no sentences


def wrong_words(gold: Attached, predicted: Attached) -> list[int]:
    """List the words, counted from 0, whose head or universal relation is wrong."""
    pairs = zip(_arcs(gold), _arcs(predicted), strict=True)
    return [i for i, (gold_arc, predicted_arc) in enumerate(pairs) if gold_arc != predicted_arc]


def _arcs(tree: Attached) -> list[tuple[int, str]]:
    # `acl:relcl` counts as `acl`: subtypes are of single languages, and conll18_ud_eval removes them.
    universal = (relation.partition(":")[0] for relation in tree.relations)
    return [(int(head), relation) for head, relation in zip(tree.heads, universal, strict=True)]
