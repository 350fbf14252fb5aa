"""A backbone, a method and task heads, put together: rows with conditions in, losses, answers or text out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polyloom.backbones import Backbone
from polyloom.backbones.decoding import Decoding, ForcedPrefix, LengthLimit
from polyloom.conditions import Condition, ConditionIds, Inventory
from polyloom.errors import BackboneError, ConditionError, RowError, suggest
from polyloom.methods import Method, MethodConfig, build_method
from polyloom.methods.base import Stage
from polyloom.nn.blocks import BLOCKS
from polyloom.tasks import TASKS, Labels, TaskConfig, build_task, task_config
from polyloom.tasks.base import HeadInputs, Task
from polyloom.tasks.batch import Batch
from polyloom.weights import Weights

Conditions = Sequence[Condition | str] | ConditionIds


class Model(nn.Module):
    """One backbone with one method.

    Args:
        backbone: The model whose sites listen.
        method: Settings of the method, or one that is built already.
        languages: Languages it is built for; more can be added later.
        tasks: Tasks by name, each with its label set or its settings (`Task.Config`). A mere number of labels builds
            no head: enough to plan, or to use the weights for something else.
        directions: Pairs, for methods that store something per pair: ``en/tr``, ``en/*``, ``*/en``; from the
            first language to every other by default.
    """

    def __init__(
        self,
        backbone: Backbone,
        method: MethodConfig | Method,
        *,
        languages: Iterable[str],
        tasks: Mapping[str, Labels] | Iterable[str],
        directions: Iterable[str] | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        tasks = tasks if isinstance(tasks, Mapping) else dict.fromkeys(tasks)
        configs = {name: task_config(name, labels) for name, labels in tasks.items()}
        if isinstance(method, MethodConfig):
            inventory = inventory_of(languages, configs, directions)
            method = build_method(method, shape=backbone.shape, inventory=inventory)
        self.method = method
        self.heads = nn.ModuleDict(
            {
                name: build_task(name, config, width=backbone.shape.width)
                for name, config in configs.items()
                if config.label_names or (config.labels is None and name in TASKS and not TASKS[name].needs_labels)
            }
        )
        self._keep_trained_parts_exact()
        raw_text = [name for name, task in self.tasks.items() if task.raw_text]
        if raw_text and backbone.untrained:
            raise BackboneError(
                f"backbone: it comes without {', '.join(backbone.untrained[:4])}, so {raw_text[0]} would learn against "
                f"random numbers. Choose a backbone with a language-modelling head, or leave out {raw_text[0]}."
            )
        self.set_stage(0)

    def _keep_trained_parts_exact(self) -> None:
        """A backbone in bf16 is for freezing: updates of what learns would be lost in rounding."""
        trained = {group for stage in self.method.stages() for group in stage.trains}
        if self.backbone.model.dtype == torch.float32 or "backbone" not in {g.partition(".")[0] for g in trained}:
            return
        if "backbone" in trained:
            name = self.method.config.name
            raise BackboneError(f"backbone.dtype: {name} trains the backbone, which must be in fp32 for that.")
        for parameter in self.backbone.norm_parameters().values():
            parameter.data = parameter.data.float()

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks that it has heads for."""
        return {name: head for name, head in self.heads.items() if isinstance(head, Task)}

    def task(self, name: str) -> Task:
        """Return a task, or raise an error that names those with a head."""
        if name not in self.tasks:
            raise ConditionError(f"task {name!r}: this model has no head for it. {suggest(name, self.tasks)}")
        return self.tasks[name]

    def weights(self, rows: Conditions) -> Weights:
        """The weights of a batch, laid out for its rows."""
        ids = rows if isinstance(rows, ConditionIds) else self.method.encode(rows)
        made: Weights = self.method(ids)
        return made.for_rows(ids.rows_B)

    def forward(self, inputs: Mapping[str, Any], rows: Conditions, *, weights: Weights | None = None) -> Any:
        """Run the backbone with every row's own weights.

        Args:
            inputs: What the Transformers model takes.
            rows: One condition per row, or what `method.encode` made of them.
            weights: Ready weights for these rows, to save making them again.
        """
        weights = self.weights(rows) if weights is None else weights
        with self.backbone.using(weights, num_rows=_count(inputs, rows, weights)):
            return self.backbone(**inputs)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Sum of the loss over a batch, by task."""
        parts = self._states(batch)
        return {task: self.tasks[task].loss(states, batch.by_task[task].data) for task, states in parts}

    @torch.no_grad()
    def generate_ids(
        self, batch: Batch, *, eos_id: int, decoding: Decoding, weights: Weights | None = None
    ) -> list[list[int]]:
        """The text that the decoder of each row writes, as pieces, without what it began with.

        Args:
            batch: Its decoder inputs are what the decoders begin with.
            eos_id: The piece that ends a text.
            decoding: Settings of the search.
            weights: Ready weights for these rows.
        """
        prefix_BP = batch.inputs["decoder_input_ids"]
        limits_B = decoding.limits(batch.inputs["attention_mask"])
        ids_BT = self.generate(
            {**batch.inputs, "decoder_input_ids": prefix_BP[:, :1]},
            batch.conditions,
            weights=weights,
            num_beams=decoding.beams,
            length_penalty=decoding.length_penalty,
            do_sample=False,
            max_new_tokens=int(limits_B.max()) + prefix_BP.shape[1] - 1,
            decoder_start_token_id=prefix_BP[:, 0].tolist(),
            eos_token_id=eos_id,
            logits_processor=[LengthLimit(limits_B, prefix=prefix_BP.shape[1], eos_id=eos_id), ForcedPrefix(prefix_BP)],
        )
        written = ids_BT[:, prefix_BP.shape[1] :].tolist()
        return [ids[: ids.index(eos_id)] if eos_id in ids else ids for ids in written]

    @torch.no_grad()
    def predict(self, batch: Batch, *, confidence: bool = False) -> list[Any]:
        """Predict each example of a batch, in the order in which the examples were given.

        Args:
            batch: The batch.
            confidence: Whether to return pairs of prediction and probability.
        """
        predicted: dict[int, Any] = {}
        for name, states in self._states(batch):
            part, task = batch.by_task[name], self.tasks[name]
            predictions = task.decode(states, part.data)
            if confidence:
                predictions = list(zip(predictions, task.confidences(states, part.data, predictions), strict=True))
            predicted |= zip(part.positions, predictions, strict=True)
        return [predicted[position] for position in sorted(predicted)]

    def _states(self, batch: Batch) -> Iterator[tuple[str, HeadInputs]]:
        """One pass through the backbone for all rows, then what each task's head sees of it."""
        weights = self.weights(batch.conditions)
        with self.backbone.using(weights, num_rows=_count(batch.inputs, batch.conditions, weights)):
            hidden_BTD = self.backbone.hidden(**batch.inputs).float()  # heads learn in fp32
        for task, part in batch.by_task.items():
            yield task, self.head_inputs(hidden_BTD[part.rows], weights.take(part.rows))

    def head_inputs(self, hidden_BTD: Tensor, weights: Weights) -> HeadInputs:
        """Put together what a head reads of some rows: their last hidden states, and what their weights change."""
        generated = any(block.kind == "classifier" for block in weights.blocks)
        return HeadInputs(
            hidden_BTD,
            vocabulary=partial(self._vocabulary, weights=weights),
            classify=partial(classify, weights=weights) if generated else None,
        )

    def _vocabulary(
        self, hidden_ND: Tensor, row_N: Tensor, candidates_V: Tensor | None = None, *, weights: Weights
    ) -> Tensor:
        """Logits of single states, each a row of its own, with the inverse of what is invertible."""
        invertible = Weights(tuple(block for block in weights.blocks if block.kind == "invertible"))
        with self.backbone.using(invertible.for_rows(row_N), num_rows=len(row_N)):
            return self.backbone.vocabulary(hidden_ND[:, None].to(self.backbone.model.dtype), candidates_V)[:, 0]

    @torch.no_grad()
    def generate(
        self, inputs: Mapping[str, Any], rows: Conditions, *, weights: Weights | None = None, **options: Any
    ) -> Any:
        """Generate text with Transformers' `generate`; weights are made once for the whole batch.

        Args:
            inputs: Input ids and attention mask.
            rows: One condition per row.
            weights: Ready weights for these rows.
            **options: For `generate`, such as ``num_beams`` and ``max_new_tokens``.
        """
        weights = self.weights(rows) if weights is None else weights
        defaults = self.backbone.model.generation_config
        beams, returned = (
            int(options.get(key) or getattr(options.get("generation_config", defaults), key, None) or 1)
            for key in ("num_beams", "num_return_sequences")
        )
        with self.backbone.using(weights, num_rows=_count(inputs, rows, weights), expand=max(beams, returned)):
            return self.backbone.model.generate(**inputs, **options)

    def set_stage(self, stage: int | Stage) -> Stage:
        """Let exactly the groups of a stage learn; everything else is frozen."""
        stage = self.method.stages()[stage] if isinstance(stage, int) else stage
        self.requires_grad_(False)
        for group in stage.trains:
            for parameter in self.group(group):
                parameter.requires_grad_()
        return stage

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by group: the method's own, ``backbone`` and its norms, ``heads``."""
        return parameter_groups(self.method, self.backbone) | {"heads": list(self.heads.parameters())}

    def group(self, name: str) -> list[nn.Parameter]:
        """One of the groups, or a part of one.

        ``rows.language``: what each language has. ``heads.pos``: a single head. ``backbone.tokens``: embeddings
        """
        kind, _, part = name.partition(".")
        if name == "backbone.tokens":
            return [self.backbone.model.get_input_embeddings().weight]
        if kind == "rows":
            return [p for table in self.method.growing(part) if table.trainable for p in table.parameters()]
        if kind == "heads" and part:
            return list(self.task(part).parameters())
        return self.groups()[name]

    def add_task(self, name: str, labels: Sequence[str], *, like: str | None = None) -> None:
        """Add a task with a head of its own."""
        self.method.add_task(name, labels=len(labels) or None, like=like)
        self.heads[name] = build_task(name, labels, width=self.backbone.shape.width)


