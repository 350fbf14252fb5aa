"""The baselines without adapters: fine-tune everything (`full`), or a dense translation model (`dense`)."""

from dataclasses import dataclass
from typing import ClassVar

from polyloom.conditions import ConditionIds
from polyloom.methods.base import Method, MethodConfig, Stage
from polyloom.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FullConfig(MethodConfig):
    """Nothing to set."""

    name: ClassVar[str] = "full"


@dataclass(frozen=True, kw_only=True)
class DenseConfig(MethodConfig):
    """Nothing to set."""

    name: ClassVar[str] = "dense"


class Full(Method):
    """No weights of its own; the whole backbone learns."""

    config_type: ClassVar[type[MethodConfig]] = FullConfig
    paper = "Devlin et al. 2019 (baseline)"
    summary = "no adapters: fine-tune the whole backbone"
    conditioned_on = ()

    def forward(self, ids: ConditionIds) -> Weights:  # noqa: ARG002
        """Nothing to add."""
        return Weights()

    def stages(self) -> tuple[Stage, ...]:
        """Everything at once."""
        return (Stage("joint", ("backbone", "heads")),)


class Dense(Full):
    """The same for translation: languages are told by tokens alone."""

    config_type = DenseConfig
    paper = "Johnson et al. 2017; Baziotis et al. 2022 (baseline)"
    summary = "no adapters: one translation model, told the target language by a token"
