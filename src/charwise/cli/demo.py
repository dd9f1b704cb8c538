"""The prompts of `charwise demo`: Python that stops inside an identifier or a word.

Each has the context that settles how the word goes on, as a file in an editor has.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Example(NamedTuple):
    """A prompt, and the rest of the word that it stops in."""

    prompt: str
    meant: str

    def is_right(self, completion: str) -> bool:
        """Whether a completion ends the word as it was meant.

        >>> example = Example("raise ValueErr", "or")
        >>> example.is_right("or(x)"), example.is_right("ors"), example.is_right(", C")
        (True, False, False)
        """
        return re.match(re.escape(self.meant) + r"(?!\w)", completion) is not None


NODE = '''\
class Node:
    """A node of a binary search tree."""

    def __init__(self, value):
        self.value = value
        self.left = None
        self.right = None


class Tree:
    def __init__(self):
        self.root = None

    def add_node(self, value) -> Node:
        node = Node(value)
        if self.root is None:
            self.root = node
        return node

    def get_node(self, value) -> Nod'''

CHECK = """\
def check(value):
    if value < 0:
        raise ValueErr"""

TEST = """\
import unittest


class TestQueue(unittest.TestCase):
    def test_empty(self):
        queue = Queue()
        self.assertEqual(queue.size(), 0)

    def test_put(self):
        queue = Queue()
        queue.put(1)
        self.assertEq"""

IMPORT = """\
import os
import re
import sy"""

LOOP = """\
def total(values):
    result = 0
    for i in rang"""

MAIN = """\
def main():
    print("done")


if __name__ == "__mai"""

INSTANCE = """\
def flatten(items):
    for item in items:
        if isinstan"""

JOIN = """\
import os


def read(folder, name):
    with open(os.path.joi"""

EXAMPLES = [
    Example(NODE, "e"),
    Example(CHECK, "or"),
    Example(TEST, "ual"),
    Example(IMPORT, "s"),
    Example(LOOP, "e"),
    Example(MAIN, "n__"),
    Example(INSTANCE, "ce"),
    Example(JOIN, "n"),
]
