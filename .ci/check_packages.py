"""Check what a wheel and a source distribution contain: check_packages.py FOLDER, with one of each."""

import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path

MAX_BYTES = {".whl": 2 << 20, ".gz": 4 << 20}
MAX_FILE = 1 << 20
REQUIRED = {
    ".whl": (
        "polyloom/__init__.py",
        "polyloom/py.typed",
        "polyloom/recipes/hyperx/mbert-base.yaml",
        "licenses/LICENSE",
    ),
    ".gz": ("src/polyloom/__init__.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO"),
}
FORBIDDEN = re.compile(
    r"(^|/)(results|runs|dist|__pycache__|\.git|\.venv[^/]*|node_modules)/|\.(pyc|safetensors|bin|pt|arrow|parquet|pem|key|env)$"
)


def read(path: Path) -> dict[str, bytes]:
    """Return the files of an archive, by name."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(path) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if not member.isdir()]
        if links := [name for name, file in members if file is None]:
            return dict.fromkeys(links, b"") | {"link": b""}
        return {name.partition("/")[2]: file.read() for name, file in members if file is not None}


def mistakes(path: Path, paths_here: tuple[str, ...]) -> list[str]:
    """List what is wrong with an archive.

    Args:
        path: The wheel or source distribution.
        paths_here: Folders of this machine, which no file may name.
    """
    files = read(path)
    kind = path.suffix
    size = path.stat().st_size
    found = [f"{size} bytes, more than {MAX_BYTES[kind]}"] if size > MAX_BYTES[kind] else []
    found += [f"{name}: missing" for name in REQUIRED[kind] if not any(other.endswith(name) for other in files)]
    for name, content in files.items():
        if FORBIDDEN.search(name):
            found.append(f"{name}: must not be released")
        if len(content) > MAX_FILE:
            found.append(f"{name}: {len(content)} bytes, more than {MAX_FILE}")
        found += [f"{name}: names {here}" for here in paths_here if here.encode() in content]
    return found


def main(folder: Path) -> int:
    """Check the two archives of a folder; return the exit code."""
    archives = sorted(folder.glob("*.whl")) + sorted(folder.glob("*.tar.gz"))
    if [path.suffix for path in archives] != [".whl", ".gz"]:
        print(f"{folder}: not one wheel and one source distribution", file=sys.stderr)
        return 1
    paths_here = tuple({str(Path.cwd()) + "/", str(folder.resolve()) + "/", *filter(None, [os.environ.get("CI_WORK")])})
    count = 0
    for path in archives:
        for mistake in mistakes(path, paths_here):
            print(f"{path.name}: {mistake}", file=sys.stderr)
            count += 1
        print(f"{path.name}: {len(read(path))} files, {path.stat().st_size:,} bytes")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
