"""Made-up data of the shape of a recipe's, in a data root: every file that the recipe names, with a few examples."""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers

from polyloom.conditions import Condition
from polyloom.config import Recipe
from polyloom.data.catalog import COLLECTIONS, parse_name
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from tests.tiny_run import write_backbone

LETTERS = "abcdefgh"
SIZES = {"train": 24, "dev": 3, "test": 24}  # test splits are trained on where a treebank has no other
_SLICE = re.compile(r"\[[^\[\]]*\]$")


def write_data(recipe: Recipe, root: Path) -> list[Path]:
    """Write every file that the recipe names and that is not there yet; return all of them."""
    paths = []
    for split in (recipe.data.train, recipe.data.validation, recipe.data.test):
        for name, corpora in split.items():
            for corpus in corpora:
                path = root / place(corpus)
                paths.append(path)
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(_content(str(path.relative_to(root)), Condition.parse(name).task))
    return paths


def place(corpus: str) -> str:
    """Where a corpus is, below the root."""
    bare = _SLICE.sub("", corpus)
    if bare.partition(":")[0] not in COLLECTIONS:
        return bare.partition("#")[0]
    collection, item, split = parse_name(bare)
    return COLLECTIONS[collection].layout.format(repository=f"UD_{item}", item=item, split=split)


def _content(path: str, task: str) -> str:
    draw = random.Random(path)
    split = next((split for split in SIZES if re.search(rf"\b{split}\b", path)), "train")
    kind = "conllu" if path.endswith(".conllu") else task
    header = "language\tpremise\thypothesis\tlabel\n" if "americasnli" in path else ""
    return header + "".join(_FORMATS[kind](sentence(draw), draw, path) for _ in range(SIZES[split]))


def sentence(draw: random.Random) -> list[str]:
    """Words of three letters, so many of them that no sentence comes twice."""
    return ["".join(draw.choices(LETTERS, k=3)) for _ in range(draw.randint(4, 7))]


def _conllu(words: Sequence[str], draw: random.Random, _: str) -> str:
    rows = []
    for number, word in enumerate(words, start=1):
        tag, relation = draw.choice(("NOUN", "VERB", "ADJ")), "root" if number == 1 else draw.choice(("nsubj", "obj"))
        rows.append("\t".join(map(str, (number, word, "_", tag, "_", "_", number - 1, relation, "_", "_"))))
    return "\n".join([f"# text = {' '.join(words)}", *rows, "", ""])


def _entities(words: Sequence[str], draw: random.Random, _: str) -> str:
    return "".join(f"{word}\t{draw.choice(('O', 'B-PER', 'B-LOC'))}\n" for word in words) + "\n"


def _pair(words: Sequence[str], draw: random.Random, path: str) -> str:
    label = draw.choice(("entailment", "neutral", "contradiction"))
    first = f"{Path(path).stem}\t" if "americasnli" in path else ""
    return f"{first}{' '.join(words)}\t{' '.join(sentence(draw))}\t{label}\n"


_FORMATS: dict[str, Callable[[Sequence[str], random.Random, str], str]] = {
    "conllu": _conllu,
    "ner": _entities,
    "nli": _pair,
    "mlm": lambda words, _, __: " ".join(words) + "\n",
    "mt": lambda words, _, __: f"{' '.join(words)}\t{' '.join(reversed(words))}\n",
}


def write_encoder(folder: Path, model_type: str) -> None:
    """Write a tiny model of a family with a tokenizer."""
    write_backbone(folder)
    if model_type == "bert":
        return
    config = transformers.AutoConfig.for_model(
        model_type, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=transformers.AutoConfig.from_pretrained(folder).vocab_size, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)


def write_vocabulary(folder: Path, languages: Sequence[str]) -> None:
    """Write a small vocabulary with a token for each language."""
    draw = random.Random(0)
    texts = {"en": [" ".join(sentence(draw)) for _ in range(200)]}
    train_vocabulary(texts, folder, config=VocabularyConfig(size=60), languages=list(languages))
