"""Who has which blocks of the KV pool, and which of them hold a beginning that another sequence may share.

A block holds the keys and values of S tokens. Several sequences may have the same block, if their tokens agree up to
its end; it is written once, before that. `remember` tells what a full block holds. When nobody has such a block any
more it is kept, and given away only when no empty one is left, the one that was released first going first.

What a block holds is known by its tokens and by the block before it, not by a hash: a match is never a mistake.
Block 0 belongs to nobody; whatever has no place is written there.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

Key = tuple[int, bytes]  # serial number of the block before, and this block's tokens


class BlockManager:
    """Counts blocks; the pool's tensors are elsewhere (`kv_pool.py`)."""

    def __init__(self, blocks: int, block_size: int, caching: bool = True):
        self.block_size = block_size
        self.total = blocks - 1
        self._caching = caching
        self._empty = list(range(blocks - 1, 0, -1))  # a stack
        self._holders = np.zeros(blocks, dtype=np.int32)
        self._kept: OrderedDict[int, None] = OrderedDict()  # nobody has them, but what they hold may be asked for
        self._found: dict[Key, int] = {}  # block by what it holds
        self._keys: dict[int, Key] = {}  # the other way round
        self._serials: dict[int, int] = {}  # of the blocks in `_keys`; never used twice
        self._next_serial = 1

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return len(self._empty) + len(self._kept)

    @property
    def empty(self) -> int:
        """Blocks that can be taken and hold nothing worth keeping."""
        return len(self._empty)

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def cached(self) -> int:
        return len(self._kept)

    def take(self, count: int) -> list[int]:
        """Blocks for one sequence to write in; the caller has seen that `free` suffices."""
        taken = []
        for _ in range(count):
            block = self._empty.pop() if self._empty else self._evict()
            self._holders[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """Another sequence has them too."""
        for block in blocks:
            self._holders[block] += 1
            self._kept.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """One sequence has them no longer."""
        for block in reversed(blocks):  # a later block is of no use without those before it: it goes first
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._keys:
                    self._kept[block] = None
                else:
                    self._empty.append(block)

    def match(self, tokens: np.ndarray) -> list[int]:
        """Blocks that hold the beginning of `tokens`. At least the last token is left out: its logits are wanted."""
        found: list[int] = []
        serial = 0
        for i in range((len(tokens) - 1) // self.block_size if self._caching else 0):
            block = self._found.get((serial, self._content(tokens, i)))
            if block is None:
                break
            found.append(block)
            serial = self._serials[block]
        return found

    def remember(self, tokens: np.ndarray, blocks: Sequence[int]) -> None:
        """`blocks` hold the keys and values of `tokens`, as far as these fill them."""
        serial = 0
        for i in range(len(tokens) // self.block_size if self._caching else 0):
            if blocks[i] not in self._keys:
                key = (serial, self._content(tokens, i))
                if (twin := self._found.get(key)) is not None:  # written twice: the first stays the one to share
                    serial = self._serials[twin]
                    continue
                self._found[key], self._keys[blocks[i]] = blocks[i], key
                self._serials[blocks[i]], self._next_serial = self._next_serial, self._next_serial + 1
            serial = self._serials[blocks[i]]

    def forget(self) -> None:
        """What blocks hold is no longer valid: the weights have changed."""
        self._empty += self._kept
        self._kept.clear()
        self._found.clear()
        self._keys.clear()
        self._serials.clear()

    def _evict(self) -> int:
        block, _ = self._kept.popitem(last=False)
        del self._found[self._keys.pop(block)], self._serials[block]
        return block

    def _content(self, tokens: np.ndarray, i: int) -> bytes:
        return tokens[i * self.block_size : (i + 1) * self.block_size].tobytes()
