"""Tables of docs/results.md: the claims of the papers, the laboratory of the family, the map of translation."""

from collections.abc import Callable, Mapping
from itertools import product

from experiments.claims import claims_table, read_claims
from experiments.comparison import Comparison, Side
from experiments.measures import GROUPS, added, bleu, loss, zero_shot
from experiments.read import row
from experiments.studies import adding, translation
from experiments.studies.transfer import TASKS

SINGLE = {
    "full": "full",
    "task-adapters": "task adapters alone",
    "multilingual": "multilingual",
    "madx": "MAD-X",
    "hyperx": "Hyper-X",
    "hyper-stack": "Hyper-Stack",
}
MIXED = {
    "full-mixed": "full",
    "psf-mixed": "PSF",
    "madx-mixed": "MAD-X",
    "hyperx-mixed": "Hyper-X",
    "hyper-stack-mixed": "Hyper-Stack",
}


def transfer_table(lab: str, names: Mapping[str, str]) -> str:
    """Compare rows of a laboratory by zero-shot tags and entities."""
    sides = []
    for name, label in names.items():
        values = {f"{task} {group}": zero_shot(lab, name, task, group) for task, group in product(TASKS, GROUPS)}
        sides.append(Side(label, values, (f"{values['pos all'].rows[0].parameters:,}",)))
    return Comparison(sides=sides, labels=("zero-shot", "trained parameters")).markdown()


def adding_table() -> str:
    """Compare ways to add a language to runs that know few or many."""
    sides = []
    for known, name in adding.rows():
        values = {
            f"{what}, {'after' if after else 'before'}": added(f"{name}-l{known}", what, after=after)
            for what, after in product(("loss", "tags"), (False, True))
        }
        sides.append(Side(f"{known} languages, {name}", values))
    return Comparison(sides=sides, labels=("known, and new",), digits=2).markdown()


def map_table() -> str:
    """Show all cells of the map: BLEU both ways and the validation loss of every method."""
    return "\n".join(_cell(width, count) for width, count in product(translation.WIDTHS, sorted(translation.LANGUAGES)))


def _cell(width: int, languages: int) -> str:
    sides = []
    for name in translation.methods(width, languages):
        of = f"{name}-d{width}-l{languages}-s{translation.STEPS}"
        values = {"BLEU from": bleu(of, into=False), "BLEU into": bleu(of, into=True), "loss": loss(of)}
        sides.append(Side(name, values, (f"{row('map', of).parameters:,}",)))
    table = Comparison(sides=sides, labels=("method", "parameters"), base="dense").markdown()
    return f"**Width {width}, {languages} languages**\n\n{table}"


TABLES: Mapping[str, Callable[[], str]] = {
    "claims": lambda: claims_table(read_claims()),
    "real": lambda: transfer_table("real", SINGLE),
    "real-mixed": lambda: transfer_table("real", MIXED),
    "family": lambda: transfer_table("family", SINGLE | {"madx-2": "MAD-X 2.0"}),
    "adding": adding_table,
    "map": map_table,
}
