"""``polyloom serve``: answer over HTTP."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polyloom.serve.web.context import Context


def serve(  # noqa: PLR0913 - options of a command
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of exported adapters.")],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    beams: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="For mt: beams. With 1, translations join and leave between steps. Default: the run's."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch. Default: as torch decides.")] = None,
    max_waiting: Annotated[int, typer.Option(min=1, help="Rows that may wait; further ones get 429.")] = 1024,
    max_batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a batch, padding included.")] = 4096,
    max_input_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a row.")] = 8192,
    max_wait_ms: Annotated[float, typer.Option(min=0, help="How long an idle model waits for a fuller batch.")] = 2.0,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of a request.")] = 256,
    max_rows_per_key: Annotated[int, typer.Option(min=1, help="Rows of one API key that may wait or run.")] = 1024,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a row.")] = 50_000,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request's body.")] = 4 << 20,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds after which a row is given up.")] = 30.0,
    cache_mb: Annotated[int, typer.Option(min=1, help="Megabytes of cached adapters of each run.")] = 256,
    keys: Annotated[
        Path | None, typer.Option(help="File with API keys: SHA256 NAME, or SHA256 NAME admin, in each line.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of pages that may use the server from a browser (CORS).")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Log the texts of requests, too.")] = False,
) -> None:
    """Answer over HTTP: rows of any tasks and languages share batches, one backbone in memory.

    A browser shows a page to try it. Programs use its own protocol (POST /v1/predict), or those of Hugging Face
    Inference (/models/pos/tr), LibreTranslate (/translate) and Open Inference (/v2). /docs describes all of them;
    /livez, /readyz, /metrics and /info watch them. The log on stderr is a line of JSON for each request. SIGTERM: what
    was accepted is answered first. SIGHUP: the runs are loaded again, beside those that are served.

    Example: polyloom serve runs/first --port 8000

    Example: curl localhost:8000/v1/predict --json '{"rows": [{"condition": "pos/tr", "input": "Kedi uyuyor."}]}'
    """
    limits = {
        "max_waiting": max_waiting, "max_batch_tokens": max_batch_tokens, "max_input_tokens": max_input_tokens,
        "max_wait_ms": max_wait_ms, "timeout": timeout, "cache_mb": cache_mb,
    }  # fmt: skip
    web_limits = {
        "max_rows": max_rows, "max_rows_per_key": max_rows_per_key, "max_characters": max_characters,
        "max_body_bytes": max_body_bytes,
    }  # fmt: skip
    run_server, context = _prepare(runs, keys, limits, web_limits, beams=beams, threads=threads, log_texts=log_texts)
    run_server(context, host=host, port=port, origins=allow_origin or [])


def _prepare(  # noqa: PLR0913 - options of a command
    runs: list[Path],
    keys: Path | None,
    limits: dict[str, Any],
    web_limits: dict[str, Any],
    *,
    beams: int | None,
    threads: int | None,
    log_texts: bool,
) -> "tuple[Callable[..., None], Context]":
    """Import what a server needs, and return what runs it and what it serves."""
    from polyloom.errors import PolyloomError  # noqa: PLC0415 - slow imports
    from polyloom.serve.limits import Limits  # noqa: PLC0415
    from polyloom.serve.supervisor import Supervisor  # noqa: PLC0415

    try:
        from polyloom.serve.web.context import Context, WebLimits  # noqa: PLC0415
        from polyloom.serve.web.keys import Keys  # noqa: PLC0415
        from polyloom.serve.web.server import run_server  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise PolyloomError(f"serve: {missing.name} is missing. pip install 'polyloom[serve]'") from missing
    models = Supervisor(runs, limits=Limits(**limits), beams=beams, threads=threads)
    return run_server, Context(models, Keys(keys), WebLimits(**web_limits), log_texts=log_texts)
