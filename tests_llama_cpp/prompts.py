"""Prompts cut at random bytes: real code, and the Universal Declaration in seven languages."""

import random
import sysconfig
from pathlib import Path
from typing import Any

LANGUAGES = ("ar", "de", "en", "hi", "ja", "th", "zh")
MODULES = ("argparse", "ast", "bisect", "calendar", "csv", "heapq", "json/decoder", "textwrap")


def cut_prompts(data: Any, count: int, seed: int = 0) -> list[bytes]:
    """Half of code, half of the Declaration; 1 to 200 bytes each, begun at a line."""
    rng = random.Random(seed)
    library = Path(sysconfig.get_paths()["stdlib"])
    code = [(library / f"{name}.py").read_bytes() for name in MODULES]
    texts = [data.text(language).encode() for language in LANGUAGES]
    prompts = []
    for i in range(count):
        source = rng.choice(code) if i % 2 else texts[i // 2 % len(texts)]
        starts = [0, *(at + 1 for at, byte in enumerate(source[:-300]) if byte == ord("\n"))]
        start = rng.choice(starts)
        prompts.append(source[start : start + rng.randint(1, 200)])
    return prompts
