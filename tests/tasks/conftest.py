"""What the tests of several tasks need."""

import pytest

from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_run import write_backbone


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tokenizer of the tiny backbone."""
    folder = tmp_path_factory.mktemp("backbone")
    write_backbone(folder)
    return load_tokenizer(folder)
