"""The baselines without adapters: full fine-tuning (`full`) and a dense translation model (`dense`)."""

from dataclasses import dataclass
from typing import ClassVar

from polyloom.conditions import ConditionIds
from polyloom.methods.base import Method, MethodConfig, Stage
from polyloom.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FullConfig(MethodConfig):
    """Settings of full fine-tuning."""

    name: ClassVar[str] = "full"
    raw_text_first: bool = False
    """Whether to train on raw text first and then on labelled data, instead of on both at once. True with raw text
    of the source or of the target language is the baseline MLM-SRC or MLM-TRG of the MAD-X paper."""


@dataclass(frozen=True, kw_only=True)
class DenseConfig(MethodConfig):
    """Settings of a method without adapters: none."""

    name: ClassVar[str] = "dense"


class Full(Method):
    """Full fine-tuning: the whole backbone is trainable and there are no adapters."""

    config_type: ClassVar[type[MethodConfig]] = FullConfig
    paper = "Devlin et al. 2019 (baseline)"
    summary = "no adapters: fine-tune the whole backbone"
    conditioned_on = ()

    def forward(self, ids: ConditionIds) -> Weights:  # noqa: ARG002
        """Return weights without blocks."""
        return Weights()

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage that trains the backbone and the heads, or one for raw text and one for labelled data."""
        if isinstance(self.config, FullConfig) and self.config.raw_text_first:
            return (
                Stage("text", ("backbone",), tasks="raw-text"),
                Stage("tasks", ("backbone", "heads"), tasks="labelled"),
            )
        return (Stage("joint", ("backbone", "heads")),)


class Dense(Full):
    """Full fine-tuning for translation: language tokens alone select the target language."""

    config_type = DenseConfig
    paper = "Johnson et al. 2017; Baziotis et al. 2022 (baseline)"
    summary = "no adapters: one translation model, which reads the target language from a token"
