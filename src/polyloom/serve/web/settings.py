"""Settings of a server, on one machine or on many."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import with_config

from polyloom.config.recipe import STRICT
from polyloom.errors import PolyloomError
from polyloom.ranges import Count
from polyloom.serve.engine import Limits
from polyloom.serve.supervisor import Supervisor
from polyloom.serve.web.context import Context, WebLimits
from polyloom.serve.web.keys import Keys

if TYPE_CHECKING:
    from polyloom.serve.web.tracing import Tracing

for _settings in (Limits, WebLimits):
    with_config(STRICT)(_settings)


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        runs: Folders of runs and exported adapters.
        limits: Limits of the engine.
        web_limits: Limits of requests.
        keys: File with API keys. Default: everybody may ask.
        beams: Beams of translations. Default: those of the runs.
        threads: Threads of torch. Default: as many as torch thinks right.
        origins: Origins of pages that may use the server from a browser (CORS).
        log_texts: Whether the log has the texts of requests.
        otlp_traces_endpoint: Collector of OpenTelemetry that gets traces. Default: none.
        allow: Files and folders that runs of somebody else may read.
        code: Python files that register methods, tasks or readers.
        adapters: Folder into which adapters are written for another server. Default: none are written.
        base_name: What that server calls the model. Default: the run's own name for it.
        adapters_mb: Megabytes of that folder.
    """

    runs: Sequence[str]
    limits: Limits = field(default_factory=Limits)
    web_limits: WebLimits = field(default_factory=WebLimits)
    keys: str | None = None
    beams: Count | None = None
    threads: Count | None = None
    origins: Sequence[str] = ()
    log_texts: bool = False
    otlp_traces_endpoint: str | None = None
    allow: Sequence[str] = ()
    code: Sequence[str] = ()
    adapters: str | None = None
    base_name: str | None = None
    adapters_mb: Count = 1024

    def context(self, *, replicated: bool = False) -> Context:
        """Build what all routes of a server share; `replicated` if other servers answer at the same address."""
        files = {"folder": self.adapters, "base_name": self.base_name, "max_mb": self.adapters_mb}
        models = Supervisor(
            self.runs, limits=self.limits, beams=self.beams, threads=self.threads,
            adapters=files if self.adapters else None,
        )  # fmt: skip
        return Context(
            models, Keys(self.keys), self.web_limits, log_texts=self.log_texts, replicated=replicated,
            tracing=self._tracing(),
        )  # fmt: skip

    def _tracing(self) -> "Tracing | None":
        if self.otlp_traces_endpoint is None:
            return None
        try:
            from polyloom.serve.web.tracing import Tracing  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as missing:
            raise PolyloomError(f"traces: {missing.name} is missing. pip install 'polyloom[otel]'") from missing
        return Tracing(self.otlp_traces_endpoint)
