"""Tables of docs/confirmations.md."""

from collections.abc import Callable

from experiments.comparison import Comparison, Key, Scores, Side, Tables
from experiments.read import Row, Selection, Value, result, select
from experiments.storage import read_plan
from experiments.tables.translation import added

TARGETS = [language for language in read_plan("head")["languages"] if language != "en"]
COMMON, *OTHERS = read_plan("start")["languages"]
HEAD = {"frozen": "raw text, head frozen", "learning": "raw text, head learning", "no-text": "no raw text"}
START = {
    "lang-adapters-former": "backbone from N(0, 0.02), adapters `xavier`",
    "lang-adapters-identity": "backbone as Fairseq, adapters `identity`",
}


def head() -> Comparison:
    """Compare Hyper-X with a frozen head, with a learning head and without raw text by zero-shot tags."""
    sides = []
    for name, label in HEAD.items():
        row = result("head", name)
        scores: dict[Key, Scores] = {"mean": select(row, "pos", TARGETS)}
        sides.append(Side(label, scores | {language: select(row, "pos", [language]) for language in TARGETS}))
    return Comparison(sides=sides, labels=("Hyper-X, POS",), base=HEAD["frozen"])


def start() -> Comparison:
    """Compare language adapters by how they and their backbone begin."""
    sides = []
    for name, label in START.items():
        row = result("start", name)
        scores: dict[Key, Scores] = {
            "BLEU from the common language": [(row, f"mt/{COMMON}/{other}") for other in OTHERS],
            "BLEU into the common language": [(row, f"mt/{other}/{COMMON}") for other in OTHERS],
            "validation perplexity": perplexities(row),
        }
        sides.append(Side(label, scores, (f"{added(row):,}",)))
    return Comparison(sides=sides, labels=("lang-adapters", "added parameters"), base=START["lang-adapters-former"])


def perplexities(row: Row) -> Selection:
    """Select the perplexities of all directions at the last validation."""
    scores = [
        {f"validation {c}": Value(value) for c, value in run["training"]["validation"][-1].items()} for run in row.runs
    ]
    scored = Row(row.runs, scores)
    return [(scored, condition) for condition in scores[0]]


TABLES: dict[str, Callable[[], Tables]] = {"head": lambda: {"": head}, "start": lambda: {"": start}}
