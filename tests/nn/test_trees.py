"""The parser's pieces: the best tree is the best of all trees with one root, and padding does nothing to scores."""

import inspect
import itertools
import sys

import numpy as np
import pytest
import torch

from polyloom.errors import PolyloomError
from polyloom.nn import spanning_tree
from polyloom.nn.biaffine import Biaffine
from polyloom.nn.spanning_tree import maximum_spanning_tree
from tests.metrics.peers import ask, needs_peers


def is_tree(heads) -> bool:
    """Whether all words lead to the root, through one of them."""
    for start in range(1, len(heads) + 1):
        word, seen = start, set()
        while word and word not in seen:
            seen.add(word)
            word = int(heads[word - 1])
        if word:
            return False
    return list(heads).count(0) == 1


ALL_TREES = {
    n: np.array([heads for heads in itertools.product(range(n + 1), repeat=n) if is_tree(heads)]) for n in range(1, 6)
}


def total(scores, heads):
    return scores[np.arange(1, len(scores)), heads].sum(-1)


def random_scores(rng: np.random.Generator, n: int, *, kind: str):
    shape = (n + 1, n + 1)
    if kind == "ties":
        return rng.integers(-1, 2, shape).astype(float)
    if kind == "roots":  # everyone would rather be the root
        return rng.integers(0, 9, shape) + 100.0 * np.eye(1, n + 1)
    if kind == "cycles":  # pairs of words that cling to each other, inside larger groups that do
        return rng.integers(0, 3, shape) - 4.0 * np.abs(np.subtract.outer(np.arange(n + 1), np.arange(n + 1)))
    if kind == "forbidden":
        return np.where(rng.random(shape) < 0.3, -np.inf, rng.integers(-9, 9, shape))
    if kind == "fine":  # a large constant on top would swallow what distinguishes them
        return 1.0 + rng.integers(0, 1000, shape) * 2.0**-50
    return rng.integers(-1000, 1000, shape).astype(float)


KINDS = ["plain", "ties", "roots", "cycles", "forbidden", "fine"]


