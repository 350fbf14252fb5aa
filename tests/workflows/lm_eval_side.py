"""Evaluate a run with lm-eval, in a process of its own; test_lm_eval.py reads the JSON that is printed last.

python lm_eval_side.py RUN FOLDER_WITH_TASKS PAIRS
"""

import io
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import partialmethod
from types import SimpleNamespace
from typing import Any
from unittest import mock

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from polyloom.cli import main as polyloom
from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.tasks.chat import Chat
from polyloom.workflows.lm_eval import PolyloomLM, _checked


def request(task: str, *args: Any) -> Instance:
    return Instance("loglikelihood", {}, args, 0, (task, 0, 1))


def message_of(call: Callable[[], object]) -> str:
    try:
        call()
    except PolyloomError as error:
        return str(error)
    return "no error"


def table(run: str, tasks: str) -> str:
    """Run the command; return what it prints. lm-eval's own 13,000 tasks, which take half a minute, are not listed."""
    arguments = ["--tasks", "choices_aa", "--include_path", tasks, "--model_args", f"run={run},choices_aa=lm/aa"]
    printed = io.StringIO()
    argv = mock.patch.object(sys, "argv", ["polyloom", "lm-eval", *arguments])
    few = mock.patch.object(TaskManager, "__init__", partialmethod(TaskManager.__init__, include_defaults=False))
    with argv, few, redirect_stdout(printed), suppress(SystemExit):
        polyloom()
    return printed.getvalue()


def main(run: str, tasks: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    conditions = {f"{kind}_{x}": f"lm/{x}" for kind in ("rolling", "writing") for x in ("aa", "bb")}
    lm = PolyloomLM(run, batch_size=1, **conditions, **{"choices_aa": "choice/aa", "*oices_bb": "choice/bb"})
    names, batches = [*conditions, "choices_aa", "choices_bb"], []
    options = {"tasks": names, "task_manager": TaskManager(include_path=tasks, include_defaults=False)}
    with mock.patch.object(lm, "_score_batch", side_effect=lm._score_batch) as scoring:
        found = lm_eval.simple_evaluate(lm, log_samples=True, bootstrap_iters=0, **options)
        batches = [{str(row.condition) for row in call.args[0]} for call in scoring.call_args_list]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        scores = lm.loglikelihood([request(f"rolling_{x}", *pair) for pair in pairs for x in ("aa", "bb")])
    both = PolyloomLM(run, **{"*_aa": "lm/aa", "x_*": "lm/bb"})
    chat: Any = SimpleNamespace(task=lambda _: Chat, method=mock.Mock())
    errors = {
        "conversation": lambda: _checked(Condition("chat", "aa"), mock.Mock(model=chat)),
        "unknown task": lambda: lm.loglikelihood([request("choices_aa", "a", "b"), request("xnli_sw", "a", "b")]),
        "no task": lambda: lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("a",), 0)]),
        "two conditions": lambda: both.generate_until([request("x_aa", "a", {})]),
        "unknown language": lambda: PolyloomLM(run, xnli_sw="lm/sw"),
        "cache": lambda: lm_eval.simple_evaluate(lm, use_cache=f"{tasks}/cache", **options),
        "empty continuation": lambda: lm.loglikelihood([request("choices_aa", "ba", "")]),
        "long continuation": lambda: lm.loglikelihood([request("choices_aa", "ba", 90 * " ba")]),
    }
    return {
        "results": found["results"],
        "samples": {name: [(s["doc"], s["resps"]) for s in some] for name, some in found["samples"].items()},
        "scores": scores,
        "warnings": [str(warning.message) for warning in warned],
        "batches": [sorted(batch) for batch in batches],
        "table": table(run, tasks),
        "errors": {name: message_of(call) for name, call in errors.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
