"""The texts that benchmarks run on, and the models that the texts are for.

`PASSAGES` says which half each passage belongs to. Constants of scoring may be chosen on the half
`choosing`; tables are made from the half `judging`. Never move a passage from one to the other.

The embedded model was trained on the standard library of Python 3.11, except the modules in
`HELD_OUT`, tests, and everything in a folder named `test` (`training/data.py`).
"""

from __future__ import annotations

import base64
import os
import random
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import charwise
from charwise.models import EMBEDDED

#: Modules of the standard library that the embedded model never saw.
HELD_OUT = ("cmd", "fractions", "heapq", "mailbox", "sched", "shelve", "statistics", "textwrap")

#: Bytes of a passage, by its kind. Far out of domain every byte takes many contexts.
SIZES = {"code": 400, "easy": 320, "far": 300, "other": 300}

#: Fewer bytes where a beam's tokens must fit a short window: of Chinese, each byte is a token.
SHORTER = {("stories", "other"): 200}

MODELS = ("embedded", "stories", "small")


class Passage(NamedTuple):
    """A text, and the model that scores it.

    `kind` groups the passages in tables: unseen "code", "easy" text, text "far" out of the
    model's domain, "other" text, and "repeat": words, tables and runs that come again.
    """

    model: str
    what: str
    kind: str
    text: bytes

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.model}: {self.what}"


#: Half, model, name, kind, source, and offset. A passage begins with the first whole line at or
#: after the offset. A source is a module of the standard library, a file in `CHARWISE_DATA`, or
#: the name of a text of this module.
PASSAGES: tuple[tuple[str, str, str, str, str, int], ...] = (
    # Half of the twenty passages that earlier versions were measured on.
    ("choosing", "embedded", "code, fractions", "code", "fractions", 9000),
    ("choosing", "embedded", "code, statistics", "code", "statistics", 20000),
    ("choosing", "embedded", "English", "far", "text/wikitext103_test_64k.txt", 30000),
    ("choosing", "embedded", "Chinese", "other", "text/udhr_zh.txt", 4000),
    ("choosing", "stories", "code, heapq", "far", "heapq", 12000),
    ("choosing", "stories", "German", "far", "text/udhr_de.txt", 8000),
    ("choosing", "stories", "JSON", "other", "prompts/humaneval_random_span_light.jsonl", 80000),
    ("choosing", "small", "code, shelve", "other", "shelve", 4000),
    ("choosing", "small", "English", "other", "text/udhr_en.txt", 9600),
    ("choosing", "small", "Chinese", "other", "text/udhr_zh.txt", 8300),
    # The other half.
    ("judging", "embedded", "code, textwrap", "code", "textwrap", 9000),
    ("judging", "embedded", "German", "far", "text/udhr_de.txt", 6000),
    ("judging", "embedded", "JSON", "other", "prompts/humaneval_random_span_light.jsonl", 40000),
    ("judging", "stories", "English", "other", "text/wikitext103_test_64k.txt", 45000),
    ("judging", "stories", "Chinese", "other", "text/udhr_zh.txt", 6000),
    ("judging", "stories", "a story of its own", "easy", "OWN_STORY", 0),
    ("judging", "small", "code, mailbox", "other", "mailbox", 40000),
    ("judging", "small", "English, encyclopedia", "other", "text/wikitext103_test_64k.txt", 57000),
    ("judging", "small", "German", "other", "text/udhr_de.txt", 11000),
    ("judging", "small", "JSON", "other", "prompts/humaneval_random_span_light.jsonl", 120000),
    # New texts: nothing was ever measured on them.
    ("judging", "embedded", "code, sched", "code", "sched", 2000),
    ("judging", "embedded", "code, cmd", "code", "cmd", 7000),
    ("judging", "embedded", "code, heapq", "code", "heapq", 4000),
    ("judging", "embedded", "code, mailbox", "code", "mailbox", 20000),
    ("judging", "embedded", "code, statistics, median", "code", "statistics", 14000),
    ("judging", "embedded", "code, os_helper", "code", "test/support/os_helper", 15000),
    ("judging", "embedded", "code, run_workers", "code", "test/libregrtest/run_workers", 9000),
    ("judging", "embedded", "code, script_helper", "code", "test/support/script_helper", 5000),
    ("judging", "stories", "a story", "easy", "STORY", 0),
    ("judging", "embedded", "English, games", "far", "text/wikitext103_test_64k.txt", 12000),
    ("judging", "embedded", "English, rights", "far", "text/udhr_en.txt", 3000),
    ("judging", "embedded", "German, end", "far", "text/udhr_de.txt", 10000),
    ("judging", "embedded", "CSV", "far", "CSV", 0),
    ("judging", "embedded", "CSV, wide", "far", "CSV_WIDE", 0),
    ("judging", "embedded", "logs", "far", "LOGS", 0),
    ("judging", "embedded", "logs, web", "far", "LOGS_WEB", 0),
    ("judging", "stories", "code, sched", "far", "sched", 4000),
    ("judging", "stories", "code, statistics", "far", "statistics", 30000),
    ("judging", "embedded", "Japanese", "other", "text/udhr_ja.txt", 5000),
    ("judging", "embedded", "Arabic", "other", "text/udhr_ar.txt", 5000),
)

