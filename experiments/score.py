"""Score trained runs: all test conditions, with their own weights and with donors' weights."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.jobs import Job
from experiments.storage import Settings
from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.probe.languages import language_vectors
from polyloom.probe.swap import DonatedCache, with_donor
from polyloom.tasks import TASKS
from polyloom.workflows.run import Run

Corpora = Mapping[str, Sequence[str]]


def score_labelling(run: Run, job: Job, test: Corpora, known: dict[str, Any]) -> Settings:
    """Score all conditions, with donors' weights too, and majority baselines; scores in ``known`` are kept."""
    matrix = known | {"run": known} if known else run.evaluate(test).to_dict()
    swaps: dict[str, dict[str, Any]] = known.get("swaps", {})
    baselines = {}
    for condition, donors in job.swaps.items():
        task = condition.partition("/")[0]
        records = (record for name in test[condition] for record in resolve(name).records(TASKS[task].kind))
        baselines[condition] = TASKS[task].majority(records)
        for donor in donors:
            if donor in swaps.get(condition, {}):
                continue
            scored = run.evaluate({f"{task}/{donor}": test[condition]}).to_dict()["results"]
            swaps.setdefault(condition, {})[donor] = scored[f"{task}/{donor}"]
    return {
        "results": matrix["results"],
        "refused": matrix["refused"],
        "swaps": swaps,
        "baselines": baselines,
        "versions": matrix["run"]["versions"],
    }


def score_translation(run: Run, job: Job, test: Corpora) -> Settings:
    """Score all directions, untrained ones also via the common language, and some with donors' weights."""
    direct = run.evaluate(test).to_dict()
    common = job.directions["languages"][0]
    untrained = {name: corpora for name, corpora in test.items() if common not in name.split("/")}
    pivoted = run.evaluate(untrained, pivot=common).to_dict()
    swaps: dict[str, Settings] = {condition: {} for condition in job.swaps}
    run.predictor.cache = cache = DonatedCache(run.model)
    for donors in zip(*job.swaps.values(), strict=True):  # all conditions at once: first related, then unrelated donors
        donor_of = dict(zip(job.swaps, donors, strict=True))
        cache.donated = {
            condition: with_donor(condition, donor, common) or condition
            for condition, donor in ((Condition.parse(name), donor) for name, donor in donor_of.items())
        }
        scored = run.evaluate({condition: test[condition] for condition in donor_of}).to_dict()["results"]
        for condition, donor in donor_of.items():
            swaps[condition][donor] = _compact(scored[condition])
    return {
        "results": {name: _compact(result) for name, result in direct["results"].items()},
        "pivot": {name: _compact(result) for name, result in pivoted["results"].items()},
        "refused": direct["refused"],
        "swaps": swaps,
        "baselines": {},
        "embeddings": _embeddings(run, job.directions) if job.recipe["method"]["name"] == "hyper-adapters" else {},
        "versions": direct["run"]["versions"],
    }


def _embeddings(run: Run, directions: Settings) -> dict[str, list[float]]:
    """Return the embeddings of the unsplit languages, rounded."""
    vectors = language_vectors(run.model)
    return {name: [round(x, 4) for x in vectors[name]] for name in directions["languages"] if name in vectors}


def _compact(result: Settings) -> Settings:
    """Keep the statistics of every sentence for BLEU, which intervals need, and only their sums for other metrics."""
    first, *others = result["scores"]
    summed = [
        score | {"statistics": {name: [sum(part)] for name, part in score["statistics"].items()}} for score in others
    ]
    return result | {"scores": [first, *summed]}
