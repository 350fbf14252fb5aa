"""``polyloom lm-eval``: EleutherAI's lm-eval with a run."""

import sys
from importlib.util import find_spec

import typer

from polyloom.errors import PolyloomError


def lm_eval(context: typer.Context) -> None:
    """Run EleutherAI's lm-eval; all options are its own. --model_args names the run and the condition of each task.

    Example: polyloom lm-eval --model_args run=runs/languages,xnli_sw=lm/sw,xnli_tr=lm/tr --tasks xnli_sw,xnli_tr
    """
    if find_spec("lm_eval") is None:
        raise PolyloomError("lm-eval: the package is not installed. pip install 'polyloom[lm-eval]'")
    from lm_eval.__main__ import cli_evaluate  # noqa: PLC0415 - an extra

    import polyloom.workflows.lm_eval  # noqa: F401, PLC0415 - registers the model

    sys.argv = ["lm-eval", "run", "--model", "polyloom", *context.args]
    cli_evaluate()
