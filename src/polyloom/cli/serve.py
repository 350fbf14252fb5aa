"""``polyloom serve``: answer over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

_Beams = Annotated[
    int | None,
    typer.Option(
        min=1, max=100, help="For mt: beams. With 1, translations join and leave between steps. Default: the run's."
    ),
]
_Keys = Annotated[
    Path | None, typer.Option(help="File with API keys: SHA256 NAME, or SHA256 NAME admin, in each line.")
]
_Adapters = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Write adapters here, in PEFT's format, when vLLM asks for them. Such as /dev/shm/x."
    ),
]


def serve(  # noqa: PLR0913 - options of a command
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of exported adapters.")],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    beams: _Beams = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch. Default: as torch decides.")] = None,
    max_waiting: Annotated[int, typer.Option(min=1, help="Rows that may wait; further ones get status 429.")] = 1024,
    max_batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a batch, padding included.")] = 4096,
    max_input_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a row.")] = 8192,
    max_wait_ms: Annotated[float, typer.Option(min=0, help="Milliseconds to wait for a fuller batch.")] = 2.0,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of a request.")] = 256,
    max_rows_per_key: Annotated[int, typer.Option(min=1, help="Rows of one API key that may wait or run.")] = 1024,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a row.")] = 50_000,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request's body.")] = 4 << 20,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds after which a row is given up.")] = 30.0,
    cache_mb: Annotated[int, typer.Option(min=1, help="Megabytes of cached adapters of each run.")] = 256,
    keys: _Keys = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose pages may use the server (CORS).")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Also log the texts of requests.")] = False,
    adapters: _Adapters = None,
    base_name: Annotated[str | None, typer.Option(help="With --adapters: vLLM's name of the model.")] = None,
    adapters_mb: Annotated[int, typer.Option(min=1, help="With --adapters: megabytes of that folder, at most.")] = 1024,
    otlp_traces_endpoint: Annotated[str | None, typer.Option(metavar="URL", help="Collector for traces.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Serve on the Ray cluster of this machine.")] = False,
    replicas: Annotated[int, typer.Option(min=1, help="With --ray: servers that share the requests.")] = 1,
) -> None:
    """Answer over HTTP: rows of any tasks and languages share batches, one backbone in memory.

    The address shows a web UI. Programs use its own protocol (POST /v1/predict), or those of Hugging Face Inference
    (/models/pos/tr), LibreTranslate (/translate) and Open Inference (/v2); /docs describes all of them. /livez,
    /readyz, /metrics and /info are for monitoring. The log on stderr is a line of JSON for each request. On SIGTERM
    the server answers accepted requests, then ends. On SIGHUP it loads the runs again without losing a request.

    Example: polyloom serve runs/first --port 8000

    Example: ray start --head && polyloom serve runs/first --ray --replicas 4

    Example: curl localhost:8000/v1/predict --json '{"rows": [{"condition": "pos/tr", "input": "Kedi uyuyor."}]}'
    """
    from polyloom.errors import PolyloomError  # noqa: PLC0415 - slow imports

    try:
        from polyloom.serve.web.context import ServerLimits  # noqa: PLC0415
        from polyloom.serve.web.server import ServerSettings, run_server  # noqa: PLC0415

        if ray:
            from polyloom.serve.ray import run_on_ray  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        extra = "ray" if ray else "serve"
        raise PolyloomError(f"serve: {missing.name} is missing. pip install 'polyloom[{extra}]'") from missing
    limits = ServerLimits(
        max_waiting=max_waiting, max_batch_tokens=max_batch_tokens, max_input_tokens=max_input_tokens,
        max_wait_ms=max_wait_ms, max_rows=max_rows, max_rows_per_key=max_rows_per_key, max_characters=max_characters,
        max_body_bytes=max_body_bytes, timeout=timeout, cache_mb=cache_mb,
    )  # fmt: skip
    settings = ServerSettings(
        runs=list(map(str, runs)), limits=limits, keys=str(keys) if keys else None, beams=beams, threads=threads,
        allow_origin=allow_origin or [], log_texts=log_texts, otlp_traces_endpoint=otlp_traces_endpoint,
        adapters=str(adapters.resolve()) if adapters else None, base_name=base_name, adapters_mb=adapters_mb,
    )  # fmt: skip
    if ray:
        run_on_ray(settings, host=host, port=port, replicas=replicas)
    else:
        run_server(settings, host=host, port=port)
