"""One word per concept: former words are gone from the package, the documents and the help."""

import ast
import re
from pathlib import Path

import pytest

from tests.shared import polyloom

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "src" / "polyloom").rglob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Identifiers that had another name before; ARCHITECTURE.md has today's words.
FORMER_NAMES = set(
    re.findall(
        r"\w+",
        """
        Pieces load_pieces pieces TrainCell cells_per_batch Tell tell Team join_team agreed Portion Board
        RunFolder Answering load_answering answering open_checkpoint backbone_of pieces_of set_marks give_typology
        World token_of Growth likeliest materialize respond arriving Sieve Worry worries Facts
        check_served serves goodness audit silence parts_NP bleu_parts tag_parts
        """,
    )
)
FORMER_WORDS = re.compile(
    r"\bpieces?\b|\bcells?_per_batch\b|\blikeliest\b|\bgoodness\b|\bworr(y|ies)\b|\btoken_of\b|\bmixture\.kind\b"
    r"|\btrain\.(fill|keep|accumulate|vocabulary)\b|\bartificial:|\bwhat learns\b|--begin\b|--pieces\b",
    flags=re.IGNORECASE,
)
# Where former names of settings are accepted, they must be written.
ACCEPTED = ("config/renamed.py", "training/events.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_identifiers_are_those_of_the_glossary(path):
    tree = ast.parse(path.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert not names & FORMER_NAMES


@pytest.mark.parametrize("path", [*FILES, *DOCUMENTS], ids=lambda path: path.name)
def test_texts_use_the_words_of_the_glossary(path):
    if str(path).endswith(ACCEPTED):
        return
    assert not FORMER_WORDS.findall(path.read_text()), path


@pytest.mark.parametrize(
    "command", ["", "train", "evaluate", "predict", "add language", "export", "data check", "plan"]
)
def test_help_uses_the_words_of_the_glossary(command):
    assert not FORMER_WORDS.findall(polyloom(*command.split(), "--help"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_docstrings_of_functions_begin_with_a_verb(path):
    """Nouns that former docstrings began with; a verb in the imperative has none of these words before it."""
    first = re.compile(r"(The|A|An|What|Which|Whether|How|Where|Of|For|From|Those|All|Some|One|Every|Each) ")
    for node in ast.walk(ast.parse(path.read_text())):
        is_property = isinstance(node, ast.FunctionDef) and any(
            isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in node.decorator_list
        )
        if isinstance(node, ast.FunctionDef) and not is_property:
            text = ast.get_docstring(node) or ""
            assert not first.match(text), f"{path.name}: {node.name}: {text.splitlines()[0]}"
