"""Load a backbone by name or from a directory, or build one from a configuration."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from polyloom.backbones.backbone import Backbone
from polyloom.backbones.families import family_of
from polyloom.errors import BackboneError, PolyloomError, suggest
from polyloom.io.model_folder import WEIGHTS, check_config, check_sizes, find_folder, num_elements
from polyloom.nn.empty import empty_modules


def load_backbone(
    name: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu", attention: str | None = None
) -> Backbone:
    """Load a pretrained model with its language-modelling head from the Hugging Face Hub or a directory.

    Code shipped with a model is never run.

    Args:
        name: Name on the Hub, or a directory.
        dtype: Data type of the parameters, whatever the checkpoint holds. Default fp32.
        device: Device; ``meta`` reads only the configuration.
        attention: One of Transformers' attention implementations, such as ``eager``.
    """
    with _reading(name, "the configuration"):
        folder = find_folder(name, () if device == "meta" else WEIGHTS)
        check_config(folder)
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    auto_class = getattr(transformers, family_of(config.model_type).auto_class)
    with _reading(name, "the model"):
        with empty_modules():
            empty = auto_class.from_config(config)
        if device == "meta":
            return Backbone(empty.eval())

        # A configuration that asks for far more than the file holds is refused before the memory is allocated.
        num_parameters, num_stored = sum(parameter.numel() for parameter in empty.parameters()), num_elements(folder)
        if num_parameters > 2 * num_stored:
            raise BackboneError(
                f"backbone.name: the weights in {str(folder)!r} do not fit its configuration: it has "
                f"{num_parameters:,} parameters, the file {num_stored:,}. Are the weights those of another model?"
            )

        transformers.utils.logging.disable_progress_bar()  # stderr is for our own messages
        model, info = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation=attention,
            output_loading_info=True,
        )

    # Transformers initialises what a file does not have at random, with a warning. A new head may be meant so; more
    # than half of the model means that the file is that of another model.
    missing = sorted(info["missing_keys"])
    sizes = {key: parameter.numel() for key, parameter in model.named_parameters()}
    share = sum(size for key, size in sizes.items() if key in info["missing_keys"]) / sum(sizes.values())
    if share > 0.5:
        raise BackboneError(
            f"backbone.name: the weights in {str(name)!r} do not fit its configuration. {100 * share:.0f} % of the "
            f"parameters are missing and would be random, such as {', '.join(missing[:3])}. Are the weights those of "
            "another model?"
        )
    backbone = Backbone(model.eval())
    backbone.name = str(name)
    backbone.untrained = tuple(missing)
    return backbone.to(device)


@contextmanager
def _reading(name: str | Path, what: str) -> Iterator[None]:
    """Turn whatever Transformers and the Hub raise about files into an error that names the backbone."""
    try:
        yield
    except PolyloomError:
        raise
    except Exception as error:  # they raise many types
        first_line = (str(error).splitlines() or [repr(error)])[0]
        raise BackboneError(
            f"backbone.name: {what} of {str(name)!r} cannot be read ({first_line}). Without network, give a directory, "
            "or write the shape into the recipe as `backbone.config`."
        ) from error


def backbone_from_config(settings: Mapping[str, Any], *, device: str = "cpu") -> Backbone:
    """Build a backbone with random weights from the keys of a ``config.json``.

    Args:
        settings: ``model_type`` and any of its keys. An unknown key is an error. With ``init_std``, translation models
            are initialised from N(0, init_std) as Transformers does, otherwise as Fairseq does.
        device: ``meta`` builds shapes without allocating memory.
    """
    settings = dict(settings)
    model_type = settings.pop("model_type", None)
    if not isinstance(model_type, str):
        raise BackboneError("backbone.config: model_type is missing, such as `model_type: bert`.")
    family = family_of(model_type)
    check_sizes(settings, "backbone.config")
    defaults = transformers.AutoConfig.for_model(model_type)
    for key in settings:
        declared = hasattr(defaults, key) or key in family.undeclared
        if key.startswith("_") or key == "auto_map" or not declared:
            general = transformers.PretrainedConfig().to_dict()
            known = [name for name in defaults.to_dict() if name not in general]
            raise BackboneError(f"backbone.config.{key}: {model_type} has no such key. {suggest(key, known)}")
    config = transformers.AutoConfig.for_model(model_type, **settings)
    with empty_modules() if device == "meta" else torch.device(device):
        model = getattr(transformers, family.auto_class).from_config(config)
    if family.fairseq and "init_std" not in settings and device != "meta":
        _init_as_fairseq(model)
    return Backbone(model.eval(), family)


@torch.no_grad()
def _init_as_fairseq(model: transformers.PreTrainedModel) -> None:
    """Initialise a translation model as Fairseq does: Xavier-uniform matrices, embeddings from N(0, 1/d).

    Transformers' N(0, 0.02) is for pretraining; a layer of a small model then adds a tenth of what it should.
    """
    output = model.get_output_embeddings()
    output.weight.normal_(std=output.weight.shape[1] ** -0.5)  # first: it may be tied to embeddings
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module.weight.requires_grad:  # not Marian's sinusoidal positions
            module.weight.normal_(std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
        elif module is output:
            continue
        elif isinstance(module, nn.Linear):
            shared = name.endswith(("q_proj", "k_proj", "v_proj"))  # three matrices that are drawn as one
            nn.init.xavier_uniform_(module.weight, gain=2**-0.5 if shared else 1.0)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def extend_backbone(name: str, vocab_size: int, into: Path, *, seed: int) -> None:
    """Write a backbone with a larger vocabulary; new embeddings are drawn around the mean of the others."""
    network = load_backbone(name).model
    torch.manual_seed(seed)
    network.resize_token_embeddings(max(vocab_size, network.get_input_embeddings().num_embeddings))
    network.save_pretrained(into)
