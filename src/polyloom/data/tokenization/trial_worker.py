"""Load a tokenizer and tokenize a few texts, with limits on processor time and memory; started by `try_tokenizer`.

Polyloom is not imported here: this takes a tenth of a second.
"""

import signal
import sys
from contextlib import suppress

try:
    import resource
except ImportError:  # Windows has no limits; `try_tokenizer` ends what takes a minute
    resource = None  # type: ignore[assignment]

SECONDS = 4  # of processor time
MEMORY = 2 << 30
# Long repetitions: a regular expression that backtracks takes quadratic time or more for them.
TEXTS = [unit * 2000 for unit in ("a", " ", "1", "-", "é", "a1 ", "\u4e2d")]


def main(path: str) -> None:
    """Load the tokenizer of a file and tokenize texts that slow regular expressions are slow on."""
    if resource is not None:
        with suppress(ValueError):  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    if path.endswith(".json"):
        from tokenizers import Tokenizer  # noqa: PLC0415 - after the limits are set

        tokenizer = Tokenizer.from_file(path)
        for text in TEXTS:
            tokenizer.encode(text)
        tokenizer.encode("a", "a")
        tokenizer.encode(["a", " a"], is_pretokenized=True)
    else:
        try:
            from sentencepiece import SentencePieceProcessor  # noqa: PLC0415
        except ImportError:  # then nothing is loaded at all
            return
        model = SentencePieceProcessor(model_file=path)
        for text in TEXTS:
            model.encode(text)


if __name__ == "__main__":
    main(sys.argv[1])
