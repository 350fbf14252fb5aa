"""Caveats: what besides the compared methods may explain a score or a difference."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from polyloom.evaluate.matrix import MARK
from polyloom.report.sections.settings import differing_settings
from polyloom.report.sources import Source
from polyloom.report.tables import joined_with_and, listed

_UNEQUAL = 0.05  # relative difference of training tokens that is worth a caveat


class Caveat(NamedTuple):
    """Something that limits the conclusion."""

    title: str
    text: str


def caveats_of_run(source: Source) -> list[Caveat]:
    """List the caveats of the scores of one run."""
    return [*_seeds([source]), *_general([source])]


def caveats_of_pair(first: Source, other: Source) -> list[Caveat]:
    """List the caveats of the comparison of two runs."""
    pair = [first, other]
    return [*_seeds(pair), *_data(first, other), *_budgets(pair), *_zero_shot_for_one(first, other), *_general(pair)]


def _seeds(sources: Sequence[Source]) -> Iterator[Caveat]:
    if len(sources) == 2 and set(differing_settings(sources)) == {"train.seed"}:
        yield Caveat(
            "Same settings", "the runs differ only in their seed, so a difference is due to chance in training."
        )
        return
    seeds = joined_with_and([f"{source.recipe.train.seed} for {source.name}" for source in sources])
    yield Caveat(
        "One seed",
        f"each run was trained once (seed {seeds}). Intervals and p-values cover the choice of test sentences, not the "
        "variation between seeds. Repeat with other seeds before you draw a conclusion.",
    )


def _data(first: Source, other: Source) -> Iterator[Caveat]:
    """Compare the corpora that the runs were trained on."""
    data = [source.recipe.data.train for source in (first, other)]
    hashes = [source.history.begin.corpora if source.history.begin else {} for source in (first, other)]
    parts = []
    for source, own, theirs in ((first, data[0], data[1]), (other, data[1], data[0])):
        only = [name for name in own if name not in theirs]
        parts += [f"only {source.name} was trained on {listed(only, 8)}"] if only else []
    changed = [name for name in data[0] if name in data[1] and data[0][name] != data[1][name]]
    parts += [f"they were trained on different corpora for {listed(changed, 8)}"] if changed else []
    rewritten = [name for name in hashes[0] if name in hashes[1] and hashes[0][name] != hashes[1][name]]
    parts += [f"the contents of {listed(rewritten, 4)} changed between the runs"] if rewritten else []
    if parts:
        yield Caveat("Unequal training data", "; ".join(parts) + ".")


def _budgets(sources: Sequence[Source]) -> Iterator[Caveat]:
    """Compare steps, tokens and backbones."""
    budgets = [_budget(source) for source in sources]
    if _differ(*budgets):
        spent = [
            f"{source.name} took {steps:,} steps and {tokens:,} tokens"
            for source, (steps, tokens) in zip(sources, budgets, strict=True)
        ]
        yield Caveat("Unequal training budgets", f"{joined_with_and(spent)}.")
    if sources[0].recipe.backbone != sources[1].recipe.backbone:
        yield Caveat("Different backbones", "the runs extend different models, or one model with different settings.")


def _zero_shot_for_one(first: Source, other: Source) -> Iterator[Caveat]:
    for source, against in ((first, other), (other, first)):
        if source.matrix and against.matrix:
            results = against.matrix.results
            trained = [c for c, result in source.matrix.results.items() if not result.zero_shot and c in results]
            only = [c for c in trained if results[c].zero_shot]
            if only:
                text = (
                    f"{source.name} was trained on the task and language of {listed(only, 8)}, {against.name} was not."
                )
                yield Caveat("Zero-shot for one run only", text)


def _budget(source: Source) -> tuple[int, int]:
    history = source.history
    steps = history.steps[-1].total if history.steps else 0
    return steps, history.done.tokens if history.done else sum(step.tokens for step in history.steps)


def _differ(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] != b[0] or abs(a[1] - b[1]) > _UNEQUAL * max(a[1], b[1])


def _general(sources: Sequence[Source]) -> Iterator[Caveat]:
    for source in sources:
        if not source.history.done and source.history.steps:
            steps = source.history.steps[-1].total
            yield Caveat("Unfinished", f"{source.name} is still in training or was stopped, after {steps:,} steps.")
    if sources[0].split != "test":
        yield Caveat("Validation data", "the checkpoints were chosen on these data, so scores are optimistic.")
    scored = [
        (c, result.zero_shot) for source in sources if source.matrix for c, result in source.matrix.results.items()
    ]
    zero_shot = list(dict.fromkeys(c for c, is_zero_shot in scored if is_zero_shot))
    if zero_shot:
        yield Caveat(
            "Zero-shot",
            f"{len(zero_shot)} of {len(dict(scored))} scored conditions are zero-shot (marked {MARK}): no labelled "
            f"example of the task in that language was in the training data ({listed(zero_shot, 8)}).",
        )
