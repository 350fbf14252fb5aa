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
    """Settings of the optimizer, AdamW.

    Attributes:
        lr: Peak learning rate. Defaults to 1e-4. Lower it if the loss jumps or becomes NaN.
        groups: Peak learning rates of groups of parameters that differ from `lr`, such as ``{heads: 1e-3}``. Defaults
            to none. ``polyloom train`` prints the groups of a method before the first step.
        schedule: Learning rate after the warm-up: ``linear`` (default) falls to 0 at the last step, ``inverse-sqrt``
            falls with the square root of the step, as is usual in translation, and ``constant`` stays at the peak.
        warmup_steps: Number of steps in which the learning rate rises to its peak. Defaults to 0. Raise it if the loss
            jumps or becomes NaN in the first steps.
        betas: Adam's exponential decay rates. Defaults to (0.9, 0.999); (0.9, 0.98) is usual in translation.
        eps: Term that Adam adds to the denominator for numerical stability. Defaults to 1e-8.
        weight_decay: Weight decay of AdamW. Defaults to 0.
        max_grad_norm: Norm that the gradient is clipped to. Defaults to 1; 0 turns clipping off.
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
        """Return the factor of the peak learning rate at a step, counted from 0, of `steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "linear":
            return max(steps - step, 0) / max(steps - self.warmup_steps, 1)
        if self.schedule == "inverse-sqrt":
            return float((max(self.warmup_steps, 1) / (step + 1)) ** 0.5)
        return 1.0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of training.

    Attributes:
        steps: Number of optimizer steps of a stage. Required for training, unless `epochs` is given.
        epochs: Number of epochs of a stage, instead of `steps`: as many steps as that many passes over all its datasets
            together take, whatever the share of each. Defaults to none.
        rows_per_batch: Number of examples in a batch. Defaults to 32 if `tokens_per_batch` is not given.
        tokens_per_batch: Number of tokens in a batch, instead of `rows_per_batch`. Choose it where lengths of examples
            differ much, as in translation.
        max_length: Maximum number of tokens of an example; longer ones are cut. Defaults to the backbone's maximum.
        pack_sequences: Whether lines of raw text are concatenated into examples of `max_length` tokens. Defaults to
            False. Turn it on to see more text per step without padding.
        mlm_candidates: Candidates that a masked token is predicted among: the ``full`` vocabulary (default), or the
            tokens that occur in its dataset (``corpus``), which is much faster if the vocabulary is large and the
            backbone small. Perplexities are always over the full vocabulary.
        grad_accum_steps: Number of micro-batches of a step. Defaults to 1. Raise it if a batch does not fit into
            memory. Examples of similar length share a micro-batch, so it also saves padding.
        precision: ``fp32`` (default), or ``bf16`` for mixed precision by autocast.
        dropout: Whether the backbone's dropout is active. Defaults to True.
        gradient_checkpointing: Whether layers are recomputed in the backward pass, which saves memory and costs time.
            Defaults to False.
        label_smoothing: Label smoothing of the loss, from 0 to below 1. Defaults to 0; 0.1 is usual in translation.
        evaluate_every: Number of steps between validations. By default there is one, at the end of a stage.
        save_every: Number of steps between checkpoints. By default one is written at each validation and at the end
            of a stage. Set it to average checkpoints of equal distance (``polyloom average``).
        save_minutes: Number of minutes after which a checkpoint is written if there was none, so that no more is lost
            when the process is killed. Defaults to 15; null turns it off.
        keep_last: Number of newest checkpoints that are kept, in addition to the best one. Defaults to 2. Raise it to
            average checkpoints (``polyloom average``). Of checkpoints by `save_minutes`, at most the two newest are
            kept, and they do not count.
        read_ahead: Number of steps whose batches are made in advance, in another thread. Defaults to 2.
        seed: Seed of the order of examples, masking, dropout and initialisation. Defaults to 0.
        strategy: How several processes share the work: ``ddp`` (default) copies the model to each process, ``fsdp``
            shards it, except for what the method learns on a frozen backbone. Choose ``fsdp`` if the model does not fit
            into the memory of one device.
    """

    steps: Count | None = None
    epochs: Positive | None = None
    rows_per_batch: Rows | None = None
    tokens_per_batch: Tokens | None = None
    max_length: Length | None = None
    pack_sequences: bool = False
    mlm_candidates: Literal["full", "corpus"] = "full"
    grad_accum_steps: Count = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    dropout: bool = True
    gradient_checkpointing: bool = False
    label_smoothing: Share = 0.0
    evaluate_every: Count | None = None
    save_every: Count | None = None
    save_minutes: Positive | None = 15.0
    keep_last: Count = 2
    read_ahead: Natural = 2
    seed: Seed = 0
    strategy: Strategy = "ddp"

    def __post_init__(self) -> None:
        if self.steps and self.epochs:
            raise ConfigError("train", ["train.epochs: set either this or train.steps."])
