"""Commands that repeat the runs, their scores and the report; recipes and hashes of corpora."""

from collections.abc import Mapping, Sequence

from polyloom.report.sources import PROBES, Source
from polyloom.report.tables import Row, Table, TableCell
from polyloom.report.templating import Section


def commands_section(sources: Sequence[Source], line: str) -> Section:
    """Build the list of commands that repeat the runs, the scores and this report.

    Args:
        sources: The runs.
        line: The command that writes this report.
    """
    lines = []
    for source in sources:
        lines += [f"polyloom train {source.shell}/recipe.yaml -o {source.shell}-again", source.evaluation]
        lines += [source.probing(kind) for kind in PROBES]
    on = "" if sources[0].split == "test" else f" --split {sources[0].split}"
    lines += [f"polyloom compare {sources[0].shell} {other.shell}{on}" for other in sources[1:]]
    recipes = [(f"Recipe of {source.name}", source.text) for source in sources]
    hashes = [_hashes(s.name, s.history.begin.corpora) for s in sources if s.history.begin and s.history.begin.corpora]
    return Section("commands", "Commands", {"lines": [*lines, line], "recipes": recipes, "hashes": hashes})


def _hashes(name: str, corpora: Mapping[str, str]) -> Table:
    rows: list[Row] = [[corpus, TableCell(sha256[:12], "code")] for corpus, sha256 in corpora.items()]
    return Table(f"Training corpora of {name} ({len(rows)})", ["corpus", "sha256"], rows, classes="")
