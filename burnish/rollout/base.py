"""The rollout contract: token ids in, token ids and log-probs out; text is never encoded again. Imports no torch.

Two rules hold for every engine. The log-prob of a token is log_softmax(logits / temperature) over the whole vocabulary,
before top-k, top-p and min-p (at temperature 0 the logits are not scaled), because that is what training computes. The
noise behind a token is a pure function of (request seed, position in the completion), see `uniforms`.
"""

import asyncio
import difflib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from burnish.errors import ConfigError, RolloutError
from burnish.loop_thread import run_to_end

FinishReason = Literal["stop", "length", "abort"]
OnToken = Callable[[int, float], None]  # a sampled token id and its log-prob
LEAST_TEMPERATURE = 1e-3  # but for 0: logits divided by less leave the range of float32
POLICY_IS_BROKEN = (
    "the trained weights give logits that are NaN or infinite: the policy is broken. Lower optim.lr or grad_clip, and "
    "resume from an earlier checkpoint (trainer.resume_from_path) or from none (trainer.resume_mode=disable)"
)


@dataclass(frozen=True)
class Sampling:
    """How one request is sampled. Temperature 0 is greedy; `max_tokens` None generates until the context is full."""

    temperature: float = 1.0
    top_k: int = -1  # -1 or 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()))
        object.__setattr__(self, "stop_token_ids", tuple(int(i) for i in self.stop_token_ids or ()))
        right = self.temperature == 0 or self.temperature >= LEAST_TEMPERATURE
        self._require(right, "temperature", f"0 (greedy), or at least {LEAST_TEMPERATURE:g}")
        self._require(self.top_k >= -1, "top_k", "-1 (off) or a number of tokens")
        self._require(0 < self.top_p <= 1, "top_p", "above 0, at most 1")
        self._require(0 <= self.min_p <= 1, "min_p", "from 0 to 1")
        self._require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "at least 1, or null")
        self._require(all(isinstance(s, str) and s for s in self.stop), "stop", "non-empty strings")

    def _require(self, right: bool, name: str, allowed: str) -> None:
        if not right:  # a NaN fails every comparison and lands here too
            raise ConfigError(f"sampling parameter {name}={getattr(self, name)!r}: it must be {allowed}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether it does not sample from the whole distribution."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    def to_params(self) -> dict[str, Any]:
        """The dictionary an agent loop receives; without the seed, which belongs to the request."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "seed"}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "Sampling":
        """Read a loop's `sampling_params`. `max_new_tokens` means max_tokens, `do_sample=False` means temperature 0."""
        values = dict(params)
        if values.pop("do_sample", True) is False:
            values["temperature"] = 0.0
        values.pop("logprobs", None)  # they always come
        if "max_new_tokens" in values:
            values["max_tokens"] = values.pop("max_new_tokens")
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
                raise ConfigError(
                    f"unknown sampling parameter {name!r} (nearest known: {near!r}; all: {', '.join(known)})"
                )
        return cls(**values)


@dataclass(frozen=True)
class Request:
    """One call of `RolloutEngine.generate`, passed on unchanged. `request_id` must differ from those of running
    requests. Waiting ones are admitted by `order`, then as they came; a trajectory's order is (uid, sample, turn)."""

    prompt_ids: Sequence[int]
    sampling: Sampling
    request_id: str = ""
    order: tuple[int, ...] = ()
    images: Sequence[Any] = ()


@dataclass
class Completion:
    """What an engine sampled for one request."""

    token_ids: list[int]
    log_probs: list[float]  # one per token, under the policy at that moment
    finish_reason: FinishReason
    stop: str | int | None = None  # the string or token id that ended it
    policy_version: int = 0  # of the weights that sampled it; where these changed on the way, the oldest
    versions: list[int] = field(default_factory=list)  # one per token; empty: all are `policy_version`

    def token_versions(self) -> list[int]:
        return self.versions or [self.policy_version] * len(self.token_ids)


class RolloutEngine(ABC):
    """Turns prompts into completions. `generate` may be awaited by any number of coroutines at once."""

    context: int  # tokens of a prompt and its completion together, at most
    vocabulary: int  # token ids are below it
    own_weights = False  # it holds its own weights, which must be handed over to `publish`
    runs_on = False  # it takes new weights while requests run, which continue under them

    @abstractmethod
    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        """Sample one completion. `on_token` is called for every token, also the last, in the loop that awaits."""

    def run(self, requests: Sequence[tuple[Sequence[int], Sampling]]) -> list[Completion]:
        """A batch of prompts, each with its sampling, for callers that await nothing; completions in the same order."""

        async def all_of_them() -> list[Completion]:
            asked = [Request(*request, f"run/{i}", (i,)) for i, request in enumerate(requests)]
            return list(await asyncio.gather(*map(self.generate, asked)))

        return run_to_end(all_of_them())

    def prompt_problem(self, prompt_ids: Sequence[int]) -> str | None:
        """Why `generate` cannot continue a prompt; None: it can."""
        if len(prompt_ids) == 0:
            return "the prompt is empty; a model needs at least one token to continue"
        if len(prompt_ids) >= self.context:
            return (
                f"the prompt has {len(prompt_ids)} tokens and the context holds {self.context}, which leaves no room "
                "for a new one; shorten it, or raise max_model_len"
            )
        wrong = next((i for i in (min(prompt_ids), max(prompt_ids)) if not 0 <= i < self.vocabulary), None)
        if wrong is not None:
            return f"token id {wrong} is outside the model's vocabulary of {self.vocabulary}; it is another tokenizer's"
        return None

    @abstractmethod
    def publish(self, weights: Iterable[Mapping[str, Any]] | None, version: int) -> None:
        """Take over new weights under this version number: buckets of named tensors, each asked for when the one before
        is taken over and let go, so that never all are held twice. None: the engine reads the trainer's own memory.
        Where it fails on the way, `generate` is refused until a publish succeeds. It is refused while requests run,
        unless the engine `runs_on`: they then continue under the new weights, keep their tokens, and use nothing that
        the old ones computed."""

    @abstractmethod
    def sleep(self) -> None:
        """Give memory back to training; `generate` is refused until `wake`."""

    @abstractmethod
    def wake(self) -> None:
        """Be ready to generate again."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """End a request now: its `generate` returns what it has with finish_reason "abort"."""

    def admit_any_time(self) -> None:  # noqa: B027 (most engines have nothing to do)
        """Said once where requests come one by one from outside: none shall wait until all that run are done."""

    @abstractmethod
    def stats(self) -> dict[str, float]:
        """Counters since the engine was made."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Requests without an answer."""

    def pause(self) -> None:  # noqa: B027 (most engines have nothing running between two steps)
        """End running work, in the thread that steps it, before another one changes weights or memory."""

    def alongside(self) -> AbstractContextManager[object]:
        """What a thread is in that steps it while another computes: on a GPU, a separate stream."""
        return nullcontext()

    def lost(self) -> str | None:
        """Why it can no longer serve: its thread or process has ended or does not respond. None: it is healthy."""
        return None

    def renewed(self) -> "RolloutEngine":
        """A new engine in the place of this one, which is lost, with the weights last published and their version."""
        raise RolloutError(f"{type(self).__name__} cannot be replaced")

    def close(self) -> None:  # noqa: B027 (most engines have nothing to end)
        """End its own threads and processes."""


def request_seed(seed: int, namespace: str, uid: int, sample: int, turn: int) -> int:
    """The seed of one request, from what it is and not from when it runs. 64 bits, the same on every machine."""
    identity = f"{int(seed)}/{namespace}/{int(uid)}/{int(sample)}/{int(turn)}".encode()
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "little")


def uniforms(seeds: Sequence[int] | np.ndarray, positions: Sequence[int] | np.ndarray) -> np.ndarray:
    """One number in [0, 1) for each (request seed, position in the completion): the position mixed by the splitmix64
    finaliser, added to the seed, and mixed again; the upper 53 bits are kept."""
    seeds_u = np.asarray([int(s) & 0xFFFFFFFFFFFFFFFF for s in seeds], dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64 on purpose
        bits = _mix64(seeds_u + _mix64(np.asarray(positions, dtype=np.uint64)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix64(value: np.ndarray) -> np.ndarray:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