#: Sampled from the TinyStories model at temperature 0.9.
OWN_STORY = b"""\
One day, a girl named Jane had a special bag in her yard. It was red and pretty, and it was a \
pretty light. The things in the world cared about the house.
One day, a little girl wanted to give the treasure to the world. She looked in the yard and saw \
that it was covered in water and seeds on top. She said, "I want to make everyone happy." \n\
The sun shone on her house and the flowers in the sky. The"""

#: Written by hand in the style of the TinyStories model.
STORY = b"""\
Once upon a time, there was a little boy named Tim. Tim had a big red ball. He liked to play with \
his ball in the park every day. One day, Tim saw a small dog. The dog was sad. "Why are you sad?" \
asked Tim. The dog wanted to play too. Tim gave the ball to the dog and they ran in the park. They \
were very happy. At the end of the day, Tim and the dog went home. They became best friends."""


def _csv(columns: Sequence[str], seed: int) -> bytes:
    """A table of numbers under a head of names."""
    rng, lines = random.Random(seed), [",".join(columns)]
    for n in range(60):
        cells = [f"{rng.uniform(0, 100):.{1 + at % 3}f}" for at in range(len(columns) - 2)]
        lines.append(",".join([f"S{n + 17:03d}", rng.choice(("north", "south", "west")), *cells]))
    return "\n".join(lines).encode()


def _logs(form: str, seed: int) -> bytes:
    """Lines of a log."""
    rng, lines, second = random.Random(seed), list[str](), 0
    for _ in range(40):
        second += rng.randrange(1, 50)
        lines.append(
            form.format(
                time=f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}",
                level=rng.choice(("INFO", "WARN", "DEBUG")),
                part=rng.choice(("kafka.broker-7", "replica-fetcher", "raft.election")),
                number=rng.randrange(10**5),
                address=".".join(str(rng.randrange(256)) for _ in range(4)),
                path=rng.choice(("/static/app.css", "/api/v2/orders?page=3", "/favicon.ico")),
            )
        )
    return "\n".join(lines).encode()


CSV = _csv(("station", "region", "temp_max", "humidity", "wind_kmh"), 5)
CSV_WIDE = _csv(("id", "zone", "pH", "NO3", "PO4", "turbidity", "chl_a", "O2_sat"), 6)
LOGS = _logs("2026-03-14T{time}.{number:05d}Z {level} [{part}] lag={number} peer={address}", 7)
LOGS_WEB = _logs('{address} - - [14/Mar/2026:{time} +0000] "GET {path} HTTP/1.1" 200 {number}', 8)

#: Short sentences by half, for both models.
SENTENCES: dict[str, tuple[str, ...]] = {
    "choosing": (
        "The horse raced past the barn fell.",
        "The old man the boat.",
        "The dog that the cat chased ran away.",
        "While the man hunted the deer ran into the woods.",
        "The complex houses married and single soldiers and their families.",
        "Fat people eat accumulates.",
        "The florist sent the flowers was pleased.",
        "The cotton clothing is made of grows in Mississippi.",
        "When Fred eats food gets thrown.",
        "I told the girl the cat that scratched Bill would help her.",
        "The man who whistles tunes pianos.",
    ),
    "judging": (
        "The boy who the girl kissed left early.",
        "She put the book on the table in the box.",
        "The defendant examined by the lawyer was unreliable.",
        "Because the hikers walked the trail was muddy.",
        "The raft floated down the river sank.",
        "Anna knew the answer was wrong.",
        "The key to the cabinets were rusty.",
        "No head injury is too trivial to be ignored.",
        "The coach smiled at the player tossed the ball.",
        "We painted the wall with cracks.",
    ),
}

#: Repeats and runs that constants may be chosen on. Every second is for both models.
CHOOSING_REPEATS: dict[str, bytes] = {
    "foo, 8 times": b"foo " * 8,
    "kwarg, 8 times": b"kwarg " * 8,
    "no, 40 times": b"no " * 40,
    "a table": b"| name | size |\n|---|---|\n" + b"| quux | 12 |\n| zarf | 7 |\n" * 5,
    "foo_bar, 7 times": b"foo_bar " * 7,
    "the, 12 times": b"the " * 12,
    "quokka, 7 times": b"quokka " * 7,
    "zumquandle, 10 times": b"zumquandle " * 10,
    "mohoduwax, 8 times": b"mohoduwax " * 8,
    "niradepa, 9 times": b"niradepa " * 9,
    "blank lines": b"   \n" * 12,
    "lines of 7 blanks": (b" " * 7 + b"\n") * 15,
    "mov": b"mov eax, 1\nmov ebx, 2\n",
    "a, 80 times": b"a" * 80,
    "80 spaces": b" " * 80,
    "base64": base64.b64encode(random.Random(13).randbytes(72)),
    "emoji": "🙂🙂🚀🙂🚀🚀🙂🇩🇪👩‍🔬🙂".encode(),
    "invalid UTF-8": random.Random(14).randbytes(64),
    "half characters": "é".encode()[:1] * 12 + "天".encode()[:2] * 12,
}

