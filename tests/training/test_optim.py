"""Learning rates by groups of parameters."""

from polyloom.methods.full import FullConfig
from polyloom.model import Model
from polyloom.training.config import OptimConfig
from polyloom.training.optim import Optimizer
from tests.contracts.tiny import tiny_backbone


def test_a_part_of_a_group_has_its_own_rate_where_the_stage_trains_the_whole():
    model = Model(tiny_backbone("bert"), FullConfig(), languages=["en"], tasks={"pos": ["A", "B"]})
    (stage,) = model.method.stages()
    assert "backbone" in stage.trains
    model.set_stage(stage)
    optimizer = Optimizer(model, OptimConfig(lr=1e-3, groups={"backbone.norms": 1e-2, "backbone": 1e-4}))
    rates = {
        optimizer.names[p]: group["peak"]
        for part in optimizer._optimizers
        for group in part.param_groups
        for p in group["params"]
    }
    norms = {id(p) for p in model.group("backbone.norms")}
    for name, parameter in model.named_parameters():
        expected = 1e-2 if id(parameter) in norms else 1e-4 if name.startswith("backbone.") else 1e-3
        assert rates[name] == expected, name
