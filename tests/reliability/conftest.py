"""One folder of tiny corpora, cells and a backbone for all tests here."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYLOOM_CACHE", str(folder / "datasets"))
        yield folder