def test_there_are_as_many_trees_as_cayley_says():
    assert [len(trees) for trees in ALL_TREES.values()] == [n ** (n - 1) for n in ALL_TREES]


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_tree_is_better(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    for trial in range(3000):
        n = trial % 5 + 1
        scores = random_scores(rng, n, kind=kind)
        heads = maximum_spanning_tree(scores)
        assert is_tree(heads)
        forbidden = np.isinf(scores)
        values = total(np.where(forbidden, 0.0, scores), ALL_TREES[n])
        counts = total(forbidden, ALL_TREES[n])
        best = values[counts == counts.min()].max()  # all sums here are exact
        assert (total(forbidden, heads), total(np.where(forbidden, 0.0, scores), heads)) == (counts.min(), best)


def test_every_answer_is_a_tree_with_one_root_however_extreme_the_scores():
    rng = np.random.default_rng(7)
    extreme = np.array([0.0, -0.0, 1.0, -1e308, 1.7e308, 5e-324, -np.inf, 1e-300, 1e16])
    for trial in range(10_000):
        n = int(rng.integers(1, 13))
        scores = rng.choice(extreme, (n + 1, n + 1)) if trial % 2 else rng.standard_cauchy((n + 1, n + 1)) ** 9
        heads = maximum_spanning_tree(scores)
        assert heads.shape == (n,)
        assert is_tree(heads)


def test_the_answer_does_not_depend_on_what_is_not_looked_at_or_on_the_unit():
    rng = np.random.default_rng(8)
    for _ in range(200):
        scores = rng.normal(size=(9, 9))
        heads = maximum_spanning_tree(scores)
        other = scores.copy()
        other[0] = np.nan
        np.fill_diagonal(other, np.inf)
        np.testing.assert_array_equal(maximum_spanning_tree(other), heads)
        np.testing.assert_array_equal(maximum_spanning_tree(scores * 2.0**900), heads)
        np.testing.assert_array_equal(maximum_spanning_tree(scores + rng.integers(-4, 4, (9, 1)) / 1.0), heads)


def test_renaming_words_renames_heads():
    rng = np.random.default_rng(9)
    for _ in range(50):
        scores = rng.normal(size=(31, 31))
        order = np.concatenate([[0], 1 + rng.permutation(30)])
        heads = np.concatenate([[0], maximum_spanning_tree(scores)])
        renamed = np.concatenate([[0], maximum_spanning_tree(scores[np.ix_(order, order)])])
        np.testing.assert_array_equal(order[renamed], heads[order])


def test_sentences_of_no_word_and_of_one():
    assert maximum_spanning_tree(np.zeros((1, 1))).tolist() == []
    assert maximum_spanning_tree(np.full((2, 2), -np.inf)).tolist() == [0]


def test_scores_are_left_as_they_were():
    scores = np.random.default_rng(10).normal(size=(20, 20))
    before = scores.copy()
    maximum_spanning_tree(scores)
    np.testing.assert_array_equal(scores, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_cannot_be_compared_are_refused(bad):
    scores = np.zeros((4, 4))
    scores[2, 3] = bad
    with pytest.raises(PolyloomError, match="some scores are nan or"):
        maximum_spanning_tree(scores)


def test_scores_of_another_shape_are_refused():
    for shape in [(3, 4), (0, 0), (3,)]:
        with pytest.raises(PolyloomError, match=r"expected \[n \+ 1, n \+ 1\]"):
            maximum_spanning_tree(np.zeros(shape))


class Counted(np.ndarray):
    """A matrix that counts the elements that are read from it."""

    elements = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        Counted.elements += np.size(found)
        return found


@pytest.mark.parametrize("n", [100, 400])
def test_cycles_inside_cycles_need_neither_cubic_work_nor_recursion(monkeypatch, n):
    nested = -np.maximum.outer(np.arange(n + 1), np.arange(n + 1)).astype(float)
    nested[:, 0] = -10.0 * n  # 1 and 2 form a cycle, that and 3 another, and so on
    lexicographic, limit = spanning_tree._lexicographic, sys.getrecursionlimit()
    monkeypatch.setattr(spanning_tree, "_lexicographic", lambda scores: lexicographic(scores).view(Counted))
    monkeypatch.setattr(Counted, "elements", 0)
    sys.setrecursionlimit(len(inspect.stack()) + 50)
    try:
        heads = maximum_spanning_tree(nested)
    finally:
        sys.setrecursionlimit(limit)
    assert n * n < Counted.elements < 12 * n * n
    assert is_tree(heads)
    assert total(nested, heads) == -10 * n - sum(range(2, n + 1))


@pytest.mark.parity
@needs_peers
def test_long_sentences_score_as_with_ufals_solver(tmp_path):
    rng = np.random.default_rng(11)
    cases = [rng.normal(size=(n + 1, n + 1)) for n in [*range(2, 60), 100]]
    cases += [rng.integers(0, 4, (n + 1, n + 1)).astype(float) for n in range(2, 60)]
    single = 0
    for scores, theirs in zip(cases, ask(tmp_path, "matrices", [scores.tolist() for scores in cases]), strict=True):
        heads = maximum_spanning_tree(scores)
        assert is_tree(heads)
        assert total(scores, heads) == pytest.approx(theirs["single"], rel=1e-12)
        if theirs["heads"].count(0) == 1:
            single += 1
            assert total(scores, heads) == pytest.approx(theirs["total"], rel=1e-12)
    assert 10 < single < len(cases)


# -- scores of arcs and relations -------------------------------------------------------------------------------------

LENGTHS, D, R = [7, 1, 4], 12, 5


def parser() -> Biaffine:
    torch.manual_seed(0)
    made = Biaffine(D, R, arc_size=8, label_size=6, dropout=0.0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def batch():
    torch.manual_seed(1)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    heads = torch.tensor([[2, 0, 2, 3, 3, 5, 2], [0] + 6 * [-1], [3, 1, 0, 3] + 3 * [99]])
    return torch.randn(*mask.shape, D, requires_grad=True), mask, heads, torch.randint(R, mask.shape)


def test_a_batch_scores_as_each_sentence_alone():
    head, (words, mask, heads, relations) = parser(), batch()
    arcs, labels = head(words, mask), head.relations(words, mask, heads_XW=heads)
    loss, count = head.loss(words, mask, heads_XW=heads, relations_XW=relations)
    alone = []
    for row, length in enumerate(LENGTHS):
        one = words[row : row + 1, :length], mask[row : row + 1, :length]
        gold = {"heads_XW": heads[row : row + 1, :length], "relations_XW": relations[row : row + 1, :length]}
        torch.testing.assert_close(arcs[row, :length, : length + 1], head(*one)[0], rtol=0, atol=1e-6)
        assert arcs[row, :length, length + 1 :].eq(-torch.inf).all()
        torch.testing.assert_close(
            labels[row, :length], head.relations(*one, heads_XW=gold["heads_XW"])[0], rtol=0, atol=1e-6
        )
        alone.append(head.loss(*one, **gold))
    torch.testing.assert_close(loss, sum(part for part, _ in alone), rtol=1e-6, atol=0)
    assert count == sum(LENGTHS) == sum(number for _, number in alone)


@pytest.mark.parametrize("padding", [0.0, 1e6, torch.nan])
def test_padding_has_no_effect_and_no_gradient(padding):
    head, (words, mask, heads, relations) = parser(), batch()
    loss, _ = head.loss(words, mask, heads_XW=heads, relations_XW=relations)
    expected = torch.autograd.grad(loss, [words, *head.parameters()])
    padded = words.detach().masked_fill(~mask[..., None], padding).requires_grad_()
    loss_padded, _ = head.loss(padded, mask, heads_XW=heads, relations_XW=relations.masked_fill(~mask, R + 3))
    gradients = torch.autograd.grad(loss_padded, [padded, *head.parameters()])
    assert torch.equal(loss, loss_padded)
    assert all(map(torch.equal, gradients, expected))
    assert gradients[0][~mask].eq(0).all()
    assert gradients[0][mask].abs().sum(-1).gt(0).all()


def test_scores_are_those_of_the_papers_formulas():
    head, (words, mask, heads, _) = parser(), batch()
    arcs, labels = head(words, mask), head.relations(words, mask, heads_XW=heads)
    one = torch.ones(1)
    for row, length in enumerate(LENGTHS):
        vectors = [head.root, *words[row, :length]]
        for i in range(length):
            for j in range(length + 1):
                score = (
                    torch.cat([head.arc_dependent(vectors[i + 1]), one]) @ head.arc_weight @ head.arc_head(vectors[j])
                )
                expected = torch.tensor(-torch.inf) if i + 1 == j else score
                torch.testing.assert_close(arcs[row, i, j], expected, rtol=1e-5, atol=1e-5)
            dependent = torch.cat([head.label_dependent(vectors[i + 1]), one])
            governor = torch.cat([head.label_head(vectors[int(heads[row, i])]), one])
            torch.testing.assert_close(labels[row, i], head.label_weight @ governor @ dependent, rtol=1e-5, atol=1e-5)


def test_a_fresh_head_prefers_nothing_and_learns_with_all_its_parameters_from_the_second_step():
    torch.manual_seed(0)
    head, (words, mask, heads, relations) = Biaffine(D, R, arc_size=8, label_size=6, dropout=0.0), batch()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(2):
        loss, _ = head.loss(words.detach(), mask, heads_XW=heads, relations_XW=relations)
        if step == 0:  # a word has as many heads as its sentence has words: all but itself, and the root
            uniform = sum(length * (np.log(length) + np.log(R)) for length in LENGTHS)
            assert loss.item() == pytest.approx(uniform, rel=1e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())


def test_parser_learns_trees_it_is_shown():
    torch.manual_seed(0)
    head, (words, mask, heads, relations) = Biaffine(D, R, arc_size=16, label_size=8, dropout=0.1), batch()
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(150):
        loss, count = head.loss(words.detach(), mask, heads_XW=heads, relations_XW=relations)
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    head.eval()
    with torch.no_grad():
        arcs = head(words, mask)
    for row, length in enumerate(LENGTHS):
        scores = np.pad(arcs[row, :length, : length + 1].numpy(), ((1, 0), (0, 0)))
        assert maximum_spanning_tree(scores).tolist() == heads[row, :length].tolist()
    best = head.relations(words, mask, heads_XW=heads).argmax(-1)
    assert torch.equal(best[mask], relations[mask])


def test_relations_that_the_parser_does_not_have_are_left_out_of_the_loss():
    """A run that is continued can meet new relations; their words still teach heads."""
    head, (words, mask, heads, relations) = parser(), batch()
    unknown = relations.masked_fill(mask, -1)
    loss, count = head.loss(words, mask, heads_XW=heads, relations_XW=unknown)
    scores = head(words, mask)[mask].log_softmax(-1)
    torch.testing.assert_close(loss, -scores.gather(1, heads[mask][:, None]).sum())
    assert count == mask.sum()
