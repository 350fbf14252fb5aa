"""Add tokens to the backbone of a run, for characters that its tokenizer does not know.

Text that the tokenizer knew is tokenized as before, so that its predictions do not change. Only masked language
modelling has more tokens to choose from.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from polyloom.backbones import extend_backbone
from polyloom.data.tokenization.new_tokens import extend_tokenizer, new_tokens
from polyloom.errors import PolyloomError
from polyloom.loading import LoadedModel, load_run_checkpoint


def add_tokens(run: LoadedModel, texts: Iterable[str], count: int, into: Path) -> LoadedModel:
    """Add tokens for the unknown characters of a text; write backbone and tokenizer, and load the run on them.

    Args:
        run: A run with a pretrained backbone that it does not train.
        texts: Lines of text.
        count: How many tokens to add at most.
        into: Directory for the backbone.
    """
    name = run.recipe.backbone.name
    trained = {group for stage in run.model.method.stages() for group in stage.trains}
    if name is None or "backbone" in trained or run.recipe.backbone.dtype != "fp32":
        raise PolyloomError(
            "--add-tokens: the run must have a pretrained backbone in fp32 that it does not train. "
            "Otherwise train anew, with a vocabulary that knows the script (polyloom data vocab)."
        )
    added = new_tokens(run.predictor.tokenizer, list(texts), count)
    if not added:
        raise PolyloomError("--add-tokens: the tokenizer knows all characters of the text. Leave the option out.")
    size = extend_tokenizer(run.recipe.backbone.tokenizer or name, added, into)
    extend_backbone(name, size, into, seed=run.recipe.train.seed)
    backbone = replace(run.recipe.backbone, name=str(into.resolve()), tokenizer=None)
    return load_run_checkpoint(run.path, replace(run.recipe, backbone=backbone), run.checkpoint, extended=True)
