"""The papers' headline claims (claims.yaml), each with a verdict that is computed from the rows that test it.

A claim says that one row is better than another, or that they are on par. It *agrees* if the 95 % interval of the
difference has the claimed sign, *disagrees* if the interval excludes the claim, and is *open* otherwise: then three
seeds do not decide. On par means that the interval lies within two points.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.comparison import Side, require_fair
from experiments.measures import both_ways, loss, recovered, zero_shot
from experiments.read import MissingError, Values
from experiments.studies.translation import EVERY
from polyloom.cli.render.tables import markdown
from polyloom.io.yaml import parse_yaml

PAR = 2.0
HEADER = ("claim of", "what the paper says", "laboratory", "here", "difference", "verdict", "why", "rows (commit)")
Claim = Mapping[str, Any]
MAP_MEASURES: Mapping[str, Callable[[str], Values]] = {
    "BLEU": both_ways,
    "recovered": recovered,
    "loss at half": lambda name: loss(name, at=int(name.rpartition("-s")[2]) // EVERY // 2 - 1),
}


def read_claims() -> Sequence[Claim]:
    """Read the claims."""
    path = Path(__file__).with_name("claims.yaml")
    claims: list[Claim] = parse_yaml(path.read_text(encoding="utf-8"), source=str(path))
    return claims


def claims_table(claims: Sequence[Claim]) -> str:
    """Format the claims whose comparison is complete, for each laboratory; others are counted below the table."""
    lines, missing = [], 0
    tests = [(claim, study) for claim in claims for study in claim["studies"]]
    for claim, study in tests:
        try:
            lines.append(line(claim, study))
        except MissingError:
            missing += 1
    note = f"\n{missing} of {len(tests)} lines are not measured yet.\n" if missing else ""
    return markdown(HEADER, lines) + note if lines else note


def line(claim: Claim, study: str) -> list[str]:
    """Return the line of a claim in a laboratory.

    Raises:
        MissingError: A row has no results, or of fewer than three seeds.
        UnfairError: The rows cannot be compared.
    """
    one, other = (_values(claim, study, claim[side]) for side in ("one", "other"))
    labels = [claim[side]["label"] for side in ("one", "other")]
    require_fair([Side(label, {"": values}) for label, values in zip(labels, (one, other), strict=True)], shown=False)
    runs = [run for values in (one, other) for row in values.rows for run in row.runs]
    sources = dict.fromkeys(f"{run['study']}/{run['row']}" for run in runs)
    commits = dict.fromkeys(run["commit"] for run in runs)
    difference = one.minus(other)
    low, high = difference.interval
    verdict = judge((low, high), claim.get("kind", "higher"))
    undecided = f"the seeds leave ± {(high - low) / 2:.1f}" if verdict == "open" else ""
    why = claim.get("why", "")  # in all laboratories, or by laboratory
    why = why.get(study, "") if isinstance(why, Mapping) else why
    return [
        f"{claim['paper']}, {claim['place']}",
        claim["claim"],
        study,
        f"{labels[0]} {one.shown()}, {labels[1]} {other.shown()}",
        difference.shown(),
        verdict,
        "; ".join(filter(None, (undecided, why))),
        f"{', '.join(sources)} ({', '.join(commits)})",
    ]


def judge(interval: tuple[float, float], kind: str) -> str:
    """Judge a claim (``higher`` or ``on par``) by the interval of the difference."""
    low, high = interval
    if kind == "on par":
        holds, fails = low >= -PAR and high <= PAR, low > PAR or high < -PAR
    else:
        holds, fails = low > 0, high < 0
    return "agrees" if holds else "disagrees" if fails else "open"


def _values(claim: Claim, study: str, side: Mapping[str, str]) -> Values:
    """Measure one side of a claim."""
    if study == "map":
        return MAP_MEASURES[claim.get("measure", "BLEU")](side["row"])
    group = side.get("group", "all")
    values = zero_shot(study, side["row"], claim["task"], group)
    if "minus" not in side:
        return values
    base = zero_shot(study, side["minus"], claim["task"], group)
    return Values([*values.rows, *base.rows], values.minus(base).by_seed)
