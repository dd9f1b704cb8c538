"""A queue that is fair to clients: they take turns, whoever asks most."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items in the order in which they are served: one of each client, the client's oldest first.

    >>> queue = FairQueue[str]()
    >>> for client, item in [("a", "a1"), ("a", "a2"), ("b", "b1")]:
    ...     queue.add(client, item)
    >>> queue.next(), queue.next(), queue.next(), len(queue)
    ('a1', 'b1', 'a2', 0)
    """

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, client: str, item: Item) -> None:
        """Add an item behind the others of its client."""
        self._of.setdefault(client, deque()).append(item)

    def next(self) -> Item:
        """Take the item whose turn it is; its client's next one comes after those of all others."""
        client, items = self._of.popitem(last=False)
        item = items.popleft()
        if items:
            self._of[client] = items
        return item

    def oldest(self, client: str) -> Item | None:
        """Return a client's oldest item; None if it has none."""
        items = self._of.get(client)
        return items[0] if items else None

    def remove(self, client: str, item: Item) -> bool:
        """Take an item out; False if it is not there."""
        items = self._of.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._of[client]
        return True

    def clear(self) -> list[Item]:
        """Take all items out."""
        left = [item for items in self._of.values() for item in items]
        self._of.clear()
        return left
