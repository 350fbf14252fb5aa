"""The other side of `benchmarks.decoding ctranslate2`, in the environment that has CTranslate2.

Questions are lines of JSON, and so are answers. Pieces are named by their numbers. So no tokenizer is needed, nor the
part of CTranslate2 4.8's converter for M2M100 that breaks with Transformers 5.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import ctranslate2  # type: ignore[import-not-found]
import torch
from ctranslate2.converters.converter import Converter  # type: ignore[import-not-found]
from ctranslate2.converters.transformers import M2M100Loader  # type: ignore[import-not-found]
from transformers import AutoModelForSeq2SeqLM

KINDS = ("float32", "int8")


class Numbered(Converter):  # type: ignore[misc]
    """A model of the family M2M100 whose pieces are their numbers; the caller chooses how the decoder begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @torch.no_grad()
    def _load(self) -> Any:
        model, loader = AutoModelForSeq2SeqLM.from_pretrained(self.folder), M2M100Loader()
        spec = loader.get_model_spec(model)
        loader.set_vocabulary(spec, [str(number) for number in range(model.config.vocab_size)])
        special = model.config
        spec.config.bos_token, spec.config.eos_token = str(special.bos_token_id), str(special.eos_token_id)
        spec.config.unk_token, spec.config.decoder_start_token = "3", None
        return spec


def load(folder: Path, kind: str) -> Any:
    """Return a translator with one thread."""
    return ctranslate2.Translator(str(folder / kind), device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)


def convert(folder: Path) -> dict[str, int]:
    """Write the model once for each kind; return their sizes in bytes."""
    for kind in KINDS:
        Numbered(folder).convert(str(folder / kind), quantization=None if kind == "float32" else kind)
    return {kind: (folder / kind / "model.bin").stat().st_size for kind in KINDS}


def translate(translator: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Return the pieces of every row, and the CPU seconds of the search."""
    sources = [[str(number) for number in row] for row in question["sources"]]
    prefixes = [[str(number)] for number in question["starts"]]
    began = time.process_time()
    results = translator.translate_batch(
        sources, target_prefix=prefixes, beam_size=question["beams"], max_decoding_length=question["new"]
    )
    spent = time.process_time() - began
    return {"seconds": spent, "ids": [[int(piece) for piece in result.hypotheses[0]] for result in results]}


def main() -> None:
    """Answer until there are no more questions."""
    folder = Path(sys.argv[1])
    translators: dict[str, Any] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "convert" in question:
            answer: dict[str, Any] = convert(folder)
            translators = {kind: load(folder, kind) for kind in KINDS}
        elif "load" in question:
            began = time.process_time()
            load(folder, question["kind"])
            answer = {"seconds": time.process_time() - began}
        else:
            answer = translate(translators[question["kind"]], question)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
