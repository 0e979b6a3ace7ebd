"""Proof, after every publish, that what generates is what is trained.

Two things are checked. Every parameter is where it was when the engine was made, because graphs and merged buffers
read that memory. And a fixed sequence, half of it read as a prompt and half fed token by token, gets the logits that
the module's own forward pass gives it.
"""

import numpy as np
import torch
from torch import nn

from burnish.errors import RolloutError
from burnish.rollout.base import POLICY_IS_BROKEN
from burnish.rollout.in_process import evaluating
from burnish.rollout.native.kv_pool import BlockManager
from burnish.rollout.native.runner import Runner

LENGTH, PROMPT = 16, 8
# Of the spread of logits over tokens. A model that computes something else is about 1 away; a trained one of 30 layers
# in bfloat16 was 0.096 away by rounding alone, on this sequence that means nothing to it.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25, torch.float16: 0.05}


class Canary:
    def __init__(self, module: nn.Module, context: int):
        self._module = module
        self._pointers = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
        self._length = min(LENGTH, context)

    def check(self, runner: Runner, blocks: BlockManager) -> None:
        """RolloutError if generation does not follow the module's weights. Nothing may be running."""
        now = {name: parameter.data_ptr() for name, parameter in self._module.named_parameters()}
        moved = [name for name, place in self._pointers.items() if now.get(name) != place]
        if moved:
            raise RolloutError(
                f"{len(moved)} of {len(now)} parameters moved in memory since the rollout engine was made, such as "
                f"{moved[0]}: it reads the old memory. Write weights in place (`copy_`), or make the engine afterwards"
            )
        vocabulary = int(self._module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        ids = (np.arange(1, self._length + 1) * 7919) % vocabulary
        taken = blocks.take(-(-self._length // blocks.block_size))
        try:
            with evaluating(self._module), torch.no_grad():
                line = torch.from_numpy(ids)[None].to(runner.device)
                plain = self._module(input_ids=line, use_cache=False).logits[0].float()  # (n, V)
                own = runner.teacher_forced(ids, taken, prompt=min(PROMPT, self._length)).float()
        finally:
            blocks.release(taken)
        if not bool(plain.isfinite().all()):
            raise RolloutError(POLICY_IS_BROKEN)
        spread = float((plain - plain.mean(-1, keepdim=True)).norm())
        difference = float((own - plain).norm()) / max(spread, 1e-6)
        allowed = TOLERANCE.get(runner.pool.dtype, TOLERANCE[torch.float32])
        if not difference <= allowed:
            raise RolloutError(
                f"the rollout engine does not compute what the trained module ({type(self._module).__name__}) does: "
                f"logits of a fixed sequence differ by {difference:.2g} of their spread, {allowed:g} is rounding. "
                "Use rollout.name=hf"
            )
