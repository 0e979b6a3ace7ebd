"""The toy engine: one request at a time, a whole forward pass for every token."""

from typing import Any

import torch
from torch import nn

from burnish.rollout.admission import Admitting
from burnish.rollout.base import uniforms
from burnish.rollout.in_process import evaluating, sample


class ToyEngine(Admitting):
    """Generates with the trained module."""

    name = "toy"

    def __init__(self, module: nn.Module, tokenizer: Any, max_model_len: int | None = None, patience: int = 0):
        super().__init__(module, tokenizer, max_model_len)
        self.module, self.patience = module, patience
        self._counts = {"generated_tokens": 0}

    @classmethod
    def from_config(cls, module, tokenizer, config, logs=None) -> "ToyEngine":
        return cls(module, tokenizer, config.max_model_len, **config.engine_kwargs.get("toy", {}))

    def _enter(self, request) -> None:
        while not request.done:
            self._step(request)

    def _leave(self, request) -> None: ...

    def _step(self, state) -> None:
        ids = torch.tensor([[*state.prompt_ids, *state.token_ids]])
        with evaluating(self.module), torch.no_grad():
            logits = self.module(ids).logits[:, -1]
        draw = torch.tensor(uniforms([state.sampling.seed], [len(state.token_ids)]))
        tokens, log_probs = sample(logits, [state.sampling], draw)
        self._counts["generated_tokens"] += 1
        state.accept(int(tokens[0]), float(log_probs[0]), self.version)

    def publish(self, weights, version) -> None:
        assert weights is None, "it reads the trainer's memory"
        self.version = version

    def sleep(self) -> None:
        self._asleep = True

    def wake(self) -> None:
        self._asleep = False

    def abort(self, request_id) -> None:
        """No request waits while another one runs."""

    def stats(self) -> dict[str, float]:
        return dict(self._counts)
