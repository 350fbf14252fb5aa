"""Plan a recipe: the cost of its method (`costs`), the memory of a device (`memory`), and its run (`schedule`)."""

from polyloom.workflows.planning.costs import BackboneFacts, Cost, Plan, plan
from polyloom.workflows.planning.memory import DeviceMemory, plan_memory
from polyloom.workflows.planning.schedule import DirectionPlan, RunPlan, Size, plan_run, read_sizes, tokens_per_second

__all__ = [
    "BackboneFacts",
    "Cost",
    "DeviceMemory",
    "DirectionPlan",
    "Plan",
    "RunPlan",
    "Size",
    "plan",
    "plan_memory",
    "plan_run",
    "read_sizes",
    "tokens_per_second",
]
