"""What probes found, for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from polyloom.cli.render.tables import aligned
from polyloom.probe.capacity import capacity_rows
from polyloom.probe.swap import language_matters, summarize

Found = Mapping[str, Any]
MANY = 12  # columns beyond which a table is wider than a terminal; JSON and figures have room


def show_languages(found: Found) -> str:
    """Neighbours of every language, and the agreement with typology."""
    rows = [
        [
            language,
            found["families"][language] or "–",
            ", ".join(f"{other} {similarity:.2f}" for other, similarity in found["neighbours"][language][:3]),
        ]
        for language in found["languages"]
    ]
    agreement = found["agreement"]
    lines = [aligned(["language", "family", "nearest (cosine)"], rows)]
    if agreement["purity"] is None:
        lines.append("Families: too few are known to compare with.")
    else:
        lines.append(
            f"Families: the nearest neighbour is of the same family for {agreement['purity']:.0%} of the languages; "
            f"by chance {agreement['chance']:.0%} (p = {agreement['p']:.4f})."
        )
    if agreement["correlation"] is None:
        lines.append("Typology: no features to compare with.")
    else:
        lines.append(
            f"Typology: Spearman's ρ with the distance of features {agreement['correlation']:+.2f} "
            f"(p = {agreement['correlation_p']:.3f})."
        )
    unknown = [language for language, family in found["families"].items() if family is None]
    if unknown and len(unknown) < len(found["languages"]):
        lines.append(f"No family is known of: {', '.join(unknown)}.")
    return "\n".join(lines) + "\n"


def show_swap(found: Found, *, higher_is_better: bool) -> str:
    """The matrix, if it fits; what each language loses."""
    tables = []
    if len(found["donors"]) <= MANY:
        rows = [
            [language, *map(_number, row)] for language, row in zip(found["languages"], found["scores"], strict=True)
        ]
        tables.append(aligned([f"{found['task']} {found['metric']}: text \\ weights", *found["donors"]], rows))
    lines = summarize(found, higher_is_better=higher_is_better)
    columns = ["language", "own", "best other", "with it", "mean of others", "own better by"]
    rows = [
        [one.language, f"{one.own:.2f}", one.best, f"{one.best_score:.2f}", f"{one.mean:.2f}", f"{one.loss:+.2f}"]
        for one in lines
    ]
    if rows:
        tables.append(aligned(columns, rows))
    if not any(score for row in found["scores"] for score in row):
        said = "Every score is 0: nothing is right with anyone's weights, so nothing can be said of languages."
    elif not language_matters(found):
        said = "Language does not matter: every score is the same, whoever's weights are used."
    elif lines:
        loss = sum(one.loss for one in lines) / len(lines)
        better = sum(one.loss > 0 for one in lines)
        said = (
            f"A language's own weights are better than others' by {loss:.2f} in the mean, for {better} of {len(lines)}."
        )
    else:
        said = "No language has both a score with its own weights and one with another's."
    notes = [said, *(["– not served."] if any(s is None for row in found["scores"] for s in row) else [])]
    return "\n".join([*tables, *notes]) + "\n"


def show_weights(found: Found) -> str:
    """Where languages and tasks differ."""
    columns = ["site", "between languages", "between tasks", "effective rank"]
    keys = ("between_languages", "between_tasks", "effective_rank")
    rows = [[site["site"], *(_number(site[key], 3) for key in keys)] for site in found["sites"]]
    lines = [aligned(columns, rows)]
    known = [site for site in found["sites"] if site["between_languages"] is not None]
    if known and not any(site["between_languages"] for site in known):
        lines.append("All languages have the same weights.")
    elif known:
        most = max(known, key=lambda site: site["between_languages"])
        lines.append(f"Languages differ most at {most['site']}.")
    lines.append(_closest(found["conditions"], found["similarity"]))
    lines.append("between: distance from the mean over the length of the mean. Rank: directions that languages fill.")
    return "\n".join(lines) + "\n"


def _closest(names: Sequence[str], similarity: Sequence[Sequence[float]]) -> str:
    pairs = [(similarity[i][j], names[i], names[j]) for i in range(len(names)) for j in range(i)]
    (high, *most), (low, *least) = max(pairs), min(pairs)
    mean = sum(value for value, *_ in pairs) / len(pairs)
    said = f"mean {mean:.3f}, highest {high:.3f} ({', '.join(most)}), lowest {low:.3f} ({', '.join(least)})"
    return f"Cosine of {len(names)} conditions: {said}."


def show_capacity(found: Found) -> str:
    """How full the hypernetwork is."""
    rows = [list(row) for row in capacity_rows(found)]
    lines = [aligned(["", "used", "of"], rows)]
    lines.append(f"Over {found['conditions']} conditions in {found['languages']} languages.")
    lines.append("A participation ratio is at most one less than languages.")
    return "\n".join(lines) + "\n"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
