"""Identify a backbone by hashes of all that decides its output: parameters, buffers and configuration."""

import hashlib
import json
from collections.abc import Container, Mapping
from typing import Any

from polyloom.backbones.backbone import Backbone, hash_tensors
from polyloom.errors import CheckpointError

_PARTS = {  # what differs between two identities, by key
    "model_type": "another type of model",
    "frozen_sha256": "other parameters",
    "buffers_sha256": "other buffers",
    "config_sha256": "another configuration",
}
# Keys of a configuration that do not decide the output. Data types are those of the parameters, which are hashed.
_IGNORED = {
    "architectures", "auto_map", "chunk_size_feed_forward", "dtype", "id2label", "label2id", "model_type", "num_labels",
    "output_attentions", "output_hidden_states", "problem_type", "return_dict", "torch_dtype", "transformers_version",
    "use_cache",
}  # fmt: skip
_IGNORED_IN_GENERATION = {"max_length", "transformers_version", "use_cache"}  # every row has its own length limit


def identity_of(backbone: Backbone, *, skip: Container[str] = ()) -> dict[str, str]:
    """Return the identity of a backbone, without the parameters in `skip`, which are trained."""
    # Buffers that are not saved with a model are computed from its configuration.
    saved = backbone.model.state_dict().keys()
    buffers = {name: buffer for name, buffer in backbone.model.named_buffers() if name in saved}

    # Settings at their defaults are left out: a later version of Transformers has more of them, which change nothing.
    config = backbone.model.config
    defaults = {} if getattr(config, "has_no_defaults_at_init", False) else type(config)().to_dict()
    settings = {"config": _changed(config.to_dict(), defaults, _IGNORED)}
    if backbone.model.can_generate():
        generation = backbone.model.generation_config
        defaults = type(generation)().to_dict()
        settings["generation"] = _changed(generation.to_dict(), defaults, _IGNORED_IN_GENERATION)

    return {
        "model_type": backbone.shape.family,
        "frozen_sha256": backbone.fingerprint(skip=skip),
        "buffers_sha256": hash_tensors(buffers),
        "config_sha256": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
    }


def differences(stored: Mapping[str, Any], actual: Mapping[str, str]) -> list[str]:
    """List how a backbone differs from the stored identity of another."""
    return [what for key, what in _PARTS.items() if stored.get(key) != actual[key]]


def check_identity(stored: Mapping[str, Any], actual: Mapping[str, str], place: str, *, name: str = "") -> None:
    """Raise an error unless a stored identity is that of the backbone.

    Args:
        stored: Identity that is stored with weights.
        actual: Identity of the backbone that is loaded.
        place: What was loaded, such as a directory.
        name: Name or directory of the backbone, for the message.
    """
    if missing := sorted(_PARTS.keys() - stored.keys()):
        raise CheckpointError(
            f"{place}: the backbone's identity is not as this version writes it: {', '.join(missing)} missing."
        )
    if different := differences(stored, actual):
        raise CheckpointError(
            f"{place}: was trained on another backbone (a {stored.get('model_type')} with hash "
            f"{str(stored.get('frozen_sha256'))[:12]}); this one has {' and '.join(different)}{name and f' ({name})'}. "
            "Load exactly that one; with another one predictions would be wrong."
        )


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any], ignored: Container[str]) -> dict[str, Any]:
    """Return the settings that are neither private nor ignored nor at their defaults."""
    return {
        key: value
        for key, value in values.items()
        if not (key.startswith("_") or key in ignored) and (key not in defaults or defaults[key] != value)
    }
