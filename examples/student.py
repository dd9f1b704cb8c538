"""A byte-level student learns from a table of `examples/teacher.py` with `--top`.

python examples/student.py teacher.parquet

The student here knows one byte of context. With all 257 symbols the loss would be
`-(teacher * student_logits.log_softmax(dim=1)).sum(dim=1).mean()`. `kl_div` multiplies by the log
of 0.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas
import torch

table = pandas.read_parquet(sys.argv[1])
byte = torch.tensor(table["byte"].to_numpy(), dtype=torch.long)  # [n]
before = torch.cat([torch.tensor([256]), byte[:-1]])  # 256: nothing yet

symbols = torch.tensor(np.stack(table["symbols"]).astype(np.int64))  # [n, K]
stored = np.column_stack([np.stack(table["logprobs"]), table["rest"]])
teacher = torch.tensor(stored, dtype=torch.float32).softmax(dim=1)  # [n, K + 1]


def distance(student_logits: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy with the teacher, over K symbols and the rest as one, in nats."""
    logprobs = student_logits.log_softmax(dim=1)
    inside = logprobs.gather(1, symbols)
    outside = logprobs.scatter(1, symbols, -torch.inf).logsumexp(dim=1, keepdim=True)
    return -(teacher * torch.cat([inside, outside], dim=1)).sum(dim=1).mean()


torch.manual_seed(0)
student = torch.nn.Embedding(257, 257)  # a byte, given the one before
optimizer = torch.optim.Adam(student.parameters(), lr=0.1)
first = distance(student(before)).item()
for _ in range(50):
    optimizer.zero_grad()
    loss = distance(student(before))
    loss.backward()
    optimizer.step()
least = -(teacher * teacher.clamp_min(1e-30).log()).sum(dim=1).mean().item()  # the teacher's own
print(f"{len(byte)} bytes: {first:.3f} nats, trained {loss.item():.3f}, at best {least:.3f}")
