"""A model is a backbone, a method and task heads: from rows with conditions to losses, predictions or text."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polyloom.backbones import Backbone
from polyloom.backbones.decoding import Decoding, FiniteRows, ForcedPrefix, LengthLimit
from polyloom.conditions import Condition, ConditionIds, Inventory
from polyloom.errors import BackboneError, ConditionError, ConfigError, PredictionError, RowError, suggest
from polyloom.methods import Method, MethodConfig, build_method
from polyloom.methods.base import Stage
from polyloom.nn.blocks import BLOCKS
from polyloom.tasks import TASKS, Labels, TaskConfig, build_task, find_task, task_config
from polyloom.tasks.base import HeadInputs, Task
from polyloom.tasks.batch import Batch
from polyloom.weights import Weights

Conditions = Sequence[Condition | str] | ConditionIds


class Model(nn.Module):
    """A backbone with one method and the heads of tasks.

    A tied tensor is in `state_dict` once, so that safetensors and Hugging Face's Trainer can save it.

    Args:
        backbone: The Transformers model to adapt.
        method: Settings of the method, or a method that is built already, with its own languages and tasks.
        languages: Languages of the method; more can be added later.
        tasks: Tasks with their labels (names, or their number: then labels are called ``0``, ``1``, …) or with their
            settings (`Task.Config`). ``None`` for tasks without labels; a task with a label set then has weights, but
            no head.
        directions: Pairs, for methods that store weights per pair: ``en/tr``, ``en/*``, ``*/en``. Default: from the
            first language to every other.
    """

    def __init__(
        self,
        backbone: Backbone,
        method: MethodConfig | Method,
        *,
        languages: Iterable[str] = (),
        tasks: Mapping[str, Labels] | Iterable[str] = (),
        directions: Iterable[str] | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        configs = _task_configs(tasks if isinstance(tasks, Mapping) else dict.fromkeys(tasks))
        if isinstance(method, MethodConfig):
            inventory = inventory_of(languages, configs, directions)
            method = build_method(method, shape=backbone.shape, inventory=inventory)
        self.method = method

        # A task without names of its labels (only their number is known, for planning) has weights, but no head.
        self.heads = nn.ModuleDict(
            {
                name: build_task(name, config, width=backbone.shape.width)
                for name, config in configs.items()
                if config.label_names or (config.labels is None and not find_task(name).needs_labels)
            }
        )
        self.register_state_dict_post_hook(_drop_tied)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_restore_tied)  # type: ignore[no-untyped-call]

        # Small updates are lost in bf16: 1 + 0.003 is 1. Parts of a backbone that are trained become fp32.
        stage_groups = {group for stage in self.method.stages() for group in stage.trains}
        if backbone.model.dtype != torch.float32:
            if "backbone" in stage_groups:
                name = self.method.config.name
                raise BackboneError(f"backbone.dtype: {name} trains the backbone, which must be in fp32 for that.")
            parts = parameter_groups(self.method, backbone)
            for group in stage_groups:
                if group.startswith("backbone."):
                    for parameter in parts[group]:
                        parameter.data = parameter.data.float()

        raw_text = [name for name, task in self.tasks.items() if task.raw_text]
        if raw_text and backbone.untrained:
            raise BackboneError(
                f"backbone: it comes without {', '.join(backbone.untrained[:4])}, so {raw_text[0]} would train with a "
                f"random head. Choose a backbone with a language-modelling head, or leave out {raw_text[0]}."
            )
        self.set_stage(0)

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks that the model has heads for, by name."""
        return {name: head for name, head in self.heads.items() if isinstance(head, Task)}

    def task(self, name: str) -> Task:
        """Return a task, or raise an error that lists the known ones."""
        if name not in self.tasks:
            raise ConditionError(f"task {name!r}: this model has no head for it. {suggest(name, self.tasks)}")
        return self.tasks[name]

    def weights(self, rows: Conditions) -> Weights:
        """Compute the weights of a batch, one set per row."""
        ids = rows if isinstance(rows, ConditionIds) else self.method.encode(rows)
        return self.method.weights_of(ids).for_rows(ids.rows_B)

    def forward(self, inputs: Mapping[str, Any], rows: Conditions, *, weights: Weights | None = None) -> Any:
        """Run the backbone, each row with the weights of its condition.

        Returns the backbone's output: its ``logits`` are those of the vocabulary. `task_logits` gives those of a task.

        Args:
            inputs: Inputs of the Transformers model.
            rows: One condition per row, or the result of `method.encode`.
            weights: Weights of these rows, if they are known already.
        """
        weights = self.weights(rows) if weights is None else weights
        with self.backbone.using(weights, num_rows=_count(inputs, rows, weights)):
            return self.backbone(**inputs)

    def task_logits(self, inputs: Mapping[str, Any], rows: Sequence[Condition | str]) -> Tensor:
        """Compute the logits of a task's classifier for every token, ``[B, T, labels]``.

        Args:
            inputs: Inputs of the Transformers model.
            rows: One condition per row, all of the same task.
        """
        name, *others = dict.fromkeys(Condition.parse(row).task for row in rows)
        if others:
            raise RowError(f"task_logits: rows of {name} and {', '.join(others)}. Give rows of one task at a time.")
        task, weights = self.task(name), self.weights(rows)
        with self.backbone.using(weights, num_rows=_count(inputs, rows, weights)):
            hidden_BTD = self.backbone.hidden(**inputs).float()
        # A generated classifier has as many outputs as the task with the most labels; surplus ones are minus infinity.
        if any(block.kind == "classifier" for block in weights.blocks):
            return classify(hidden_BTD, weights)[..., : len(task.labels)]
        if not isinstance(classifier := getattr(task, "classifier", None), nn.Module):
            raise ConditionError(f"task {name!r}: its head is not a classifier of tokens.")
        logits_BTE: Tensor = classifier(hidden_BTD)
        return logits_BTE

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the sum of the loss over a batch, by task: one forward pass for all rows, then each task's head."""
        weights, hidden_BTD = self._hidden(batch)
        losses = {}
        for name, task_batch in batch.by_task.items():
            rows = task_batch.rows
            states = self.head_inputs(hidden_BTD[rows], weights.slice_rows(rows))
            losses[name] = self.tasks[name].loss(states, task_batch)
        return losses

    @torch.no_grad()
    def generate_ids(
        self,
        batch: Batch,
        *,
        eos_id: int,
        decoding: Decoding,
        weights: Weights | None = None,
        finite: FiniteRows | None = None,
    ) -> list[list[int]]:
        """Generate the text of each row as tokens, without the decoder's prefix.

        Args:
            batch: A batch whose decoder inputs are the prefixes.
            eos_id: The token that ends a text.
            decoding: Settings of the search.
            weights: Weights of these rows, if they are known already.
            finite: Notices rows whose scores are NaN; their texts mean nothing.
        """
        # Transformers decodes from one start token per row; the rest of a prefix is forced, token by token. Each row
        # has a length limit of its own; `max_new_tokens` is only the end of the longest.
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
            logits_processor=[
                *([finite] if finite else []),
                LengthLimit(limits_B, prefix=prefix_BP.shape[1], eos_id=eos_id),
                ForcedPrefix(prefix_BP),
            ],
        )
        texts = ids_BT[:, prefix_BP.shape[1] :].tolist()
        return [ids[: ids.index(eos_id)] if eos_id in ids else ids for ids in texts]

    @torch.no_grad()
    def predict(self, batch: Batch, *, confidences: bool = False, weights: Weights | None = None) -> list[Any]:
        """Decode the prediction for each example of a batch, in the order of the examples of `make_batch`.

        The prediction for an example whose hidden states or classifier are not finite is a `PredictionError`.

        Args:
            batch: Examples of any tasks and conditions.
            confidences: Return pairs of the prediction and its confidence.
            weights: Weights of these rows, if they are known already.
        """
        weights, hidden_BTD = self._hidden(batch, weights)
        finite_B = _finite_rows(hidden_BTD, weights, batch)
        if not finite_B.all():  # one bad row must not fail the others: a parser refuses NaN
            hidden_BTD = hidden_BTD.masked_fill(~finite_B[:, None, None], 0.0)

        by_position: dict[int, Any] = {}
        for name, task_batch in batch.by_task.items():
            task, rows = self.tasks[name], task_batch.rows
            states = self.head_inputs(hidden_BTD[rows], weights.slice_rows(rows))
            predictions = task.decode(states, task_batch)
            if confidences:
                predictions = list(zip(predictions, task.confidences(states, task_batch, predictions), strict=True))
            for row in (~finite_B[rows]).nonzero()[:, 0].tolist():
                predictions[task_batch.examples[row]] = nonfinite_error(batch.conditions[rows.start + row])
            by_position |= zip(task_batch.positions, predictions, strict=True)
        return [by_position[position] for position in sorted(by_position)]

    def _hidden(self, batch: Batch, weights: Weights | None = None) -> tuple[Weights, Tensor]:
        """Run the backbone once for all rows; return the weights of the rows, and their last hidden states."""
        weights = self.weights(batch.conditions) if weights is None else weights
        with self.backbone.using(weights, num_rows=_count(batch.inputs, batch.conditions, weights)):
            return weights, self.backbone.hidden(**batch.inputs).float()  # heads are fp32

    def head_inputs(self, hidden_BTD: Tensor, weights: Weights) -> HeadInputs:
        """Build the inputs of a head: last hidden states, projection to the vocabulary, generated classifiers."""
        generated = any(block.kind == "classifier" for block in weights.blocks)
        return HeadInputs(
            hidden_BTD,
            vocabulary=partial(self._vocabulary, weights=weights),
            classify=partial(classify, weights=weights) if generated else None,
        )

    def _vocabulary(
        self, hidden_ND: Tensor, row_N: Tensor, candidates_V: Tensor | None = None, *, weights: Weights
    ) -> Tensor:
        """Compute vocabulary logits of single states, with the inverse of the invertible adapter of their rows."""
        invertible = Weights(tuple(block for block in weights.blocks if block.kind == "invertible"))
        with self.backbone.using(invertible.for_rows(row_N), num_rows=len(row_N)):
            return self.backbone.vocabulary(hidden_ND[:, None], candidates_V)[:, 0]

    @torch.no_grad()
    def generate(
        self, inputs: Mapping[str, Any], rows: Conditions, *, weights: Weights | None = None, **options: Any
    ) -> Any:
        """Generate text with Transformers' `generate`; weights are computed once for the whole batch.

        Args:
            inputs: Input ids and attention mask.
            rows: One condition per row.
            weights: Weights of these rows, if they are known already.
            **options: For `generate`, such as ``num_beams`` and ``max_new_tokens``.
        """
        weights = self.weights(rows) if weights is None else weights
        layout = self.backbone.lay_out(weights, num_rows=_count(inputs, rows, weights), search=True)

        # Transformers repeats each row as often as it has beams or samples; hooks must know how often.
        defaults = self.backbone.model.generation_config
        beams, returned = (
            int(options.get(key) or getattr(options.get("generation_config", defaults), key, None) or 1)
            for key in ("num_beams", "num_return_sequences")
        )
        with self.backbone.using_layout(layout, expand=max(beams, returned)):
            return self.backbone.model.generate(**inputs, **options)

    def stages(self) -> list[Stage]:
        """Return the stages of the method that train something: not every backbone has a head to train."""
        return stages_that_train(self.method, self.groups())

    def set_stage(self, stage: int | Stage) -> Stage:
        """Make exactly the groups of a stage trainable; everything else is frozen."""
        stage = (self.stages() or self.method.stages())[stage] if isinstance(stage, int) else stage
        self.requires_grad_(False)
        for group in stage.trains:
            for parameter in self.group(group):
                parameter.requires_grad_()
        return stage

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return all parameters by group: the method's, ``backbone`` and its parts, ``heads``."""
        return parameter_groups(self.method, self.backbone) | {"heads": list(self.heads.parameters())}

    def group(self, name: str) -> list[nn.Parameter]:
        """Return the parameters of a group or of a part of one.

        Parts: ``rows.language`` (the tables with one row per language), ``heads.pos`` (a single head) and
        ``backbone.tokens`` (the input embeddings).
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
        """Add a task with its own head."""
        self.method.add_task(name, labels=len(labels) or None, like=like)
        self.heads[name] = build_task(name, labels, width=self.backbone.shape.width)


def nonfinite_error(condition: Condition) -> PredictionError:
    """Build the error of a row whose output is NaN or infinite."""
    return PredictionError(
        f"{condition}: the output of the model is not finite (NaN). Its weights for this condition are damaged, or "
        "training diverged: choose an earlier checkpoint, or train again with a lower learning rate."
    )


def _finite_rows(hidden_BTD: Tensor, weights: Weights, batch: Batch) -> Tensor:
    """Return whether the hidden states of each row, without padding, and its generated classifier are finite."""
    # The hidden states of an encoder-decoder are the decoder's, whose length is not that of the attention mask.
    finite_BT = hidden_BTD.isfinite().all(-1)
    if "decoder_input_ids" not in batch.inputs:
        finite_BT = finite_BT | (batch.inputs["attention_mask"] == 0)
    finite_B = finite_BT.all(-1)
    for block in weights.blocks:
        if block.kind == "classifier":
            for name, tensor in block.tensors.items():
                finite_B = finite_B & BLOCKS[block.kind].finite(name, tensor).flatten(1).all(-1)
    return finite_B


def _task_configs(tasks: Mapping[str, Labels]) -> dict[str, TaskConfig]:
    """Build the settings of tasks; a number of labels means labels called ``0``, ``1``, …."""
    configs = {}
    for name, labels in tasks.items():
        if isinstance(labels, TaskConfig):
            configs[name] = labels
            continue
        if labels and not find_task(name).needs_labels:
            raise ConfigError("tasks", [f"tasks.{name}: has no labels. Write None instead of {labels!r}."])
        configs[name] = task_config(name, tuple(map(str, range(labels))) if isinstance(labels, int) else labels)
    return configs


def inventory_of(
    languages: Iterable[str], tasks: Mapping[str, TaskConfig], directions: Iterable[str] | None = None
) -> Inventory:
    """Build the inventory of languages, tasks and directions that a method is built for."""
    sizes = {name: config.num_labels for name, config in tasks.items()}
    raw_text = [name for name in tasks if name in TASKS and TASKS[name].raw_text]
    return Inventory.of(languages, sizes, directions, raw_text)


def _tied(model: nn.Module) -> dict[str, str]:
    """Return the further names of tied parameters, each with the name that is kept.

    Safetensors refuses two names for one tensor. So `state_dict` leaves the further ones out, and loading adds them.
    """
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in named if first.setdefault(id(p), name) != name}


def _drop_tied(model: nn.Module, state_dict: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """Leave out further names of tied parameters; a hook that runs at the end of `state_dict`."""
    for name in _tied(model):
        state_dict.pop(prefix + name, None)


def _restore_tied(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add the further names again; a hook that runs before `load_state_dict`, which asks for every name."""
    for name, first in _tied(model).items():
        if prefix + first in state_dict:
            state_dict.setdefault(prefix + name, state_dict[prefix + first])


