"""The backbone: a Transformers model whose hooks apply the weights of one forward pass, row by row."""

import hashlib
from collections.abc import Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from polyloom.backbones.attention import BeforeAttention
from polyloom.backbones.families import Family, family_of
from polyloom.backbones.hooks import (
    AfterLayer,
    AfterProjection,
    BeforeHead,
    BeforeNorm,
    BeforeProjection,
    BeforeStack,
    ForwardState,
)
from polyloom.backbones.layout import Layout, lay_out
from polyloom.errors import BackboneError
from polyloom.weights import BackboneShape, Site, Weights


class Backbone(nn.Module):
    """Any Transformers model of a known family, with hooks at its sites.

    Without weights it computes exactly what the bare model does. It runs one forward pass at a time: a second thread or
    a nested use raises `BusyError`.

    Args:
        model: The Transformers model, with or without a head.
        family: Layout of the model. Default: the registered family of its model type.
    """

    def __init__(self, model: PreTrainedModel, family: Family | None = None) -> None:
        super().__init__()
        self.model = model
        self.name = ""  # where it was loaded from
        self.untrained: tuple[str, ...] = ()  # parameters that a pretrained checkpoint did not have
        model_type = str(model.config.model_type)
        self.family = family or family_of(model_type)
        self._state = ForwardState()
        layers = {
            Site(stack, int(i)): layer
            for stack, path in self.family.stacks.items()
            for i, layer in submodule(model.base_model, path, model_type).named_children()
        }
        self.layers = list(layers.values())  # a plain list: they are the model's already
        first = self.layers[0]
        paths = {name: _first_path(first, paths) for name, paths in self.family.projections.items()}
        # With this setting, DeBERTa's queries and keys also project relative positions, which rows have in common.
        common = ("q", "k") if getattr(model.config, "share_att_key", False) else ()
        self.projections = {name: path for name, path in paths.items() if path and name not in common}
        sizes = {}
        for name, path in self.projections.items():
            weight_ED = submodule(first, path, model_type).weight
            assert isinstance(weight_ED, Tensor)
            sizes[name] = (weight_ED.shape[1], weight_ED.shape[0])
        kv_width = sizes["k"][1] if "k" in sizes else sizes["qkv"][1] // 3 if "qkv" in sizes else 0
        self.shape = BackboneShape(
            family=model_type,
            width=int(model.config.hidden_size),
            sites=tuple(layers),
            placements=self.family.placements,
            projections=sizes,
            kv_width=kv_width if self.family.attention else 0,
        )
        self._register_hooks(layers)

    def _register_hooks(self, layers: Mapping[Site, nn.Module]) -> None:
        """Register a hook for each place at each site. A hook does nothing unless weights in use have a block there."""
        state, family, model_type = self._state, self.family, self.shape.family
        for site, layer in layers.items():
            if site.layer == 0:
                layer.register_forward_pre_hook(BeforeStack(state, site), with_kwargs=True)
            # First in line, so that the `hidden_states` that Transformers records are what the next layer sees.
            layer.register_forward_hook(AfterLayer(state, site, "layer"), prepend=True)
            inner = submodule(layer, family.output, model_type)
            inner.register_forward_hook(AfterLayer(state, site, "output"), prepend=True)
            if family.norm:
                submodule(layer, family.norm, model_type).register_forward_pre_hook(BeforeNorm(state, site))
            if family.attention:
                attention = submodule(layer, family.attention, model_type)
                attention.register_forward_pre_hook(BeforeAttention(state, site))
            for name, path in self.projections.items():
                projection = submodule(layer, path, model_type)
                projection.register_forward_pre_hook(BeforeProjection(state, site, name))
                projection.register_forward_hook(AfterProjection(state, site, name))
        # Without a projection to the vocabulary there is nothing to invert for. But what a model calls its output
        # embeddings may be something else, and then invertible adapters must be refused.
        head, config = self.model.get_output_embeddings(), self.model.config
        vocabularies = {config.vocab_size, getattr(config, "decoder_vocab_size", None)}
        self.inverts = head is None or (isinstance(head, nn.Linear) and head.out_features in vocabularies)
        if self.inverts and head is not None:
            head.register_forward_pre_hook(BeforeHead(state, tuple(layers)[-1].stack))

    def lay_out(self, weights: Weights, *, num_rows: int, search: bool = False) -> Layout:
        """Lay out weights in the backbone's data type, see `layout.lay_out`."""
        if any(block.kind == "invertible" for block in weights.blocks) and not self.inverts:
            raise BackboneError(
                f"backbone: this {self.shape.family} model's language-modelling head is not a linear layer that can be "
                "hooked, so invertible adapters cannot be undone there. Use `invertible: false`."
            )
        return lay_out(weights.to(self.model.dtype), num_rows=num_rows, search=search)

    def using(self, weights: Weights, *, num_rows: int) -> AbstractContextManager[None]:
        """Apply weights at the sites while the context is open.

        Args:
            weights: One shared set, or one set per row (`Weights.for_rows`).
            num_rows: Rows of the batch. A site that sees another number raises an error.
        """
        return self.using_layout(self.lay_out(weights, num_rows=num_rows))

    @contextmanager
    def using_layout(self, layout: Layout, *, expand: int = 1) -> Iterator[None]:
        """Apply weights that are laid out while the context is open.

        Args:
            layout: The weights of a batch.
            expand: Number of copies of each row in the decoder (beams).
        """
        compiling = torch.compiler.is_compiling()
        if not compiling:
            self._state.acquire()
        try:
            self._state.set_layout(layout, expand=expand)
            yield
        finally:
            self._state.active = None
            if not compiling:
                self._state.release()

    def forward(self, **inputs: Any) -> Any:
        """Run the Transformers model on its usual inputs."""
        with self._mixed_precision():
            return self.model(**inputs)

    def hidden(self, **inputs: Any) -> Tensor:
        """Return the last hidden states ``[B, T, D]``, of the decoder if decoder inputs are given."""
        stacks, config = self.shape.stacks, self.model.config
        hidden_BTD: Tensor
        if "decoder_input_ids" in inputs:
            if len(stacks) == 1:
                raise BackboneError(
                    f"backbone: {self.shape.family} has one stack; translation needs an encoder and a decoder, such as "
                    "`backbone: {preset: transformer-base}` or a pretrained M2M100, NLLB, mBART, Marian or mT5."
                )
            ids_BT, mask_BT = inputs["input_ids"], inputs["attention_mask"]
            encoded_BTD = self.model.get_encoder()(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
            hidden_BTD = self.model.get_decoder()(
                input_ids=inputs["decoder_input_ids"],
                encoder_hidden_states=encoded_BTD,
                encoder_attention_mask=mask_BT,
                use_cache=False,
            ).last_hidden_state
        elif "position_ids" in inputs:
            if self.family.auto_class != "AutoModelForCausalLM" or getattr(
                config, "use_bidirectional_attention", False
            ):
                raise BackboneError(
                    f"backbone: {self.shape.family} is no causal language model: a token would see those that it "
                    "predicts. Causal language modelling needs a decoder, such as llama, qwen3 or gemma3."
                )
            # There is no attention mask: padding stands at the end, where no token sees it, and without a mask
            # Transformers keeps apart what is packed into a row, by its positions.
            hidden_BTD = self.model.base_model(
                input_ids=inputs["input_ids"], position_ids=inputs["position_ids"], use_cache=False
            ).last_hidden_state
        elif len(stacks) > 1:
            raise BackboneError(
                f"backbone: {self.shape.family} is an encoder-decoder; tagging, parsing, inference and masked language "
                "modelling need a model with one stack, such as xlm-roberta."
            )
        else:
            hidden_BTD = self.model.base_model(**inputs).last_hidden_state
        return hidden_BTD

    def vocabulary(self, hidden_BTD: Tensor, candidates_V: Tensor | None = None) -> Tensor:
        """Apply the language-modelling head to hidden states; `candidates_V` restricts the logits to some tokens."""
        with self._mixed_precision():
            hidden_BTD = hidden_BTD.to(self.model.dtype)
            if getattr(self.model.config, "scale_decoder_outputs", False):  # T5 with tied embeddings
                hidden_BTD = hidden_BTD * self.shape.width**-0.5
            # For some candidates alone, modules of the head run with those rows of the projection's parameters.
            whole = [] if candidates_V is None else self.model.get_output_embeddings().parameters()
            narrow = {parameter: parameter[candidates_V] for parameter in whole}
            for path in self.family.vocabulary:
                module = submodule(self.model, path, self.shape.family)
                named = module.named_parameters(remove_duplicate=False)  # a bias may be there under two names
                chosen = {name: narrow[parameter] for name, parameter in named if parameter in narrow}
                hidden_BTD = functional_call(module, chosen, (hidden_BTD,)) if chosen else module(hidden_BTD)
            bias = getattr(self.model, "final_logits_bias", None)  # mBART, Marian
            if bias is not None:
                hidden_BTD = hidden_BTD + (bias[0] if candidates_V is None else bias[0, candidates_V])
            if cap := getattr(self.model.config, "final_logit_softcapping", None):  # Gemma 2
                hidden_BTD = cap * torch.tanh(hidden_BTD / cap)
            return hidden_BTD

    def _mixed_precision(self) -> AbstractContextManager[Any]:
        """Compute with a head in fp32, because it is trained, in the data type of a backbone in bf16."""
        dtype = self.model.dtype
        if dtype == torch.float32 or all(p.dtype == dtype for p in self.head_parameters().values()):
            return nullcontext()
        return torch.autocast(self.model.device.type, dtype=dtype)

    @property
    def max_length(self) -> int:
        """Return the maximum number of tokens of a row."""
        config = self.model.config
        limit = int(getattr(config, "max_position_embeddings", None) or 512)
        # RoBERTa models start counting positions after the padding id.
        return limit - config.pad_token_id - 1 if "roberta" in self.shape.family else limit

    def enable_gradient_checkpointing(self) -> None:
        """Recompute layers in the backward pass, with the weights of their own forward pass."""
        self.model.gradient_checkpointing_enable(
            {"use_reentrant": False, "context_fn": self._state.checkpoint_contexts}
        )

    def norm_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of all normalisation layers of the base model, by name; heads are left out."""
        norms = {
            id(parameter)
            for module in self.model.base_model.modules()
            if "norm" in type(module).__name__.lower()
            for parameter in module.parameters(recurse=False)
        }
        return {name: parameter for name, parameter in self.model.named_parameters() if id(parameter) in norms}

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the language-modelling head, by name, without its projection to the vocabulary."""
        output = self.model.get_output_embeddings()
        others = {*self.model.base_model.parameters(), *([] if output is None else [output.weight])}
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter not in others}

    @torch.no_grad()
    def fingerprint(self, *, skip: Container[str] = ()) -> str:
        """Hash the model type and all parameters except those in `skip`, which are trained."""
        parameters = {name: parameter for name, parameter in self.model.named_parameters() if name not in skip}
        return hash_tensors(parameters, begin=self.shape.family)


def hash_tensors(tensors: Mapping[str, Tensor], *, begin: str = "") -> str:
    """Hash a text, and the names, shapes, types and values of tensors in the order of their names."""
    digest = hashlib.sha256(begin.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def submodule(parent: nn.Module, path: str, model_type: str) -> nn.Module:
    """Return the submodule at a dotted path; ``-1`` is the last module of a list."""
    module = parent
    for part in path.split("."):
        if part.lstrip("-").isdigit() and isinstance(module, nn.ModuleList):
            module = module[int(part)]
        elif hasattr(module, part):
            module = getattr(module, part)
        else:
            raise BackboneError(
                f"family {model_type!r}: {type(module).__name__} has no {part!r} (in {path!r}). "
                f"It has: {', '.join(name for name, _ in module.named_children())}."
            )
    return module


def _first_path(layer: nn.Module, paths: str) -> str:
    """Return the first of several paths, separated by ``|``, at which a layer has a module; the last if at none."""
    *others, last = paths.split("|")
    for path in others:
        with suppress(BackboneError):
            submodule(layer, path, "")
            return path
    return last
