"""Plan a recipe: parameters, memory and operations of its method (`costs`), and of its run (`schedule`)."""

from polyloom.workflows.planning.costs import BackboneFacts, Cost, Plan, plan
from polyloom.workflows.planning.schedule import DirectionPlan, RunPlan, Size, plan_run, read_sizes, tokens_per_second

__all__ = [
    "BackboneFacts",
    "Cost",
    "DirectionPlan",
    "Plan",
    "RunPlan",
    "Size",
    "plan",
    "plan_run",
    "read_sizes",
    "tokens_per_second",
]
