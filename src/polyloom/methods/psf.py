"""Parameter space factorization (Ponti et al. 2021): classifiers generated from latent task and language vectors.

Each task and each language has a Gaussian latent vector, which is sampled in training (reparameterisation) and replaced
by its mean otherwise. A feed-forward generator computes weight and bias of the task's classifier from both. All
classifiers have as many rows as the largest label set; surplus labels have bias -inf, so that a batch may mix tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from polyloom.conditions import Condition, ConditionIds, Inventory
from polyloom.errors import ConditionError, ConfigError
from polyloom.methods.base import Method, MethodConfig, Stage, check
from polyloom.nn.blocks import Classifier
from polyloom.nn.tables import GrowingEmbedding, normal_init
from polyloom.weights import BackboneShape, Weights


@dataclass(frozen=True, kw_only=True)
class PsfConfig(MethodConfig):
    """Settings of parameter space factorization."""

    name: ClassVar[str] = "psf"
    latent_size: int = 100
    """Size of the latent vector of a task or a language."""
    hidden_size: int = 400
    """Size of the generator's hidden layer."""
    labelled: tuple[str, ...] | None = None
    """Conditions with labelled training data, such as ``pos/en``; others are predicted only if their task and their
    language occur there. Default: those of the recipe's training data; without a recipe, all."""

    def with_labelled(self, conditions: Sequence[Condition]) -> Self:
        """Set the conditions with labelled data, unless the recipe names them."""
        return self if self.labelled is not None else replace(self, labelled=tuple(map(str, conditions)))

    def continues(self, other: MethodConfig) -> bool:
        """Return whether all settings but the conditions with labelled data are equal."""
        return isinstance(other, PsfConfig) and replace(self, labelled=other.labelled) == other

    def __post_init__(self) -> None:
        for size in ("latent_size", "hidden_size"):
            check(self, getattr(self, size) >= 1, f"method.{size}: {getattr(self, size)} is not positive.")


class Psf(Method):
    """A method that generates task classifiers and fine-tunes the backbone."""

    config_type = PsfConfig
    paper = "Ponti et al. 2021, Parameter Space Factorization"
    summary = "classifier weights generated from latent task and language vectors; backbone fine-tuned"
    config: PsfConfig

    def __init__(self, config: PsfConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        unlabelled = [task for task, labels in self.labels.items() if not labels]
        if len(unlabelled) == len(self.labels):
            raise ConfigError(
                "method psf",
                [f"tasks: psf generates classifiers; {', '.join(unlabelled)} has no label set. Hint: `labels: 17`."],
            )
        # Means start small and variances narrow (log σ² = -4), so that what is sampled is close to its mean at first.
        size = config.latent_size
        self.latents = nn.ModuleDict()
        for kind, rows in (("task", len(self.tasks)), ("language", len(self.languages))):
            self.latents[f"{kind}_mean"] = GrowingEmbedding(kind, rows, size=size, init=normal_init(0.1))
            self.latents[f"{kind}_logvar"] = GrowingEmbedding(
                kind, rows, size=size, init=lambda _name, table: nn.init.constant_(table, -4.0)
            )
        self.num_labels = max(labels or 0 for labels in self.labels.values())
        self.generator = nn.Sequential(
            nn.Linear(2 * size, config.hidden_size),
            nn.ReLU(),
            nn.Linear(config.hidden_size, self.num_labels * (shape.width + 1)),
        )
        self._labelled = None if config.labelled is None else [Condition.parse(c) for c in config.labelled]

    def require_supported(self, condition: Condition) -> None:
        """Raise an error unless task and language both have labelled data; otherwise their latents are untrained."""
        super().require_supported(condition)
        if not self.labels[condition.task]:
            raise ConditionError(
                f"condition {condition}: psf generates classifiers; {condition.task} has no label set."
            )
        if self._labelled is None:
            return
        for kind, name, labelled in (
            ("task", condition.task, {c.task for c in self._labelled}),
            ("language", condition.source, {c.source for c in self._labelled}),
        ):
            if name not in labelled:
                raise ConditionError(
                    f"condition {condition}: psf cannot support a {kind} without any labelled data, and {name!r} has "
                    f"none. With labelled data: {', '.join(sorted(labelled))}. Use hyperx or madx for such languages."
                )

    def forward(self, ids: ConditionIds) -> Weights:
        """Generate weight and bias of each condition's classifier."""
        vectors_KE = torch.cat([self._sample("task", ids.task_K), self._sample("language", ids.source_K)], dim=-1)
        # D weights and a bias for every label, at the only site, the head: [K, 1, labels, D + 1].
        generated = self.generator(vectors_KE).unflatten(-1, (1, self.num_labels, self.shape.width + 1))

        # A task with fewer labels than the largest gets a bias of minus infinity for the surplus ones.
        counts = torch.tensor([labels or 0 for labels in self.labels.values()], device=generated.device)
        absent = torch.arange(self.num_labels, device=generated.device) >= counts[ids.task_K][:, None]
        return Weights((Classifier().make(generated, absent),))

    def _sample(self, kind: str, rows_K: Tensor) -> Tensor:
        """Sample latent vectors by reparameterisation, ``μ + ε·exp(½ log σ²)``; outside of training they are μ."""
        mean: Tensor = self.latents[f"{kind}_mean"](rows_K)
        if not self.training:
            return mean
        return mean + torch.randn_like(mean) * torch.exp(0.5 * self.latents[f"{kind}_logvar"](rows_K))

    def penalty(self, ids: ConditionIds) -> Tensor:
        """Compute the KL divergence of the batch's latent vectors from a standard normal."""
        total = torch.zeros((), device=ids.task_K.device)
        for kind, rows_K in (("task", ids.task_K), ("language", ids.source_K)):
            # KL(N(μ, σ²) ‖ N(0, 1)) = ½ Σ (μ² + σ² − 1 − log σ²), the mean over the conditions.
            mean, logvar = self.latents[f"{kind}_mean"](rows_K), self.latents[f"{kind}_logvar"](rows_K)
            total = total + 0.5 * (mean**2 + logvar.exp() - 1.0 - logvar).sum(-1).mean()
        return total

    def add_task(self, name: str, *, labels: int | None = None, like: str | None = None) -> None:
        """Add a task with at most as many labels as the largest known one."""
        if labels and labels > self.num_labels:
            raise ConditionError(f"task {name!r}: {labels} labels, but this generator has at most {self.num_labels}.")
        super().add_task(name, labels=labels, like=like)

    def output_layer(self) -> nn.Module:
        """Return the linear layer that outputs weight and bias."""
        return self.generator[-1]

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage that trains latents, generator and backbone."""
        return (Stage("joint", ("latents", "generator", "backbone"), tasks="labelled"),)
