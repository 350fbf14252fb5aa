"""How large generated weights are before and after training: ``python experiments/magnitudes.py RUN...``.

The root of the mean square of all down- and up-projections that a run's hypernetwork generates from English into every
other language. Results are JSON in docs/results/magnitudes, one file a run; what has one is not measured again.
"""

import torch
from finished import look_into_runs
from translations import ENGLISH

from polyloom.conditions import Condition
from polyloom.methods import Method
from polyloom.workflows.run import Run
from polyloom.workflows.train import prepare_training


@torch.inference_mode()
def magnitude(method: Method) -> float:
    """Of the matrices of all adapters."""
    directions = [Condition("mt", ENGLISH, language) for language in method.languages if language != ENGLISH]
    made = method.weights(directions)
    matrices = [block.tensors[name].flatten() for block in made.blocks for name in ("down", "up")]
    return float(torch.cat(matrices).double().square().mean().sqrt())


def measure(run: Run) -> dict[str, float]:
    """Before, in a model made anew, and after."""
    return {"fresh": magnitude(prepare_training(run.recipe).model.method), "trained": magnitude(run.model.method)}


if __name__ == "__main__":
    look_into_runs(measure, "magnitudes", __doc__)
