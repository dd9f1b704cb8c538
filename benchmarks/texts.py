"""The texts that the benchmarks of exact conditioning run on."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import charwise

#: Whole modules of the standard library that the embedded model never saw.
HELD_OUT = ("cmd", "fractions", "heapq", "mailbox", "sched", "shelve", "statistics", "textwrap")


def data_folder() -> Path:
    """The folder of tokenizers and models that are not part of this repository."""
    default = Path(__file__).parents[1] / ".." / "shared" / "data"
    return Path(os.environ.get("CHARWISE_DATA", default))


def tinystories() -> charwise.CharLM | None:
    """The TinyStories model, if its folder is there."""
    folder = data_folder() / "models" / "tinystories-3m"
    return charwise.load(folder) if (folder / "config.json").exists() else None


def hard_text(size: int) -> bytes:
    """Code that the embedded model never saw: the held-out modules in alphabetical order."""
    folder = Path(sysconfig.get_path("stdlib"))
    return b"".join((folder / f"{name}.py").read_bytes() for name in HELD_OUT)[:size]


def easy_text(lm: charwise.CharLM, size: int) -> bytes:
    """What a model itself writes, at a fixed seed: stories, one after the other."""
    text, seed = b"", 0
    while len(text) < size:
        story = lm.complete(
            "Once upon a time", temperature=0.8, seed=seed, max_new_bytes=700, preset="fast"
        )[0]
        text += b"Once upon a time" + story.raw + b"\n"
        seed += 1
    return text[:size]
