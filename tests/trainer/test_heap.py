"""Garbage collections of a run: what was there before is left alone, and is looked at again afterwards."""

import gc
import weakref

import pytest

from burnish.trainer.heap import older_objects_kept


class Node:
    def __init__(self):
        self.itself = self  # a cycle, which only a collection can free


def test_only_what_the_block_makes_is_collected_until_its_end():
    gc.disable()  # no collection but ours
    try:
        garbage, old = weakref.ref(Node()), Node()
        with pytest.raises(KeyError), older_objects_kept():
            assert garbage() is None  # what was garbage already is not kept
            held, young = weakref.ref(old), weakref.ref(Node())
            del old
            gc.collect()
            assert young() is None and held() is not None
            raise KeyError
        gc.collect()
        assert held() is None and gc.get_freeze_count() == 0
    finally:
        gc.enable()
