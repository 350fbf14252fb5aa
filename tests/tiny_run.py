"""A world small enough to be learnt in seconds: three languages of the same eight words, and a backbone of two layers.

The languages contradict one another: what is a NOUN in ``aa`` is a VERB in ``bb``, trees of ``aa`` lean to the left and
those of ``bb`` to the right. So whoever scores well in both has looked at the condition. ``cc`` is ``aa`` again, but
has raw text only, and labels for testing: its labelled cells are zero-shot.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ("ba", "do", "fi", "gu", "ko", "lem", "mur", "sat")
TAGS = ("NOUN", "VERB", "ADJ", "DET")
LANGUAGES = ("aa", "bb", "cc")
SIZES = {"train": 200, "dev": 20, "test": 40}
_SHIFT = {"aa": 0, "bb": 1, "cc": 0}
_HYPER = {"adapter_size": 16, "hidden_size": 32, "embedding_size": 8}
_SMALL: Mapping[str, Mapping[str, int]] = {  # defaults are for models a thousand times as large
    "hyperx": _HYPER | {"projection_size": 16},
    "hyper-adapters": _HYPER,
    "psf": {"latent_size": 8, "hidden_size": 32},
    "full": {},
    "dense": {},
}
_LABELS = ("entailment", "contradiction")


def pos_tag(language: str, word: str) -> str:
    """The part of speech of a word."""
    return TAGS[(WORDS.index(word) + _SHIFT[language]) % len(TAGS)]


def ner_tag(language: str, word: str) -> str:
    """Names are one word long: of persons in ``aa``, of places in ``bb``."""
    return ("B-PER", "B-LOC")[_SHIFT[language]] if word in WORDS[:2] else "O"


def arc(language: str, position: int, length: int) -> tuple[int, str]:
    """Every word hangs on the one before it; in ``bb`` on the one behind it."""
    head = position - 1 if not _SHIFT[language] else (position + 1) % (length + 1)
    return head, "dep" if head else "root"


def nli_label(language: str, hypothesis: Sequence[str]) -> str:
    """What the first word of the hypothesis says, to the contrary in ``bb``."""
    return _LABELS[(WORDS.index(hypothesis[0]) + _SHIFT[language]) % 2]


def conllu(language: str, words: Sequence[str]) -> str:
    """A sentence of a treebank."""
    rows = [
        "\t".join(map(str, (i, w, "_", pos_tag(language, w), "_", "_", *arc(language, i, len(words)), "_", "_")))
        for i, w in enumerate(words, start=1)
    ]
    return "\n".join([f"# text = {' '.join(words)}", *rows, "", ""])


def columns(language: str, words: Sequence[str]) -> str:
    """A sentence with its entities."""
    return "".join(f"{w}\t{ner_tag(language, w)}\n" for w in words) + "\n"


def pair(language: str, words: Sequence[str]) -> str:
    """A premise, a hypothesis, and what holds between them."""
    half = len(words) // 2
    return f"{' '.join(words[:half])}\t{' '.join(words[half:])}\t{nli_label(language, words[half:])}\n"


def choices(language: str, words: Sequence[str]) -> str:
    """A premise and two choices: a cause is of the first four words, an effect of the others; not so in ``bb``."""
    draw = random.Random(" ".join(words))
    question, label = draw.randint(0, 1), draw.randint(0, 1)
    first_half = (question + label + _SHIFT[language]) % 2 == 0  # whether the first choice is of the first half
    halves = (WORDS[:4], WORDS[4:]) if first_half else (WORDS[4:], WORDS[:4])
    texts = [" ".join(draw.choices(half, k=draw.randint(1, 3))) for half in halves]
    row = {"premise": " ".join(words), "choice1": texts[0], "choice2": texts[1]}
    row |= {"question": ("cause", "effect")[question]}
    return json.dumps(row | {"label": label, "idx": 0, "changed": False}) + "\n"


def question(language: str, words: Sequence[str]) -> str:
    """A context with a person and a place of one or two words each; ``ba`` asks for the person, in ``bb`` the place."""
    draw = random.Random(" ".join(words))
    names = [("fi", "fi gu"), ("ko", "ko lem")]
    chosen = [draw.choice(name) for name in names]
    asked = draw.randint(0, 1)
    fillers = [" ".join(draw.choices(WORDS[6:], k=draw.randint(1, 3))) for _ in range(3)]
    shuffled = draw.sample(chosen, 2)
    context = f"{fillers[0]} {shuffled[0]} {fillers[1]} {shuffled[1]} {fillers[2]}"
    answer = chosen[(asked + _SHIFT[language]) % 2]
    answers = [{"text": answer, "answer_start": context.index(answer)}]
    return json.dumps({"context": context, "question": WORDS[asked], "answers": answers}) + "\n"


_FORMATS: Mapping[str, tuple[str, Callable[[str, Sequence[str]], str]]] = {
    "mlm": ("txt", lambda _, words: " ".join(words) + "\n"),
    "pos": ("conllu", conllu),
    "ner": ("tsv", columns),
    "dep": ("conllu", conllu),
    "nli": ("pairs.tsv", pair),
    "copa": ("choices.jsonl", choices),
    "qa": ("questions.jsonl", question),
}


def sentences(split: str) -> list[list[str]]:
    """Sentences of three to six words, the same in every language."""
    draw = random.Random(split)
    return [draw.choices(WORDS, k=draw.randint(3, 6)) for _ in range(SIZES[split])]


def write_corpora(folder: Path) -> None:
    """Write every split of every format in every language: ``aa-train.conllu`` and so on."""
    for language in LANGUAGES:
        for split in SIZES:
            for ending, write in dict(_FORMATS.values()).items():
                content = "".join(write(language, words) for words in sentences(split))
                (folder / f"{language}-{split}.{ending}").write_text(content)


def write_backbone(folder: Path) -> None:
    """Write a BERT with random weights, the same ones every time, and its tokenizer; other words are spelled."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    vocabulary = dict.fromkeys([*special.values(), *WORDS, *letters, *(f"##{letter}" for letter in letters)])
    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(token, numbers[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "token_type_ids", "attention_mask"], **special
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=len(vocabulary),
        max_position_embeddings=64, initializer_range=0.05,
    )  # fmt: skip
    transformers.utils.logging.disable_progress_bar()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertForMaskedLM(config).save_pretrained(folder)


