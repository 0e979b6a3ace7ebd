"""CUDA graphs of decode steps, one for each batch size that comes up, captured when it first does.

A step that is replayed costs the host one launch instead of some hundred. What a graph reads is where it was at the
capture: the weights, the decode state, and the addresses of the KV pool (not the pool itself, which may move). A model
whose own code cannot be captured (some mixtures of experts) is run step by step, with a warning.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from burnish.rollout.native.state import DecodeState

log = logging.getLogger(__name__)


def batch_size(rows: int) -> int:
    """The size that `rows` rows are run at: few sizes, so few graphs, and little waste."""
    for limit, step in ((8, None), (32, 8), (128, 16), (512, 32)):
        if rows <= limit:
            return -(-rows // step) * step if step else 1 << (max(rows, 1) - 1).bit_length()
    return -(-rows // 64) * 64


class Graphs:
    def __init__(self, state: DecodeState):
        self._state = state
        self._captured: dict[tuple[str, int], tuple[torch.cuda.CUDAGraph, Tensor | None]] = {}
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(state.device)
        self._refused = False  # the model cannot be captured

    def call(self, name: str, step: Callable[[int], Tensor | None], size: int) -> Tensor | None:
        """The result is where the next call of the same graph will overwrite it."""
        if (name, size) not in self._captured and not self._refused:
            try:
                self._captured[name, size] = self._capture(step, size)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._refused = True
                log.warning("decode steps run without CUDA graphs, slower: the model cannot be captured (%s)", error)
        if self._refused:
            return step(size)
        graph, result = self._captured[name, size]
        graph.replay()
        return result

    def _capture(self, step: Callable[[int], Tensor | None], size: int) -> tuple[torch.cuda.CUDAGraph, Tensor | None]:
        """Run once outside, which compiles kernels and sets libraries up; the rows are then put back as they were.

        (The keys and values that such a run stores are those the real step will store again.)
        """
        saved = self._state.saved()
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            step(size)
            self._state.restore(saved)
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
            try:
                result = step(size)
            except RuntimeError:
                with suppress(RuntimeError):  # it says again that there was an error
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph, result
