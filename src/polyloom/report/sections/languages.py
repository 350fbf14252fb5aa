"""Languages: the map and the dendrogram of `polyloom probe languages`."""

from collections.abc import Sequence

from polyloom.figures.languages import dendrogram_figure, map_figure
from polyloom.report.probes import Probe, Shown, each_probe
from polyloom.report.sources import Source
from polyloom.report.tables import Row, Table, p_value
from polyloom.report.templating import Section, inline


def languages_section(sources: Sequence[Source]) -> Section:
    """Build the section on languages."""
    return Section("languages", "Languages", {"runs": each_probe(sources, "languages", _show)})


def _show(source: Source, probe: Probe) -> Shown:
    families, count = probe["families"], len(probe["languages"])
    rows: list[Row] = [
        [language, families.get(language) or "", ", ".join(f"{other} {value:.2f}" for other, value in near)]
        for language, near in probe["neighbours"].items()
    ]
    columns = ["language", "family", "nearest languages, with cosine similarity"]
    umap = probe.get("projection") == "umap"
    return {
        "plane": "projected by UMAP" if umap else "on their first two principal components",
        "map": inline(map_figure(probe), label=f"Map of {count} languages", classes="figure map"),
        "dendrogram": inline(dendrogram_figure(probe), label=f"Dendrogram of {count} languages"),
        "agreement": _agreement(probe["agreement"]),
        "nearest": Table(f"Nearest languages by {source.name}", columns, rows, classes="facts"),
        "command": f"polyloom probe languages {source.shell}{' --projection umap' if umap else ''}",
    }


def _agreement(agreement: Probe) -> str:
    sentences = []
    if agreement.get("purity") is not None:
        sentences.append(
            f"The nearest language is of the same family for {100 * agreement['purity']:.0f} % of the languages "
            f"(chance: {100 * agreement['chance']:.0f} %, p {p_value(agreement['p_value'])})."
        )
    if agreement.get("correlation") is not None:
        sentences.append(
            f"Correlation with typological distance: {agreement['correlation']:.2f} "
            f"(p {p_value(agreement['correlation_p_value'])})."
        )
    return " ".join(sentences) or "Agreement with families and typology: unknown."
