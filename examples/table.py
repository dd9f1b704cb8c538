"""Surprisals of the words of many texts, in one table.

python examples/table.py [MODEL [TEXTS.csv COLUMN]]
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas

import charwise

lm = charwise.load(sys.argv[1] if len(sys.argv) > 1 else "embedded")
file = sys.argv[2] if len(sys.argv) > 2 else Path(__file__).with_name("stimuli.csv")
column = sys.argv[3] if len(sys.argv) > 3 else "text"

texts = pandas.read_csv(file)[column]
tables = [score.words("trailing").to_pandas() for score in lm.scores(texts.tolist())]
words = pandas.concat(tables, keys=texts.index, names=["row", "word"])

print(words.reset_index().to_csv(index=False))
means = words.groupby("row").surprisal.mean()
print(f"{len(words)} words, {means.mean():.2f} bits a word in the mean of texts", file=sys.stderr)
