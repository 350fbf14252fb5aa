"""All studies."""

from experiments.studies import adding, transfer, translation
from experiments.study import Study
from polyloom.errors import PolyloomError, suggest

STUDIES = {
    study.name: study
    for study in (translation.TUNING, translation.MAP, *transfer.studies(transfer.FAMILY), adding.ADDING)
}


def find_study(name: str) -> Study:
    """Find a study by its name."""
    if name not in STUDIES:
        raise PolyloomError(f"study {name!r}: there is none. {suggest(name, STUDIES)}")
    return STUDIES[name]
