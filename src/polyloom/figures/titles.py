"""Names of metrics as people write them."""

_TITLES = {
    "f1": "F1", "uas": "UAS", "las": "LAS", "bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "comet": "COMET",
    "answer_f1": "F1", "answer_exact": "exact match",
}  # fmt: skip


def metric_title(name: str) -> str:
    """Return the name of a metric for people; unknown names stay as they are."""
    return _TITLES.get(name, name)
