"""Options that several commands have."""

from typing import Annotated

import typer

Checkpoint = Annotated[str | None, typer.Option(metavar="step-…", help="Checkpoint of the run. Default: the best one.")]
