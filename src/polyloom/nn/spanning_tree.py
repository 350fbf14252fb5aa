"""Find the best dependency tree with exactly one root: Chu-Liu-Edmonds, exact, without recursion, in O(n²)."""

import numpy as np
from numpy.typing import NDArray

from polyloom.errors import PolyloomError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Weights = NDArray[np.complex128]

_ABSENT = complex(-np.inf, 0)


def maximum_spanning_tree(scores: Floats) -> Ints:
    """Find the heads that maximise the sum of the arcs' scores among all trees with a single root.

    Args:
        scores: ``[n + 1, n + 1]``, of the arc to each dependent (row) from each head (column); word i is row and column
            i, column 0 the root. Row 0 and the diagonal are ignored. ``-inf`` forbids an arc: it is used only
            if no tree exists without it, and then as rarely as possible.

    Returns:
        The head of every word, ``[n]``, 0 for the one root.

    Raises:
        PolyloomError: The matrix is not square, or holds nan or +inf.
    """
    scores = np.array(scores, np.float64)
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or not len(scores):
        raise PolyloomError(f"maximum spanning tree: scores of shape {scores.shape}; expected [n + 1, n + 1].")
    scores[0] = 0
    np.fill_diagonal(scores, -np.inf)
    if not (scores < np.inf).all():
        raise PolyloomError("maximum spanning tree: some scores are nan or +inf. Has the model diverged?")
    best: Ints = scores.argmax(1)
    if _is_tree(best):  # the best head of every word: nothing can be better
        return best[1:]
    return _expand(*_contract(_lexicographic(scores)), num_words=len(scores) - 1)


def _is_tree(heads: Ints) -> bool:
    """Return whether the heads form a tree with exactly one root. ``heads[0]`` is ignored."""
    if np.count_nonzero(heads[1:] == 0) != 1:
        return False
    heads = heads.copy()
    heads[0] = 0
    for _ in range(len(heads).bit_length()):  # after k rounds each word has moved 2^k steps
        heads = heads[heads]
    return not heads.any()


def _lexicographic(scores: Floats) -> Weights:
    """Represent arcs as complex numbers (penalty, score), which are added and compared in this order.

    NumPy orders complex numbers by their real, then their imaginary part, and adds both separately: an ordered group,
    which is all that the algorithm needs. An arc from the root costs more than all forbidden arcs of a tree together,
    so the best tree has one root, then as few forbidden arcs as possible, then the highest score. No large constant is
    added to a score, so no digits are lost.
    """
    forbidden = np.isneginf(scores)
    scores = np.where(forbidden, 0.0, scores)
    _, exponent = np.frexp(np.abs(scores).max())
    weights = np.empty(scores.shape, np.complex128)
    weights.imag = np.ldexp(scores, -exponent)  # a power of two: exact, and no sum can overflow
    weights.real = -1.0 * forbidden
    weights.real[:, 0] -= len(scores)
    np.fill_diagonal(weights, _ABSENT)
    return weights


def _contract(weights: Weights) -> tuple[list[int], list[int]]:
    """Follow the best arcs from every node to the root; contract every cycle on the way.

    A node has a slot (row and column) of the matrix; a contracted cycle takes over the slot of its first member. A
    second matrix holds the arc between words, ``dependent · (n + 1) + head``, that each weight belongs to.

    Returns:
        By node, words (from 1; 0 is the root) before contracted cycles in order: the arc that enters it, and the cycle
        that it is part of, or -1.
    """
    size = len(weights)
    arcs = np.arange(size * size).reshape(size, size)
    node_in = list(range(size))  # by slot
    enters, parents = [-1] * size, [-1] * size  # by node
    on_path = [False] * size
    done = [True, *on_path[1:]]  # leads to the root already
    entry = np.zeros(size, np.int64)  # by slot: the slot of the best head
    for start in range(1, size):
        path = [] if on_path[start] else [start]
        while path:
            here = path[-1]
            on_path[here] = True
            entry[here] = head = int(weights[here].argmax())
            enters[node_in[here]] = int(arcs[here, head])
            if done[head]:
                break
            if not on_path[head]:
                path.append(head)
                continue
            cycle = path[path.index(head) :]
            del path[1 - len(cycle) :]  # the first member stays and now represents the cycle
            _merge(weights, arcs, cycle=np.array(cycle), entry=entry[cycle])
            for slot in cycle:
                parents[node_in[slot]] = len(enters)
            node_in[head] = len(enters)
            enters.append(-1)
            parents.append(-1)
        for slot in path:
            done[slot] = True
    return enters, parents


def _merge(weights: Weights, arcs: Ints, *, cycle: Ints, entry: Ints) -> None:
    """Merge a cycle into its first slot; an arc into a member has as weight its gain over the arc that it replaces."""
    slot, slots = cycle[0], np.arange(len(weights))
    gains = weights[cycle] - weights[cycle, entry][:, None]
    chosen = gains.argmax(0)
    weights[slot], arcs[slot] = gains[chosen, slots], arcs[cycle[chosen], slots]
    chosen = cycle[weights[:, cycle].argmax(1)]
    weights[:, slot], arcs[:, slot] = weights[slots, chosen], arcs[slots, chosen]
    weights[:, cycle[1:]] = weights[slot, slot] = _ABSENT


def _expand(enters: list[int], parents: list[int], *, num_words: int) -> Ints:
    """Expand the cycles, the outermost first: the arc into a cycle replaces the arc of the member that it enters."""
    for cycle in range(len(enters) - 1, num_words, -1):
        member = enters[cycle] // (num_words + 1)
        while parents[member] != cycle:
            member = parents[member]
        enters[member] = enters[cycle]
    return np.array(enters[1 : num_words + 1], np.int64) % (num_words + 1)
