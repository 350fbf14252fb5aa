"""Tables of docs/results.md: the claims of the papers, the laboratories, the map of translation, language models."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from operator import itemgetter

from experiments.claims import claims_table, read_claims
from experiments.comparison import Comparison, Side
from experiments.measures import GROUPS, added, added_bits, bits, bleu, loss, zero_shot
from experiments.pretraining import pretraining_table
from experiments.read import Values, average, row
from experiments.studies import adding, lm, translation
from experiments.studies.labs import LABS
from experiments.studies.transfer import TASKS, Lab, tried
from experiments.timing import against_dense, minutes_of
from polyloom.cli.render.tables import markdown

SINGLE = {
    "full": "full",
    "task-adapters": "task adapters alone",
    "multilingual": "multilingual",
    "madx": "MAD-X",
    "hyperx": "Hyper-X",
    "hyper-stack": "Hyper-Stack",
}
FAMILY = SINGLE | {
    "madx-2": "MAD-X 2.0",
    "madx-more-text": "MAD-X, four times the raw text",
    "hyper-stack-more-text": "Hyper-Stack, four times the raw text",
}
MIXED = {
    "full-mixed": "full",
    "psf-mixed": "PSF",
    "multilingual-mixed": "multilingual",
    "madx-mixed": "MAD-X",
    "hyperx-mixed": "Hyper-X",
}

LANGUAGE_MODELS = {
    "frozen": "none",
    "shared": "one for all",
    "stored": "stored",
    "generated": "generated",
}


def transfer_table(lab: str, names: Mapping[str, str], groups: Sequence[str] = GROUPS) -> str:
    """Compare rows of a laboratory by zero-shot tags and entities."""
    sides, columns = [], list(product(TASKS, groups))
    for name, label in names.items():
        values = {f"{task} {group}": zero_shot(lab, name, task, group) for task, group in columns}
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


def lm_table() -> str:
    """Compare ways to adapt a language model, over the languages that it learned and those that it did not."""
    sides = []
    for name, label in LANGUAGE_MODELS.items():
        found = row("lm", name)
        learned = ("0", "0") if name == "frozen" else (f"{found.parameters:,}", minutes_of(name))
        sides.append(Side(label, {f"{len(lm.LANGUAGES)} languages": bits(name, lm.LANGUAGES)}, learned))
    return Comparison(
        sides=sides, labels=("LoRA", "trained parameters", "minutes"), base=LANGUAGE_MODELS["shared"], digits=3
    ).markdown()


def lm_languages_table() -> str:
    """Compare the same in each language."""
    sides = [
        Side(label, {language: bits(name, [language]) for language in lm.LANGUAGES})
        for name, label in LANGUAGE_MODELS.items()
    ]
    base = LANGUAGE_MODELS["shared"]
    return Comparison(sides=sides, labels=("language",), base=base, digits=2).markdown(transposed=True)


def lm_added_table() -> str:
    """Compare what languages that are added start as, before and after their own weights are trained."""
    sides = [
        Side(
            LANGUAGE_MODELS[name],
            {
                "mean": added_bits(name, "mean", after=False),
                "best donor": added_bits(name, "best-donor", after=False),
                "fitted": added_bits(name, "best-donor", after=True),
            },
        )
        for name in lm.ADDED_TO
    ]
    table = Comparison(sides=sides, labels=("LoRA",), digits=2).markdown()
    frozen, shared = (bits(name, lm.ADDED).shown(2) for name in ("frozen", "shared"))
    return f"{table}\nOf the same texts without a LoRA: {frozen}; with one for all: {shared}.\n"


def lm_rates() -> str:
    """Show the learning rates that were tried for language models, with the mean bits per byte of each."""
    lines = []
    for name, rates in lm.RATES.items():
        tuned = {rate: bits(f"{name}-lr{rate:g}", lm.LANGUAGES, study="lm-tuning").mean for rate in rates}
        lines.append([LANGUAGE_MODELS[name], *_tried(tuned, best=min, digits=3)])
    return markdown(("LoRA", "lowest", "low", "high", "highest"), lines)


def map_table() -> str:
    """Show all cells of the map: BLEU both ways and the validation loss of every method."""
    return "\n".join(_cell(width, count) for width, count in product(translation.WIDTHS, sorted(translation.LANGUAGES)))


def _cell(width: int, languages: int) -> str:
    sides = []
    for name in translation.methods(width, languages):
        cell = f"d{width}-l{languages}-s{translation.STEPS}"
        about = f"{row('map', f'{name}-{cell}').parameters:,}", against_dense(name, cell)
        sides.append(Side(name, _translated(f"{name}-{cell}"), about))
    table = Comparison(sides=sides, labels=("method", "parameters", "time of a step"), base="dense").markdown()
    return f"**Width {width}, {languages} languages**\n\n{table}"


def steps_table() -> str:
    """Compare fewer and more steps, and as much time, in the cell with the least room for each language."""
    cell = f"d{min(translation.WIDTHS)}-l{max(translation.LANGUAGES)}"
    counts = (translation.SHORT, translation.STEPS, translation.LONG)
    steps = sorted([*product(counts, translation.TUNED), (translation.LONGER, "dense")], key=itemgetter(0))
    sides = [Side(f"{count:,} steps, {name}", _translated(f"{name}-{cell}-s{count}")) for count, name in steps]
    return Comparison(sides=sides, labels=("",)).markdown()


def _translated(name: str) -> dict[str, Values]:
    """Return the scores of a row of the map."""
    return {"BLEU from": bleu(name, into=False), "BLEU into": bleu(name, into=True), "loss": loss(name)}


def map_rates() -> str:
    """Show the learning rates that were tried for the map, with the validation loss of each."""
    lines = []
    for width, name in product(translation.WIDTHS, (*translation.TUNED, "together")):
        method = "dense" if name == "together" else translation.methods(width, 12)[name][0]["name"]
        names = {rate: f"{name}-d{width}-lr{rate:g}" for rate in translation.RATES[method]}
        losses = {rate: loss(row_name, study="map-tuning").mean for rate, row_name in names.items()}
        lines.append([str(width), name, *_tried(losses, best=min, digits=3)])
    return markdown(("width", "method", "low", "middle", "high"), lines)


def lab_rates(lab: Lab) -> str:
    """Show the learning rates that were tried in a laboratory, with the mean of all development scores of each."""
    lines = []
    for name, rates in tried(lab).items():
        tuned = {rate: row(f"{lab.name}-tuning", f"{name}-lr{rate:g}") for rate in rates}
        scores = {rate: average(found, found.runs[0]["scores"]).mean for rate, found in tuned.items()}
        lines.append([name, *_tried(scores, best=max, digits=1)])
    return markdown(("method", "low", "middle", "high"), lines)


def _tried(by_rate: Mapping[float, float], *, best: Callable[[Iterable[float]], float], digits: int) -> list[str]:
    """Format what each learning rate reached, the best in bold."""
    chosen = best(by_rate.values())
    shown = {
        rate: f"**{value:.{digits}f}**" if value == chosen else f"{value:.{digits}f}" for rate, value in by_rate.items()
    }
    return [f"{text} ({rate:g})" for rate, text in shown.items()]


TABLES: Mapping[str, Callable[[], str]] = {
    "claims": lambda: claims_table(read_claims()),
    "real-pretraining": partial(pretraining_table, LABS["real"].backbone),
    "real": lambda: transfer_table("real", SINGLE),
    "real-mixed": lambda: transfer_table("real", MIXED, ["all"]),
    "family": lambda: transfer_table("family", FAMILY),
    "family-mixed": lambda: transfer_table("family", MIXED, ["all"]),
    "adding": adding_table,
    "lm": lm_table,
    "lm-languages": lm_languages_table,
    "lm-added": lm_added_table,
    "lm-rates": lm_rates,
    "map": map_table,
    "map-steps": steps_table,
    "map-rates": map_rates,
    **{f"{lab.name}-rates": partial(lab_rates, lab) for lab in LABS.values()},
}
