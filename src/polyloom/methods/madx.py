"""MAD-X (Pfeiffer et al. 2020): language adapters, invertible adapters, task adapters stacked on top.

Deviations: all languages' adapters are rows of one bank, so that one run can train them side by side. In
encoder-decoders the encoder uses the source's adapters, the decoder the target's; as in AdapterHub, the invertible
adapter acts on the encoder's embeddings and, inverted, before the output projection. `drop_last_layer` (MAD-X 2.0)
leaves the language adapter out of the last layer of each stack. The backbone's language-modelling head is trained
once, on the raw text of all languages, before their adapters, where AdapterHub trains a head with each language
adapter: so languages that are trained side by side share no trainable parameters.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polyloom.conditions import ConditionIds, Inventory
from polyloom.methods.base import AdapterConfig, AdapterMethod, Stage, check, check_positive
from polyloom.nn.blocks import BLOCKS, TensorSpecs, shapes_of
from polyloom.nn.tables import Bank, normal_init
from polyloom.weights import BackboneShape, Block, Site, Weights

INIT_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class StackedConfig(AdapterConfig):
    """Settings of methods that stack task adapters on language adapters."""

    adapter_size: int = 256
    """Bottleneck size of the language adapters. Lower it if there are many languages: each one stores an adapter."""
    task_adapter_size: int = 48
    """Bottleneck size of the task adapters."""
    invertible: bool = True
    """Whether to add an invertible adapter to the embeddings. Set it to false if the backbone's width is not a
    multiple of 4."""
    drop_last_layer: bool = False
    """Whether to leave the language adapter out of the last layer of each stack (MAD-X 2.0). Try it for zero-shot
    transfer."""
    language_adapters: bool = True
    """Whether there are language adapters. false is the ablation -LAD of the MAD-X paper."""
    train_head: bool = True
    """Whether to train the backbone's language-modelling head in a stage of its own, before the language adapters.
    Set it to false if the head already knows the languages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "task_adapter_size")


@dataclass(frozen=True, kw_only=True)
class MadXConfig(StackedConfig):
    """Settings of MAD-X."""

    name: ClassVar[str] = "madx"