def parameter_groups(method: Method, backbone: Backbone) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of every group that a stage can name, except task heads."""
    return method.groups() | {
        "backbone": list(backbone.parameters()),
        "backbone.norms": list(backbone.norm_parameters().values()),
        "backbone.head": list(backbone.head_parameters().values()),
    }


def stages_that_train(method: Method, groups: Mapping[str, Sequence[nn.Parameter]]) -> list[Stage]:
    """Return the stages of a method for which there are tasks, and parameters in the groups."""
    stages = [stage for stage in method.stages() if stage.tasks != "labelled" or method.labelled]
    return [stage for stage in stages if any(groups.get(name) for name in stage.trains)]


def supported_conditions(method: Method) -> list[Condition]:
    """List the conditions of a method: tasks in all languages, or in all directions where pairs are needed."""
    pairs = [direction.split("/") for direction in method.directions]
    supported = []
    for task in method.tasks:
        bilingual = task in TASKS and TASKS[task].bilingual
        alone = [] if bilingual else [Condition(task, language) for language in method.languages]
        directions = [Condition(task, source, target) for source, target in pairs]
        in_languages = [condition for condition in alone if method.supports(condition)]
        supported += in_languages or [condition for condition in directions if method.supports(condition)]
    return supported


def classify(hidden_BTD: Tensor, weights: Weights) -> Tensor:
    """Apply generated classifiers, one per row."""
    block = weights.block("classifier")
    return BLOCKS[block.kind].apply(hidden_BTD, hidden_BTD, block.by_site()[0], place=block.placement)


def _count(inputs: Mapping[str, Any], rows: Conditions, weights: Weights) -> int:
    """Return the number of rows; raise an error if inputs, conditions and weights differ in it."""
    batch, *_ = [len(value) for value in inputs.values() if isinstance(value, Tensor)]
    if isinstance(rows, ConditionIds):
        count, distinct = len(rows.rows_B), len(rows.task_K)
    else:
        count, distinct = len(rows), len(set(map(str, rows)))
    if batch != count:
        raise RowError(f"batch: {batch} rows of input, but {count} conditions. Give one condition per row.")
    # Rows of one condition may share a single set. With several conditions it would silently be used for all of them.
    for block in weights.blocks:
        for tensor in block.tensors.values():
            if len(tensor) != count and (len(tensor) != 1 or distinct > 1):
                raise RowError(f"weights: {len(tensor)} sets for {count} rows of {distinct} conditions.")
    return count
