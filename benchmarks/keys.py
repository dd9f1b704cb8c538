"""How long a key takes until ghost text shows in VS Code, beside the same requests to the server.

    make extensions
    python benchmarks/keys.py [--model smollm2] [--texts 12]

Each text is the beginning of a line of code of the standard library. The first key lets the server
read it, as in typing; the next five are timed, each after Escape hid the ghost text. Both sides ask
a server of their own. The time in VS Code includes the extension's debounce of 60 ms.
"""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

import httpx
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests_editors", "tests/serve", "tests")]

from editors import GHOST, Window, vscode_web  # noqa: E402
from harness import arguments, finish, lm_of, table  # noqa: E402
from serving import running  # noqa: E402

KEYS = 6  # characters typed at the end of each text: with the first, the server reads it

#: Notes when a key went down, and when ghost text came up.
WATCH = """
    addEventListener("keydown", () => { self.pressed = performance.now(); }, true);
    new MutationObserver(() => {
      const shown = document.querySelector("GHOST");
      self.shown = shown && (self.shown || performance.now());
    }).observe(document.body, { childList: true, subtree: true });
""".replace("GHOST", GHOST)

#: Returns the milliseconds from the last key to ghost text, or null where none comes in 3 seconds.
WAIT = """async () => {
    for (let n = 0; n < 60 && !self.shown; n++) await new Promise((wake) => setTimeout(wake, 50));
    return self.shown && self.shown - self.pressed;
}"""


def beginnings(count: int) -> list[str]:
    """Code that ends inside a line, after its second word began."""
    lines = Path(textwrap.__file__).read_text("utf-8").splitlines()
    cut = [n for n, line in enumerate(lines) if len(line) > 30 and not line.strip().startswith("#")]
    places = cut[20 :: max(1, (len(cut) - 20) // count)][:count]
    return ["\n".join(lines[max(0, n - 30) : n]) + "\n" + lines[n][:20] for n in places]


def in_vscode(window: Window, text: str) -> list[float | None]:
    """Return the milliseconds from each key to its ghost text; None where the model offers none."""
    window.open(text[:-KEYS])
    waits = []
    for key in text[-KEYS:]:
        window.page.keyboard.press("Escape")
        window.page.wait_for_timeout(200)
        window.page.evaluate("self.shown = null")
        window.type(key)
        waits.append(window.page.evaluate(WAIT))
    return waits[1:]


def of_the_server(client: httpx.Client, text: str) -> list[float]:
    """Return the milliseconds of the same requests."""
    waits = []
    for end in range(len(text) - KEYS + 1, len(text) + 1):
        body = {"input_prefix": text[:end], "input_suffix": "", "until": "line", "temperature": 0}
        start = time.perf_counter()
        client.post("/infill", json=body | {"t_max_predict_ms": 1000}).raise_for_status()
        waits.append(1000 * (time.perf_counter() - start))
    return waits[1:]


def main() -> None:
    parser = arguments(__doc__ or "", "smollm2")
    parser.add_argument("--texts", type=int, default=12)
    args = parser.parse_args()
    texts, lm = beginnings(args.texts), lm_of(args.model)
    with (
        running(lm, allow_origins=("*",)) as one,
        running(lm) as other,
        vscode_web(one.url) as window,
        httpx.Client(base_url=other.url, timeout=60) as client,
    ):
        window.page.evaluate(WATCH)
        of_the_server(client, texts[0])  # compiles
        waits = [
            pair
            for text in texts
            for pair in zip(in_vscode(window, text), of_the_server(client, text), strict=True)
        ]
    both = [(a, b) for a, b in waits if a is not None]
    quantiles = np.quantile(both, [0.5, 0.95], axis=0).T.round().astype(int).tolist()
    rows = dict(zip(("ghost text in VS Code", "the server alone"), quantiles, strict=True))
    title = f"{len(both)} of {len(waits)} keys with ghost text, {args.model}"
    finish(table(title, ["milliseconds from a key", "p50", "p95"], rows))


if __name__ == "__main__":
    main()
