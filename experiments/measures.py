"""What rows are compared by: zero-shot means, BLEU, validation loss, bits per byte."""

from collections.abc import Iterable, Mapping
from math import log
from statistics import fmean
from typing import Any

from experiments.materials import family
from experiments.read import Values, average, over, row
from experiments.studies.labs import LABS

COMMON = family(1)[0]
GROUPS = ("seen", "unseen", "all")


def zero_shot(lab: str, name: str, task: str, group: str = "all") -> Values:
    """Average a task of a row of a laboratory over languages without labels: seen by the backbone, or not, or all."""
    seen = LABS[lab].seen()
    languages = [x for x in LABS[lab].unlabelled(name, task) if group in ("all", "seen" if x in seen else "unseen")]
    return average(row(lab, name), [f"{task}/{x}" for x in languages])


def added(name: str, what: str, *, after: bool) -> Values:
    """Average the held-out loss or the tags of added languages over languages, before or after training."""
    found = row("adding", name)

    def value(result: Mapping[str, Any]) -> float:
        if what == "loss":
            return -float(result["held_out"][after])
        (score,) = result["after" if after else "before"].values()
        return float(score)

    return Values([found], [fmean(map(value, run["added"].values())) for run in found.runs])


def bits(name: str, languages: Iterable[str], *, study: str = "lm") -> Values:
    """Average bits per byte of a row over languages."""
    return average(row(study, name), [f"lm/{language}" for language in languages])


def added_bits(name: str, language: str, start: str, *, after: bool) -> Values:
    """Return the bits per byte of a language that was added to a row from a start, before or after its training."""
    found = row("lm", name)
    key = "after" if after else "before"
    return Values([found], [run["added"][f"{language}/{start}"][key][f"lm/{language}"] for run in found.runs])


def bleu(name: str, *, into: bool) -> Values:
    """Average BLEU of a row of the map over all directions into or from the common language."""
    found = row("map", name)
    return average(found, [c for c in found.runs[0]["scores"] if c.split("/")[2 if into else 1] == COMMON])


def both_ways(name: str) -> Values:
    """Average BLEU of a row of the map over both ways."""
    return over(bleu(name, into=True), bleu(name, into=False))


def recovered(name: str) -> Values:
    """Return BLEU into the common language with the weights of a similar source, in percent of that with its own."""
    found = row("map", name)
    similar = [fmean(run["swapped"]["similar"].values()) for run in found.runs]
    pairs = zip(similar, bleu(name, into=True).by_seed, strict=True)
    return Values([found], [100 * swapped / own for swapped, own in pairs])


def loss(name: str, at: int = -1, *, study: str = "map") -> Values:
    """Average the validation loss of a row over directions, in nats."""
    found = row(study, name)
    return Values([found], [fmean(map(log, run["training"]["validation"][at].values())) for run in found.runs])
