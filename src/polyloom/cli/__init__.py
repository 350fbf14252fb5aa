"""The command line. Each command is one file, which imports slow packages only when the command runs.

Results go to stdout, messages to stderr. Exit codes: 0, 1 for a mistake in the input, 2 for wrong usage; of `train`
also 130 and 143 if SIGINT or SIGTERM stopped it.
"""

import gc
import os
import sys
import warnings
from typing import Annotated, TextIO

import typer

import polyloom
from polyloom.cli import (
    add,
    average,
    compare,
    config,
    data,
    demo,
    evaluate,
    export,
    generate,
    init,
    listing,
    lm_eval,
    plan,
    predict,
    probe,
    report,
    serve,
    train,
    transfer,
)
from polyloom.cli.options import extensible, opens_runs
from polyloom.errors import PolyloomError, PolyloomWarning
from polyloom.io.untrusted import for_terminal

# Plain help: typer's decorated one takes three times as long to print.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command(name="init")(init.init)
app.command(name="plan")(extensible(plan.show_plan))
app.command(name="train")(extensible(train.train))
app.command(name="evaluate")(opens_runs(evaluate.evaluate))
app.command(name="compare")(extensible(compare.compare))
app.command(name="transfer")(extensible(transfer.transfer))
app.command(name="predict")(opens_runs(predict.predict))
app.command(name="generate")(opens_runs(generate.generate))
app.command(name="lm-eval", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    opens_runs(lm_eval.lm_eval)
)
app.command(name="serve")(opens_runs(serve.serve))
app.command(name="average")(average.average)
app.command(name="export")(opens_runs(export.export))
app.command(name="import")(extensible(export.import_))
app.command(name="push")(export.push)
app.command(name="pull")(export.pull)
app.command(name="report")(opens_runs(report.report))
app.command(name="demo")(demo.demo)
app.add_typer(add.app, name="add")
app.add_typer(probe.app, name="probe")
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")
app.add_typer(listing.app, name="list")


def _show_version(show: bool) -> None:
    if show:
        typer.echo(f"polyloom {polyloom.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Adapt one multilingual Transformer to many languages and tasks.

    polyloom demo shows all of it in five minutes; polyloom list recipes shows where to start.
    """


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    # Our warnings are messages for users; those of others keep the place that they are about.
    ours = issubclass(category, PolyloomWarning)
    text = f"polyloom: {message}" if ours else f"{filename}:{lineno}: {category.__name__}: {message}"
    typer.echo(for_terminal(text), err=True)


def main() -> None:
    """Run the command line."""
    # Generated weights are large and short-lived. Without huge pages the kernel allocates them in pages of 4 KB, which
    # can take longer than computing them; torch reads this when it is imported.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    gc.set_threshold(100_000)  # importing Transformers makes a million objects that stay: a sixth of the start
    warnings.showwarning = _show_warning
    try:
        app(prog_name="polyloom")
    except PolyloomError as error:
        typer.echo(f"polyloom: {for_terminal(error)}", err=True)
        sys.exit(1)
    except OSError as error:
        # Nothing more can be written (full disk, reader of the pipe gone): keep Python from trying on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            typer.echo(f"polyloom: {for_terminal(error)}", err=True)
        sys.exit(1)