#: Repeats and runs to judge by.
JUDGING_REPEATS: dict[str, bytes] = {
    "ValueEr, 4 times": b"ValueEr" * 4,
    "return, 7 times": b"return " * 7,
    "ha, 60 times": b"ha" * 60,
    "abc, 12 times": b"abc, " * 12,
    "cells, 9 times": b"<td></td>" * 9,
    "x = 1, 9 times": b"x = 1\n" * 9,
    "another table": b"| a | bee | c |\n|---|---|---|\n" + b"| 1 | wex | 3.5 |\n" * 7,
    "., 120 times": b"." * 120,
    "=, 80 times": b"=" * 80,
    "#, 90 times": b"#" * 90,
    "150 spaces": b" " * 150,
    "80 line ends": b"\n" * 80,
    "0, 20 times": b"0, " * 20,
    "-*-, 20 times": b"-*-" * 20,
    "Chinese, repeated": "天地玄黄，宇宙洪荒。".encode() * 3,
}


def data_folder() -> Path:
    """The folder of tokenizers, models and texts that are not part of this repository."""
    default = Path(__file__).parents[1] / ".." / "shared" / "data"
    return Path(os.environ.get("CHARWISE_DATA", default))


def folder_of(model: str) -> str | None:
    """The folder of a model, or None if it is missing."""
    folder = Path(EMBEDDED)
    if model == "stories":
        folder = data_folder() / "models" / "tinystories-3m"
    elif model == "small":
        folder = Path(os.environ.get("CHARWISE_SMALL_MODEL", "missing"))
    return str(folder) if (folder / "config.json").exists() else None


def models(names: Sequence[str] = MODELS) -> dict[str, charwise.CharLM]:
    """The models that are there, by name."""
    found = {}
    for name in names:
        folder = folder_of(name)
        if folder is None:
            where = "CHARWISE_DATA" if name == "stories" else "CHARWISE_SMALL_MODEL"
            print(f"The model {name!r} is left out: not in {where}.", file=sys.stderr)
        else:
            found[name] = charwise.load(folder, device="cpu")
    return found


def tinystories() -> charwise.CharLM | None:
    """The TinyStories model, if its folder is there."""
    folder = folder_of("stories")
    return None if folder is None else charwise.load(folder)


def passages(half: str, kinds: Sequence[str] = (), size: int = 0) -> list[Passage]:
    """The passages of a half, of all kinds or some, whose models and files are there."""
    found = [
        Passage(model, what, kind, data[: size or SHORTER.get((model, kind), SIZES[kind])])
        for of, model, what, kind, source, start in PASSAGES
        if of == half and folder_of(model) and (data := _data(source, start))
    ]
    repeats = CHOOSING_REPEATS if half == "choosing" else JUDGING_REPEATS
    found += [
        Passage(model, what, "repeat", text)
        for model, every in (("embedded", 1), ("stories", 2))
        for what, text in list(repeats.items())[::every]
        if folder_of(model)
    ]
    return [one for one in found if not kinds or one.kind in kinds]


def _data(source: str, start: int) -> bytes:
    """A source from the first line at or after `start`; nothing if it is missing."""
    text = globals().get(source)
    if isinstance(text, bytes):
        return text
    path = path_of(source)
    return lines_from(path.read_bytes(), start) if path.exists() else b""


def path_of(source: str) -> Path:
    """The file of a source of `PASSAGES`, whether it exists or not."""
    if Path(source).suffix:
        return data_folder() / source
    return Path(sysconfig.get_path("stdlib")) / f"{source}.py"


def lines_from(data: bytes, start: int) -> bytes:
    """The lines that begin at `start` or later."""
    return data[data.find(b"\n", start - 1) + 1 :]


def modules() -> Iterator[bytes]:
    """The held-out modules in alphabetical order."""
    folder = Path(sysconfig.get_path("stdlib"))
    return ((folder / f"{name}.py").read_bytes() for name in HELD_OUT)


def hard_text(size: int) -> bytes:
    """The held-out modules, one after the other: code that the embedded model never saw."""
    return b"".join(modules())[:size]


def english(size: int) -> bytes:
    """WikiText, or nothing if it is missing."""
    path = data_folder() / "text" / "wikitext103_test_64k.txt"
    return lines_from(path.read_bytes(), 12000)[:size] if path.exists() else b""


def easy_text(lm: charwise.CharLM, size: int) -> bytes:
    """Stories that a model itself writes, at a fixed seed, one after the other."""
    text, seed = b"", 0
    while len(text) < size:
        story = lm.complete(
            "Once upon a time", temperature=0.8, seed=seed, max_new_bytes=700, preset="fast"
        )[0]
        text += b"Once upon a time" + story.raw + b"\n"
        seed += 1
    return text[:size]
