"""The texts that benchmarks run on, and the models that the texts are for.

Constants of scoring are chosen on the texts of "choosing", and judged on those of "judging". Never
move a text from one to the other. The embedded model was trained on the standard library of Python
3.11, except the modules in `HELD_OUT`, tests, and the folders named `test`, as its card says.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from charwise.models import EMBEDDED

#: Modules of the standard library that the embedded model never saw.
HELD_OUT = ("cmd", "fractions", "heapq", "mailbox", "sched", "shelve", "statistics", "textwrap")

MODELS = ("embedded", "stories", "smollm2")

#: Half, name, source, offset, bytes. A text begins with the first whole line at or after the
#: offset, and may end inside a word. A source is a module of the standard library, or a file of
#: the folder `text` in `CHARWISE_DATA`.
SOURCES: tuple[tuple[str, str, str, int, int], ...] = (
    ("choosing", "encyclopedia", "wikitext103_test_64k.txt", 30000, 250),
    ("choosing", "encyclopedia 2", "wikitext103_test_64k.txt", 45000, 200),
    ("choosing", "code, fractions", "fractions", 9000, 250),
    ("choosing", "code, shelve", "shelve", 4000, 200),
    ("choosing", "German", "udhr_de.txt", 8000, 200),
    ("choosing", "Chinese", "udhr_zh.txt", 4000, 120),
    ("judging", "encyclopedia", "wikitext103_test_64k.txt", 12000, 300),
    ("judging", "encyclopedia 2", "wikitext103_test_64k.txt", 57000, 200),
    ("judging", "rights", "udhr_en.txt", 3000, 250),
    ("judging", "code, textwrap", "textwrap", 9000, 250),
    ("judging", "code, mailbox", "mailbox", 20000, 250),
    ("judging", "German", "udhr_de.txt", 10000, 200),
    ("judging", "Japanese", "udhr_ja.txt", 5000, 90),
)

#: Written by hand.
WRITTEN = {
    "choosing": {
        "names": "Fletcher left the Tupperware on the dishwasher. Siobhan asked Mehmet about the "
        "zucchini.",
        "garden path": "The old man the boat. The horse raced past the barn fell.",
    },
    "judging": {
        "mail": "Hi Zoë,\n\nthanks for the draft — I'll read it on the train to Gdańsk. Could you "
        "resend the spreadsheet (the .xlsx, not the PDF)? Best, Tomasz",
        "names 2": "Yesterday Bronwyn and Kwame repotted the philodendron while Ignatius whittled "
        "a didgeridoo.",
        "garden path 2": "While Anna dressed the baby spit up on the bed. The cotton clothing is "
        "made of grows in Mississippi.",
    },
}


def passages(half: str) -> dict[str, bytes]:
    """The texts of a half whose files are there, by name."""
    passages = {
        name: lines_from(path.read_bytes(), start)[:size]
        for of, name, source, start, size in SOURCES
        if of == half and (path := path_of(source)).exists()
    }
    return passages | {name: text.encode() for name, text in WRITTEN[half].items()}


def data_folder() -> Path:
    """The folder of tokenizers, models and texts that are not part of this repository."""
    default = Path(__file__).parents[1] / ".." / "shared" / "data"
    return Path(os.environ.get("CHARWISE_DATA", default))


def folder_of(model: str) -> str | None:
    """The folder of a model, or None if it is missing."""
    folder = {
        "embedded": Path(EMBEDDED),
        "stories": data_folder() / "models" / "tinystories-3m",
        "smollm2": Path(__file__).parents[1] / ".models" / "smollm2-135m",
    }[model]
    return str(folder) if (folder / "config.json").exists() else None


def path_of(source: str) -> Path:
    """The file of a source of `SOURCES`, whether it exists or not."""
    if Path(source).suffix:
        return data_folder() / "text" / source
    return Path(sysconfig.get_path("stdlib")) / f"{source}.py"


def lines_from(data: bytes, start: int) -> bytes:
    """The lines that begin at `start` or later."""
    return data[data.find(b"\n", start - 1) + 1 :]


def modules() -> Iterator[bytes]:
    """The held-out modules in alphabetical order."""
    return (path_of(name).read_bytes() for name in HELD_OUT)


def english(size: int) -> bytes:
    """WikiText, or nothing if it is missing."""
    path = path_of("wikitext103_test_64k.txt")
    return lines_from(path.read_bytes(), 12000)[:size] if path.exists() else b""
