"""A run on a backbone with more pieces, for letters that its tokenizer does not know.

What the tokenizer knew it cuts as before, so that answers to such text stay as they are. Only predictions of masked
pieces have more to choose from.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from polyloom.backbones import extend_backbone
from polyloom.data.tokenization.new_tokens import extend_tokenizer, new_tokens
from polyloom.errors import PolyloomError
from polyloom.workflows.runs import Run, load_run_from_checkpoint


def extend(run: Run, texts: Iterable[str], count: int, into: Path) -> Run:
    """The same run with pieces for unknown letters of a text; writes its backbone and tokenizer.

    Args:
        run: On a pretrained backbone that it does not train.
        texts: Lines.
        count: How many pieces at most.
        into: Folder for the backbone.
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
        raise PolyloomError("--add-tokens: the tokenizer knows all letters of the text. Leave the option out.")
    size = extend_tokenizer(run.recipe.backbone.tokenizer or name, added, into)
    extend_backbone(name, size, into, seed=run.recipe.train.seed)
    backbone = replace(run.recipe.backbone, name=str(into.resolve()), tokenizer=None)
    return load_run_from_checkpoint(run.path, replace(run.recipe, backbone=backbone), run.checkpoint, extended=True)
