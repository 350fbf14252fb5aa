"""What a recipe costs before anything is spent: parameters (`costs`), and the run itself (`schedule`)."""

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