def tiny_recipe(
    folder: Path, method: str | Mapping[str, Any] = "hyperx", *, tasks: Sequence[str] = ("mlm", "pos"), **sections: Any
) -> Path:
    """Write the backbone, the corpora, and a recipe that learns them well in about five seconds.

    Args:
        folder: Where all of it goes; what is there already is used again.
        method: Its name, or settings with its name; what they do not say is small.
        tasks: Of mlm, pos, ner, dep, nli, copa and qa.
        **sections: What is different: mappings are merged into the recipe's, all else takes its place, such as
            ``train={"steps": 5}`` or ``languages=["aa", "bb"]``.

    Returns:
        The recipe's path.
    """
    if not (folder / "backbone").is_dir():
        (folder / "backbone").mkdir(parents=True)
        write_backbone(folder / "backbone")
        write_corpora(folder)
    given = {"name": method} if isinstance(method, str) else method
    labelled = [task for task in tasks if task != "mlm"]

    def datasets(split: str, languages: Sequence[str], names: Sequence[str]) -> dict[str, str]:
        return {f"{t}/{lang}": str(folder / f"{lang}-{split}.{_FORMATS[t][0]}") for t in names for lang in languages}

    raw = [task for task in tasks if task == "mlm"]
    recipe: dict[str, Any] = {
        "backbone": {"name": str(folder / "backbone")},
        "method": {**_SMALL.get(given["name"], {"adapter_size": 16}), **given},
        "languages": list(LANGUAGES),
        "tasks": {task: {} for task in tasks},
        "data": {
            "train": datasets("train", LANGUAGES, raw) | datasets("train", LANGUAGES[:2], labelled),
            "validation": datasets("dev", LANGUAGES[:2], labelled or raw),
            "test": datasets("test", LANGUAGES, tasks),
        },
        "mixture": {"temperature": 5.0, "datasets_per_batch": 4},
        "optim": {"lr": 1e-2, "warmup_steps": 10},
        "train": {"steps": 200, "rows_per_batch": 32, "dropout": False},
    }
    for name, section in sections.items():
        merge = isinstance(section, Mapping) and isinstance(recipe.get(name), dict)
        recipe[name] = recipe[name] | section if merge else section
    path = folder / f"{recipe['method']['name']}.yaml"
    path.write_text(json.dumps(recipe, indent=2))  # which is YAML
    return path
