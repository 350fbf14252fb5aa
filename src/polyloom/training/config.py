"""Settings of the optimizer and of training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from polyloom.errors import ConfigError
from polyloom.ranges import Count, Length, Natural, NotNegative, Positive, Rows, Seed, Share, Tokens

Strategy = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Settings of the optimizer, AdamW."""

    lr: Positive = 1e-4
    """Peak learning rate. Lower it if the loss jumps or becomes NaN."""
    groups: Mapping[str, Positive] = field(default_factory=dict)
    """Peak learning rates of groups of parameters that differ from `lr`, such as ``{heads: 1e-3}``. ``polyloom train``
    prints the groups of a method before the first step."""
    schedule: Literal["constant", "linear", "inverse-sqrt"] = "linear"
    """Learning rate after the warm-up: ``linear`` falls to 0 at the last step, ``inverse-sqrt`` falls with the square
    root of the step, as is usual in translation, and ``constant`` stays at the peak."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Number of steps in which the learning rate rises to its peak. Raise it if the loss jumps or becomes NaN in the
    first steps."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Adam's exponential decay rates; (0.9, 0.98) is usual in translation."""
    eps: Positive = 1e-8
    """Term that Adam adds to the denominator for numerical stability."""
    weight_decay: NotNegative = 0.0
    """Weight decay of AdamW."""
    max_grad_norm: NotNegative = 1.0
    """Norm that the gradient is clipped to; 0 turns clipping off."""

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the peak learning rate at a step, counted from 0, of `steps`."""
        # Steps are counted from 0, and the first one must already learn: the warm-up ends at 1 in its last step.
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "linear":
            return max(steps - step, 0) / max(steps - self.warmup_steps, 1)
        if self.schedule == "inverse-sqrt":  # Vaswani et al. 2017, section 5.3, scaled to 1 at the end of the warm-up
            return float((max(self.warmup_steps, 1) / (step + 1)) ** 0.5)
        return 1.0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of training."""

    steps: Count | None = None
    """Number of optimizer steps of a stage. Required for training, unless `epochs` is given."""
    epochs: Positive | None = None
    """Number of epochs of a stage, instead of `steps`: as many steps as that many passes over all its datasets together
    take, whatever the share of each."""
    rows_per_batch: Rows | None = None
    """Number of examples in a batch. Default: 32 if `tokens_per_batch` is not given."""
    tokens_per_batch: Tokens | None = None
    """Number of tokens in a batch, instead of `rows_per_batch`. Choose it where lengths of examples differ much, as in
    translation."""
    max_length: Length | None = None
    """Maximum number of tokens of an example; longer ones are cut. Default: the backbone's maximum."""
    pack_sequences: bool = False
    """Whether lines of raw text are concatenated into examples of `max_length` tokens. Turn it on to see more text per
    step without padding."""
    mlm_candidates: Literal["full", "corpus"] = "full"
    """Candidates that a masked token is predicted among: the ``full`` vocabulary, or the tokens that occur in its
    dataset (``corpus``), which is much faster if the vocabulary is large and the backbone small. Perplexities are
    always over the full vocabulary."""
    grad_accum_steps: Count = 1
    """Number of micro-batches of a step. Raise it if a batch does not fit into memory. Examples of similar length share
    a micro-batch, so it also saves padding."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """``fp32``, or ``bf16`` for mixed precision by autocast."""
    dropout: bool = True
    """Whether the backbone's dropout is active."""
    gradient_checkpointing: bool = False
    """Whether layers are recomputed in the backward pass, which saves memory and costs time."""
    label_smoothing: Share = 0.0
    """Label smoothing of the loss, from 0 to below 1; 0.1 is usual in translation."""
    evaluate_every: Count | None = None
    """Number of steps between validations. Default: one validation at the end of a stage."""
    save_every: Count | None = None
    """Number of steps between checkpoints. Default: one at each validation and at the end of a stage. Set it to average
    checkpoints of equal distance (``polyloom average``)."""
    save_minutes: Positive | None = 15.0
    """Number of minutes after which a checkpoint is written if there was none, so that no more is lost when the process
    is killed; null turns it off."""
    keep_last: Count = 2
    """Number of newest checkpoints that are kept, in addition to the best one. Raise it to average checkpoints
    (``polyloom average``). Of checkpoints by `save_minutes`, at most the two newest are kept, and they do not count."""
    read_ahead: Natural = 2
    """Number of steps whose batches are made in advance, in another thread."""
    seed: Seed = 0
    """Seed of the order of examples, masking, dropout and initialisation."""
    strategy: Strategy = "ddp"
    """How several processes share the work: ``ddp`` copies the model to each process, ``fsdp`` shards it, except for
    what the method learns on a frozen backbone. Choose ``fsdp`` if the model does not fit into the memory of one
    device."""

    def __post_init__(self) -> None:
        if self.steps and self.epochs:
            raise ConfigError("train", ["train.epochs: set either this or train.steps."])