def inventory_of(
    languages: Iterable[str], tasks: Mapping[str, TaskConfig], directions: Iterable[str] | None = None
) -> Inventory:
    """Build the inventory of languages, tasks and directions that a method is built for."""
    sizes = {name: config.num_labels for name, config in tasks.items()}
    raw_text = [name for name in tasks if name in TASKS and TASKS[name].raw_text]
    return Inventory.of(languages, sizes, directions, raw_text)


def parameter_groups(method: Method, backbone: Backbone) -> dict[str, list[nn.Parameter]]:
    """Everything that a stage can name, except task heads."""
    return method.groups() | {
        "backbone": list(backbone.parameters()),
        "backbone.norms": list(backbone.norm_parameters().values()),
    }


def supported_conditions(method: Method) -> list[Condition]:
    """All tasks in all languages; of translation, and where only pairs are served, in all directions."""
    pairs = [direction.split("/") for direction in method.directions]
    found = []
    for task in method.tasks:
        bilingual = task in TASKS and TASKS[task].bilingual
        alone = [] if bilingual else [Condition(task, language) for language in method.languages]
        directions = [Condition(task, source, target) for source, target in pairs]
        kept = [condition for condition in alone if method.supports(condition)]
        found += kept or [condition for condition in directions if method.supports(condition)]
    return found


def classify(hidden_BTD: Tensor, weights: Weights) -> Tensor:
    """Apply generated classifiers (psf), each row its own."""
    block = weights.block("classifier")
    return BLOCKS[block.kind].apply(hidden_BTD, hidden_BTD, block.by_site()[0], place=block.placement)


def _count(inputs: Mapping[str, Any], rows: Conditions, weights: Weights) -> int:
    """How many rows there are, by the inputs, by the conditions and by the weights alike."""
    batch = next(len(value) for value in inputs.values() if isinstance(value, Tensor))
    if isinstance(rows, ConditionIds):
        count, distinct = len(rows.rows_B), len(rows.task_K)
    else:
        count, distinct = len(rows), len(set(map(str, rows)))
    if batch != count:
        raise RowError(f"batch: {batch} rows of input, but {count} conditions. Give one condition per row.")
    for block in weights.blocks:
        for tensor in block.tensors.values():
            if len(tensor) != count and (len(tensor) != 1 or distinct > 1):
                raise RowError(f"weights: {len(tensor)} sets for {count} rows of {distinct} conditions.")
    return count
