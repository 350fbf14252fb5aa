"""Format the results of probes as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from polyloom.cli.render.tables import aligned
from polyloom.probe.capacity import capacity_rows
from polyloom.probe.swap import language_matters, summarize

ProbeResult = Mapping[str, Any]
MANY = 12  # columns beyond which a table is wider than a terminal; JSON and figures have room


def show_languages(result: ProbeResult) -> str:
    """Format the neighbours of every language, and the agreement with families and typology."""
    rows = [
        [
            language,
            result["families"][language] or "–",
            ", ".join(f"{other} {similarity:.2f}" for other, similarity in result["neighbours"][language][:3]),
        ]
        for language in result["languages"]
    ]
    agreement = result["agreement"]
    lines = [aligned(["language", "family", "nearest (cosine)"], rows)]
    if agreement["purity"] is None:
        lines.append("Families: too few are known to compare with.")
    else:
        lines.append(
            f"Families: the nearest neighbour is of the same family for {agreement['purity']:.0%} of the languages; "
            f"by chance {agreement['chance']:.0%} (p = {agreement['p_value']:.4f})."
        )
    if agreement["correlation"] is None:
        lines.append("Typology: no features to compare with.")
    else:
        lines.append(
            f"Typology: Spearman's ρ with the distance of features {agreement['correlation']:+.2f} "
            f"(p = {agreement['correlation_p_value']:.3f})."
        )
    unknown = [language for language, family in result["families"].items() if family is None]
    if unknown and len(unknown) < len(result["languages"]):
        lines.append(f"No family is known of: {', '.join(unknown)}.")
    return "\n".join(lines) + "\n"


def show_swap(result: ProbeResult, *, higher_is_better: bool) -> str:
    """Format the matrix of scores, if it fits into a terminal, and the loss of each language."""
    tables = []
    if len(result["donors"]) <= MANY:
        rows = [
            [language, *map(_number, row)] for language, row in zip(result["languages"], result["scores"], strict=True)
        ]
        tables.append(aligned([f"{result['task']} {result['metric']}: text \\ weights", *result["donors"]], rows))
    lines = summarize(result, higher_is_better=higher_is_better)
    columns = ["language", "own", "best other", "with it", "mean of others", "own better by"]
    rows = [
        [line.language, f"{line.own:.2f}", line.best, f"{line.best_score:.2f}", f"{line.mean:.2f}", f"{line.loss:+.2f}"]
        for line in lines
    ]
    if rows:
        tables.append(aligned(columns, rows))
    if not any(score for row in result["scores"] for score in row):
        verdict = "All scores are 0, so the languages cannot be compared."
    elif not language_matters(result):
        verdict = "Language does not matter: all scores are the same with the weights of any language."
    elif lines:
        loss = sum(line.loss for line in lines) / len(lines)
        better = sum(line.loss > 0 for line in lines)
        verdict = (
            f"A language's own weights are better than those of others by {loss:.2f} on average, for {better} of "
            f"{len(lines)} languages."
        )
    else:
        verdict = "No language has both a score with its own weights and a score with those of another language."
    notes = [verdict, *(["– not supported."] if any(s is None for row in result["scores"] for s in row) else [])]
    return "\n".join([*tables, *notes]) + "\n"


def show_weights(result: ProbeResult) -> str:
    """Format how much the weights of languages and tasks differ at each site."""
    columns = ["site", "between languages", "between tasks", "effective rank"]
    keys = ("between_languages", "between_tasks", "effective_rank")
    rows = [[site["site"], *(_number(site[key], 3) for key in keys)] for site in result["sites"]]
    lines = [aligned(columns, rows)]
    known = [site for site in result["sites"] if site["between_languages"] is not None]
    if known and not any(site["between_languages"] for site in known):
        lines.append("All languages have the same weights.")
    elif known:
        most = max(known, key=lambda site: site["between_languages"])
        lines.append(f"Languages differ most at {most['site']}.")
    lines.append(_closest(result["conditions"], result["similarity"]))
    lines.append("between: distance from the mean over the length of the mean. Rank: directions that languages fill.")
    return "\n".join(lines) + "\n"


def _closest(names: Sequence[str], similarity: Sequence[Sequence[float]]) -> str:
    pairs = [(similarity[i][j], names[i], names[j]) for i in range(len(names)) for j in range(i)]
    (high, *most), (low, *least) = max(pairs), min(pairs)
    mean = sum(value for value, *_ in pairs) / len(pairs)
    values = f"mean {mean:.3f}, highest {high:.3f} ({', '.join(most)}), lowest {low:.3f} ({', '.join(least)})"
    return f"Cosine of {len(names)} conditions: {values}."


def show_capacity(result: ProbeResult) -> str:
    """Format how much of the hypernetwork's capacity is used."""
    rows = [list(row) for row in capacity_rows(result)]
    lines = [aligned(["", "used", "of"], rows)]
    lines.append(f"Over {result['conditions']} conditions in {result['languages']} languages.")
    lines.append("A participation ratio is at most one less than languages.")
    return "\n".join(lines) + "\n"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
