"""Kernels of the fused passes, compiled side by side before they are needed.

Triton compiles a kernel when it is first called: some ten seconds each, one after the other. Here each is called once
on a few zeros of the model's sizes, in a separate thread: compilers run outside of Python's lock.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.models import llama
from burnish.models.decoders import FusedDecoder
from burnish.ops.linear_log_probs import linear_log_probs
from burnish.ops.paged_attention import BLOCK_SIZE, LayerKV, Paged, paged_attention
from burnish.ops.rms_norm import add_rms_norm, rms_norm
from burnish.ops.rotary import rotary, rotary_store
from burnish.ops.sampling import STOPS, DecodeRows, sample_and_advance
from burnish.ops.swiglu import swiglu

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS = 16  # of a call
MANY = 1024  # tokens of a long prompt: attention has other tiles for those
SOME = 16  # numbers of no importance; kernels treat multiples of 16 differently, and most sizes are one

Call = Callable[[], object]


def compile_ahead(module: "PreTrainedModel", *, rollout: bool, training: bool) -> None:
    """Have the kernels at hand that generation by the native engine and fused training passes will call."""
    if not (rollout or training) or FusedDecoder.problem(module):
        return
    calls = FirstCalls(module)
    calls.norm()  # alone: it imports Triton, and has it hash itself
    wanted = (calls.of_rollout() if rollout else []) + (calls.of_training() if training else [])

    def on_its_device(call: Call) -> None:
        with torch.cuda.device_of(calls.norm_weight):  # a thread begins on the first GPU; no effect without one
            call()

    with ThreadPoolExecutor(len(wanted)) as threads:
        for done in [threads.submit(on_its_device, call) for call in wanted]:
            done.result()


class FirstCalls:
    """The first calls of kernels, for one module, which they leave as it is."""

    def __init__(self, module: "PreTrainedModel"):
        layers = llama.layers(module.model, llama.Projection)
        self.layer = layers[0]
        self.windows = {layer.window is None: layer.window for layer in layers}.values()  # one with, one without
        self.norm_weight, self.head_norms = self.layer.input_norm, (self.layer.q_norm, self.layer.k_norm)
        self.vocabulary, self.context = module.lm_head.out_features, module.config.max_position_embeddings
        self.heads, self.inner = self.layer.heads, self.layer.gate_up.bases[0].out_features
        self.size = self.layer.qkv.bases[0].out_features // self.heads
        self.kv_heads = self.layer.qkv.bases[1].out_features // self.size

    def of_rollout(self) -> list[Call]:
        """Those of `models/decoders.py` and of the native engine's sampling; `norm` was called before."""
        line = self.zeros(2, dtype=torch.int32)
        line[1] = TOKENS
        lines: list[tuple[int, Tensor | None, int, int]] = [
            (1, None, 1, BLOCK_SIZE),
            (1, None, 1, self.context),  # so long that several programs share it
            (TOKENS, line, 1, TOKENS),
            (TOKENS, line, MANY, TOKENS),
        ]
        attends = [partial(self.attend, window, *given) for window in self.windows for given in lines]
        samples = [partial(self.sample, index) for index in (None, self.zeros(1, dtype=torch.int64))]
        return [*attends, *samples, partial(self.norm, self.states()), self.store]

    def of_training(self) -> list[Call]:
        """Those of `models/backbones.py` and of the output layer, with and without gradients."""
        return [
            lambda: self.differentiate_norm(None),
            lambda: self.differentiate_norm(self.states()),
            lambda: self.turn(grad=False),
            lambda: _backward(*self.turn(grad=True)),
            lambda: _backward(swiglu(self.zeros(TOKENS, 2 * self.inner, grad=True))),
            lambda: _backward(self.log_probs("log_prob")),
            lambda: _backward(self.log_probs("log_prob", "entropy")),
        ]

    def norm(self, *residual: Tensor) -> None:
        rms_norm(self.states(), self.norm_weight.detach(), 1.0, *residual)

    def store(self) -> None:
        q_norm, k_norm = (None if weight is None else weight.detach() for weight in self.head_norms)
        qkv, table, at = self.projected(), self.zeros(TOKENS, self.size), self.zeros(TOKENS, dtype=torch.int64)
        rotary_store(qkv, at, table, table, self.pool(), at, heads=self.heads, q_norm=q_norm, k_norm=k_norm, eps=1.0)

    def attend(self, window: int | None, tokens: int, starts: Tensor | None, longest_query: int, longest: int) -> None:
        slots, tables = self.zeros(tokens, dtype=torch.int64), self.zeros(1, 2, dtype=torch.int32)
        where = Paged(slots, tables, tables[:, 0] + tokens, starts, longest_query, longest)
        query = self.zeros(tokens, self.heads, self.size)
        paged_attention(query, self.pool(), where, scale=self.layer.scale, window=window)

    def sample(self, index: Tensor | None) -> None:
        def floats(*shape: int) -> Tensor:
            return self.zeros(*shape, dtype=torch.float32)

        place, count = self.zeros(1, dtype=torch.int64), self.zeros(1, dtype=torch.int32)
        idle = DecodeRows(
            ids=place, positions=place, left=count, drawn=place, seeds=place, temperature=floats(1), top_k=count,
            top_p=floats(1), min_p=floats(1), stops=self.zeros(1, STOPS, dtype=torch.int64), out=floats(3, SOME),
        )  # fmt: skip
        sample_and_advance(self.zeros(1, self.vocabulary), idle, index, index)

    def differentiate_norm(self, before: Tensor | None) -> None:
        results = add_rms_norm(self.states(grad=True), _apart(self.norm_weight), 1.0, before)
        _backward(*results[: 1 if before is None else 2])  # after the last norm nobody reads the sum

    def turn(self, grad: bool) -> tuple[Tensor, ...]:
        q_norm, k_norm = (None if weight is None else _apart(weight) for weight in self.head_norms)
        table = self.zeros(TOKENS, self.size)
        return rotary(self.projected(grad), table, table, heads=self.heads, q_norm=q_norm, k_norm=k_norm, eps=1.0)

    def log_probs(self, *outputs: str) -> Tensor:
        states, weight = self.zeros(TOKENS, SOME, grad=True), self.zeros(self.vocabulary, SOME, grad=True)
        return linear_log_probs(states, weight, self.zeros(TOKENS, dtype=torch.int64), outputs)["log_prob"]

    def states(self, grad: bool = False) -> Tensor:
        return self.zeros(TOKENS, len(self.norm_weight), grad=grad)

    def projected(self, grad: bool = False) -> Tensor:
        return self.zeros(TOKENS, (self.heads + 2 * self.kv_heads) * self.size, grad=grad)

    def pool(self) -> LayerKV:
        keys, values = (self.zeros(2, BLOCK_SIZE, self.kv_heads, self.size) for _ in range(2))
        return LayerKV(keys, values, torch.tensor([keys.data_ptr(), values.data_ptr()], device=keys.device))

    def zeros(self, *shape: int, dtype: torch.dtype | None = None, grad: bool = False) -> Tensor:
        like = self.norm_weight
        return torch.zeros(shape, dtype=dtype or like.dtype, device=like.device, requires_grad=grad)


def _apart(weight: Tensor) -> Tensor:
    """The same values, whose gradient goes nowhere."""
    return weight.detach().requires_grad_(weight.requires_grad)


def _backward(*results: Tensor) -> None:
    with torch.autograd.set_multithreading_enabled(False):  # or the backward passes of all threads share one
        torch.autograd.backward(results, [torch.zeros_like(result) for result in results])
