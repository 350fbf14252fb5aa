"""Settings of a run, and learning-rate schedules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from polyloom.settings import Count, NotNegative, Positive, Share

Strategy = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How weights are updated.

    Attributes:
        lr: Peak learning rate.
        groups: Peak learning rates of single groups, such as ``heads``.
        schedule: What follows the warm-up.
        warmup_steps: Steps until the peak.
        betas: Of Adam.
        eps: Of Adam.
        weight_decay: Of AdamW.
        clip: Largest norm of the gradient; 0 for any.
    """

    lr: Positive = 1e-4
    groups: Mapping[str, Positive] = field(default_factory=dict)
    schedule: Literal["constant", "linear", "inverse-sqrt"] = "linear"
    warmup_steps: Annotated[int, Ge(0)] = 0
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    clip: NotNegative = 1.0

    def factor(self, step: int, steps: int) -> float:
        """What the peak learning rate is multiplied by at a step of `steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "linear":
            return max(steps - step, 0) / max(steps - self.warmup_steps, 1)
        if self.schedule == "inverse-sqrt":
            return float((max(self.warmup_steps, 1) / (step + 1)) ** 0.5)
        return 1.0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What a run consists of.

    Attributes:
        steps: Optimizer steps.
        rows_per_batch: Examples of a batch; 32 unless batches are made by tokens.
        tokens_per_batch: Tokens of a batch.
        max_length: Tokens of a row; what the backbone allows by default.
        fill: Let rows of raw text run on into the lines that follow, up to `max_length`: more text, no padding.
        vocabulary: What a masked piece is chosen from: ``full``, or the pieces of its cell's own ``corpus``, which is
            far faster where the vocabulary costs more than the layers. Perplexities are over all in any case.
        accumulate: In how many pieces a batch is worked off, short rows first: saves memory, and time lost to padding.
        precision: ``bf16`` for autocast.
        dropout: Whether the backbone's own dropout acts.
        gradient_checkpointing: Recompute layers in the backward pass instead of storing them.
        label_smoothing: Of the loss.
        evaluate_every: Steps between validations; only at the end of a stage by default.
        save_every: Steps between checkpoints; at validations and at the end of a stage in any case.
        keep: How many of the newest checkpoints are kept, beside the best; more to average (`polyloom average`).
        seed: Of everything random.
        strategy: How several processes share the work.
    """

    steps: Count | None = None
    rows_per_batch: Count | None = None
    tokens_per_batch: Count | None = None
    max_length: Count | None = None
    fill: bool = False
    vocabulary: Literal["full", "corpus"] = "full"
    accumulate: Count = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    dropout: bool = True
    gradient_checkpointing: bool = False
    label_smoothing: Share = 0.0
    evaluate_every: Count | None = None
    save_every: Count | None = None
    keep: Count = 2
    seed: Annotated[int, Ge(0)] = 0
    strategy: Strategy = "ddp"