class StackedMethod(AdapterMethod):
    """Base class of methods that stack task adapters on language-dependent adapters; subclasses choose their keys."""

    preferred = ("norm", "layer")
    keyed_by: ClassVar[str]
    config: StackedConfig

    def __init__(self, config: StackedConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        # MAD-X 2.0 leaves the language adapter out of the last layer of each stack.
        last = {stack: max(site.layer for site in shape.sites if site.stack == stack) for stack in shape.stacks}
        self.language_sites = tuple(
            site for site in shape.sites if not (config.drop_last_layer and site.layer == last[site.stack])
        )
        num_keys, num_sites = self.num_keys(), len(self.language_sites)
        if size := self.stored_language_size():
            self.language_adapters = stacked_bank(self.keyed_by, num_keys, num_sites, self.block_tensors(size))
        if config.invertible:
            self.invertible_adapters = stacked_bank(self.keyed_by, num_keys, 1, BLOCKS["invertible"].tensors(shape, 0))
        if self.labelled:
            self.task_adapters = self.build_task_adapters()

    def add_task(self, name: str, *, labels: int | None = None, like: str | None = None) -> None:
        """Add a task; the first with labels brings the task adapters."""
        first = not self.labelled
        super().add_task(name, labels=labels, like=like)
        if first and self.labelled:
            self.task_adapters = self.build_task_adapters()

    def build_task_adapters(self) -> Bank:
        """Build the task adapters; those of raw text have no effect."""
        tensors = self.block_tensors(self.config.task_adapter_size)
        return self.pass_raw_text_through(stacked_bank("task", len(self.tasks), len(self.shape.sites), tensors))

    @torch.no_grad()
    def pass_raw_text_through(self, bank: Bank) -> Bank:
        """Set the task adapters of raw text to have no effect: language adapters are trained without task adapters."""
        specs = self.block_tensors(self.config.task_adapter_size)
        can_pass = not self.raw_text or any(spec.neutral is not None for spec in specs.values())
        check(
            self.config,
            can_pass,
            f"method.block: a {self.config.block} block always has an effect, also before it "
            "is trained, so language adapters cannot be trained below it. Choose another block, or lang-adapters.",
        )
        for task in self.raw_text:
            first = self.tasks.row(task) * bank.rows_per_key  # BAD-X has a row for each pair of a task
            for name, spec in specs.items():
                if spec.neutral is not None:
                    bank.get_parameter(name)[first : first + bank.rows_per_key] = spec.neutral
        return bank

    def task_rows(self, ids: ConditionIds) -> Tensor:
        """Return the row of the task adapter of each condition."""
        return ids.task_K

    def num_keys(self) -> int:
        """Count the language-dependent adapters."""
        return len(self.languages)

    def keys(self, ids: ConditionIds, sites: tuple[Site, ...]) -> Tensor:
        """Return the row of the language-dependent adapter per condition and site ``[K, S]``."""
        return self.stack_languages(ids, sites)

    def forward(self, ids: ConditionIds) -> Weights:
        """Look up the language adapter, which is applied first, and the task adapter of every condition and site."""
        blocks = self.language_blocks(ids)
        if self.labelled:
            rows_KS = self.task_rows(ids)[:, None].expand(-1, len(self.shape.sites))
            blocks.append(self.block(self.task_adapters(rows_KS)))
        if self.config.invertible:
            blocks.append(self._invertible(ids))
        return Weights(tuple(blocks))

    def language_blocks(self, ids: ConditionIds) -> list[Block]:
        """Look up the language adapters of every condition and site, if there are any."""
        if not self.stored_language_size():
            return []
        tensors = self.language_adapters(self.keys(ids, self.language_sites))
        return [self.block(tensors, self.language_sites)]

    def stored_language_size(self) -> int:
        """Return the bottleneck size of the stored language adapters; 0 if there are none."""
        return self.config.adapter_size if self.config.language_adapters else 0

    def _invertible(self, ids: ConditionIds) -> Block:
        # One adapter per language, not per stack: encoder and decoder look theirs up in the same bank, which has one
        # site. So its rows are looked up for K · S keys and laid out as [K, S, ...] afterwards.
        sites = tuple(Site(stack, 0) for stack in self.shape.stacks)
        keys_KS = self.keys(ids, sites)
        rows = self.invertible_adapters(keys_KS.reshape(-1, 1))
        tensors = {name: t.squeeze(1).unflatten(0, (-1, len(sites))) for name, t in rows.items()}
        return Block("invertible", "embedding", sites, tensors)

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages: head and language adapters on raw text, then task adapters with all of these frozen."""
        config = self.config
        used = {"language_adapters": config.language_adapters, "invertible_adapters": config.invertible}
        languages = tuple(name for name in used if used[name])
        stages = [Stage("head", ("backbone.head",), tasks="raw-text")] if languages and config.train_head else []
        stages += [Stage("languages", languages, tasks="raw-text")] if languages else []
        return (*stages, Stage("tasks", ("task_adapters", "heads"), tasks="labelled"))


def stacked_bank(keyed_by: str, num_rows: int, num_sites: int, tensors: TensorSpecs) -> Bank:
    """Build a bank of adapters that begin near the identity."""
    init = normal_init(INIT_STD, tensors)
    return Bank(keyed_by, num_rows, num_sites=num_sites, shapes=shapes_of(tensors), init=init)


class MadX(StackedMethod):
    """A method with one language adapter per language, and task adapters stacked on top."""

    config_type = MadXConfig
    paper = "Pfeiffer et al. 2020, MAD-X"
    summary = "language and invertible adapters per language, task adapters stacked on top"
    keyed_by = "language"
    decoder_depends_on = ("task", "target")
