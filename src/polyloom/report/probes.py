"""Results of `polyloom probe` for the sections that show them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyloom.report.sources import Source

Probe = Mapping[str, Any]
Shown = dict[str, Any]


def each_probe(sources: Sequence[Source], kind: str, show: Callable[[Source, Probe], Shown]) -> list[Shown]:
    """Prepare a probe of every run for a template; what is missing or unreadable becomes a note with a command.

    Args:
        sources: The runs.
        kind: Which probe.
        show: Prepares the probe of one run.
    """
    prepared = []
    for source in sources:
        data: Shown = {"name": source.name, "note": None}
        if kind not in source.probes:
            data["note"] = source.missing[kind]
        else:
            try:
                data |= show(source, source.probes[kind])
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                data["note"] = (
                    f"{source.path}/probes/{kind}.json: not in the format of this version ({error!r}). "
                    f"Run again: {source.probing(kind)}"
                )
        prepared.append(data)
    return prepared
