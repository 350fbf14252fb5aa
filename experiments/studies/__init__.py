"""All studies."""

from experiments.studies import adding, lm, transfer, translation
from experiments.studies.labs import LABS
from experiments.study import Study
from polyloom.errors import PolyloomError, suggest

STUDIES = {
    study.name: study
    for study in (
        translation.TUNING,
        translation.MAP,
        *(study for lab in LABS.values() for study in transfer.studies(lab)),
        adding.ADDING,
        lm.TUNING,
        lm.LM,
    )
}


def find_study(name: str) -> Study:
    """Find a study by its name."""
    if name not in STUDIES:
        raise PolyloomError(f"study {name!r}: there is none. {suggest(name, STUDIES)}")
    return STUDIES[name]
