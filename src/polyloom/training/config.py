"""Settings of a run, and learning-rate schedules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from polyloom.ranges import Count, NotNegative, Positive, Share

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
        max_grad_norm: Largest norm of the gradient; 0 for any.
    """

    lr: Positive = 1e-4
    groups: Mapping[str, Positive] = field(default_factory=dict)
    schedule: Literal["constant", "linear", "inverse-sqrt"] = "linear"
    warmup_steps: Annotated[int, Ge(0)] = 0
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    max_grad_norm: NotNegative = 1.0

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
        pack_sequences: Concatenate lines of raw text into rows of `max_length` tokens: more text, no padding.
        mlm_candidates: What a masked token is chosen from: the ``full`` vocabulary, or the tokens of its dataset's own
            ``corpus``, which is far faster where the vocabulary costs more than the layers. Perplexities are
            over all in any case.
        grad_accum_steps: Number of micro-batches of a step, short rows first: saves memory and padding.
        precision: ``bf16`` for autocast.
        dropout: Whether the backbone's own dropout acts.
        gradient_checkpointing: Recompute layers in the backward pass instead of storing them.
        label_smoothing: Of the loss.
        evaluate_every: Steps between validations; only at the end of a stage by default.
        save_every: Steps between checkpoints; at validations and at the end of a stage in any case.
        keep_last: How many of the newest checkpoints are kept, beside the best; more to average (`polyloom average`).
        seed: Of everything random.
        strategy: How several processes share the work.
    """

    steps: Count | None = None
    rows_per_batch: Count | None = None
    tokens_per_batch: Count | None = None
    max_length: Count | None = None
    pack_sequences: bool = False
    mlm_candidates: Literal["full", "corpus"] = "full"
    grad_accum_steps: Count = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    dropout: bool = True
    gradient_checkpointing: bool = False
    label_smoothing: Share = 0.0
    evaluate_every: Count | None = None
    save_every: Count | None = None
    keep_last: Count = 2
    seed: Annotated[int, Ge(0)] = 0
    strategy: Strategy = "ddp"
