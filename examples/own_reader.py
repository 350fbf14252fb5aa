"""Add a reader of your own: a file format in which every line has words with tags, such as ``the/DET cat/NOUN``.

Use it on the command line: ``polyloom train recipe.yaml --code examples/own_reader.py``, with corpora such as
``corpus.slash`` in the recipe. A file with another ending is read with the name of the format: ``corpus.txt#slash``.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from polyloom.extend import DataError, File, Tagged, read_lines, register_reader, resolve


def read_slashes(file: File) -> Iterator[Tagged]:
    """Read one sentence per line; mistakes are reported with the number of the line."""
    for number, line in read_lines(file.path):  # also reads .gz and .xz
        pairs = [word.rpartition("/") for word in line.split()]
        if not all(word and tag for word, _, tag in pairs):
            raise DataError(file.path, number, "every word needs a tag, such as cat/NOUN.")
        if pairs:
            yield Tagged(tuple(word for word, _, _ in pairs), tuple(tag for _, _, tag in pairs))


register_reader("slash", "tags", read_slashes)


def main() -> None:
    """Write two small files and read them, one by its ending and one by the name of the format."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("corpus.slash", "corpus.txt#slash"):
            path = Path(folder, name.partition("#")[0])
            path.write_text("the/DET cat/NOUN sleeps/VERB\n\nshe/PRON and/or/CCONJ he/PRON\n")
            for record in resolve(f"{folder}/{name}").records("tags"):
                print(name, record)


if __name__ == "__main__":
    main()
