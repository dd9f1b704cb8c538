"""Bits a byte of two models with different tokenizers, and of their mixture.

python benchmarks/mixture.py [--first smollm2] [--second embedded]
"""

from __future__ import annotations

import texts
from charwise import combine
from harness import arguments, finish, lm_of, table


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--first", default="smollm2", choices=texts.MODELS)
    parser.add_argument("--second", default="embedded", choices=texts.MODELS)
    args = parser.parse_args()
    size = 40 if args.quick else 400
    passages = {
        f"code, {name}": texts.lines_from(texts.path_of(name).read_bytes(), 3000)[:size]
        for name in ("fractions", "textwrap")
    }
    english = texts.english(size)
    passages |= {"English": english, "joined": english + passages["code, textwrap"]}
    models = {name: lm_of(name) for name in (args.first, args.second)}
    models["mixture"] = combine.mixture(list(models.values()))
    rows = {
        text: [lm.score(data).bits_per_byte for lm in models.values()]
        for text, data in passages.items()
        if data
    }
    finish(table("Bits a byte", ["text", *models], rows, ".3f"))


if __name__ == "__main__":
    main()
