"""Draw the regions of docs/for-psycholinguists.md, and the differences within each sentence.

python examples/study.py regions.csv regions.png
"""

from __future__ import annotations

import sys

import numpy as np
import pandas
from matplotlib.figure import Figure

regions = pandas.read_csv(sys.argv[1])
if "region" not in regions:
    sys.exit(f"{sys.argv[1]} has no regions: make it with charwise score --per region")


def bootstrap(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of values, and its interval of 95 % from drawing items again."""
    rng, n = np.random.default_rng(0), len(values)
    means = [values[rng.integers(0, n, n)].mean() for _ in range(1000)]
    return values.mean(), *np.percentile(means, [2.5, 97.5])


figure = Figure(figsize=(5, 3.2), layout="constrained")
numbers = sorted(regions.unit.unique())
axes = figure.add_subplot(xlabel="region", ylabel="surprisal (bits)", xticks=numbers)
for shift, (condition, part) in zip((-0.08, 0.08), regions.groupby("condition"), strict=True):
    for number, group in part.groupby("unit"):
        mean, low, high = bootstrap(group.surprisal.to_numpy())
        axes.errorbar(
            number + shift,
            mean,
            [[mean - low], [high - mean]],
            fmt="o",
            capsize=3,
            color="C0" if shift < 0 else "C1",
            label=f"{condition} (n = {len(group)})" if number == numbers[0] else None,
        )
axes.legend()
figure.savefig(sys.argv[2], dpi=150)

wide = regions.pivot(index=["sentence", "unit"], columns="condition", values="surprisal")
costs = (wide["no comma"] - wide["comma"]).dropna()  # regions that both conditions have
for number, group in costs.groupby("unit"):
    mean, low, high = bootstrap(group.to_numpy())
    print(f"region {number}: {mean:6.2f} bits more without the comma ({low:.2f} to {high:.2f})")
