"""The rollout engine of one worker process: whose weights it generates with, and how new ones get there.

In one process the engine reads the actor's own module. Where the actor is spread over several processes, where the
engine generates while the actor trains, and where it is a program, it has its own copy: `publish` sends the weights
bucket by bucket and proves that they arrived. Of a copy in this process, sums over its bits are compared. A program
must give a fixed sequence, and what it samples, the actor's log-probs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from burnish.config import PPOConfig
from burnish.config.engines import engine_spec
from burnish.config.rules.cluster import refuse_spans
from burnish.engine.batching import MicroBatch
from burnish.engine.packing import pack
from burnish.engine.sharding import checksums, computes_in, slices_of, whole_buckets
from burnish.engine.trainable import Trainable
from burnish.errors import RolloutError
from burnish.protocol import DataProto
from burnish.rollout import make_engine
from burnish.rollout.base import RolloutEngine, Sampling
from burnish.rollout.engine_loop import EngineLoop
from burnish.rollout.hosted.weights import length, proof, rounding, sequence
from burnish.rollout.replacing import ReplacingEngine
from burnish.rollout.replicas import NullEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from burnish.rollout.hosted.engine import HostedEngine

HEAT, TOP_K = 1.5, 2  # of tokens that are sampled; log-probs of other ways to sample them would be far off


@dataclass(frozen=True)
class Buckets:
    """Weights that can be gone through more than once: should an engine be lost on the way, the next one gets all."""

    make: Callable[[], Iterator[Mapping[str, Tensor]]]

    def __iter__(self) -> Iterator[Mapping[str, Tensor]]:
        return self.make()


class Replica:
    """An engine and where its weights come from. `load_copy` gives the module as the actor's was when it was loaded;
    `rank` is that of this process among those that share the actor."""

    def __init__(
        self,
        config: PPOConfig,
        tokenizer: Any,
        actor: Trainable,
        load_copy: Callable[[], "PreTrainedModel"],
        rank: int = 0,
    ):
        rollout = config.actor_rollout_ref.rollout
        self.actor, self.frees_memory = actor, rollout.free_cache_engine
        self.is_program = engine_spec(rollout.name).own_weights
        self.shares = actor.mesh is None and not config.staleness and not self.is_program
        self.dtype = actor.module.dtype if actor.mesh is None else computes_in(actor.module)
        if self.is_program and rollout.dtype == "auto":
            rollout = replace(rollout, dtype=str(self.dtype).removeprefix("torch."))
        self.module = actor.module if self.shares or self.is_program else load_copy().requires_grad_(False)
        logs = Path(config.trainer.default_local_dir) / "logs"
        span = rollout.tensor_model_parallel_size
        if actor.mesh is not None and actor.device.type == "cuda":
            refuse_spans(span)  # where the machine that reads the keys has no GPU
        self.is_here = rank % span == 0
        self.dtypes = (self.dtype, getattr(torch, rollout.dtype)) if self.is_program else ()  # that tokens pass through
        self.canary_tokens = length(rollout.max_model_len)
        engine: RolloutEngine = NullEngine()
        if self.is_here:
            engine = make_engine(rollout.name, self.module, tokenizer, rollout, logs)
        if not self.is_program and (config.agents_apart or config.staleness):
            engine = EngineLoop(engine, alongside=config.staleness > 0)
        self.engine = ReplacingEngine(engine)
        self._samples_are_right = not self.is_program

    def publish(self, version: int) -> None:
        """Generate with the actor's weights as they are now, under this version number."""
        self.engine.wake()
        if self.shares:
            self.engine.publish(None, version)
            return
        if self.is_program:  # must find the log-probs of a fixed sequence by the actor
            ids = sequence(int(self.actor.module.get_input_embeddings().num_embeddings), self.canary_tokens)
            expected = proof(version, ids, self._by_actor([ids], 1.0)[0], *self.dtypes)
            if self.is_here:  # the others took part in the actor's pass
                cast("HostedEngine", self.engine.engine).expect(expected)
        weights = Buckets(partial(self._new_weights, version))
        # Processes go through them together: one of several, whose engine is lost, cannot begin again alone.
        self.engine.publish(weights if self.actor.mesh is None else iter(weights), version)
        if not self._samples_are_right:
            self._compare_samples()
            self._samples_are_right = True

    def _new_weights(self, version: int) -> Iterator[Mapping[str, Tensor]]:
        """The actor's weights bucket by bucket, and then, of a copy, the proof that it holds all of them."""
        masters, slices, mesh = self.actor.masters, self.actor.slices, self.actor.mesh
        yield from whole_buckets(masters, slices, mesh, dtype=self.dtype)
        if self.is_program:
            return
        there = dict(self.module.named_parameters())
        copies = {name: there[name] for name in masters}
        meant = checksums(masters, slices, mesh, self.dtype)
        arrived = checksums(copies, slices_of(copies, None), None)
        if wrong := [name for name, same in zip(copies, (meant == arrived).tolist(), strict=True) if not same]:
            where = f" of rank {mesh.rank}" if mesh else ""
            raise RolloutError(
                f"{len(wrong)} of {len(copies)} weights of version {version} did not arrive in the replica{where}, "
                f"such as {wrong[0]}: it would generate with another model than the one that is trained"
            )

    def _compare_samples(self) -> None:
        """What a fixed sequence does not show: whether the log-probs of sampled tokens are of logits / temperature, and
        before truncation. Of the programs of all processes, because these pass through the actor together."""
        sampling = Sampling(HEAT, TOP_K, max_tokens=self.canary_tokens - 1, ignore_eos=True)
        mine = self.engine.run([([0], sampling)]) if self.is_here else []
        mesh = self.actor.mesh
        sampled = [completion for own in (mesh.gather(mine) if mesh else [mine]) for completion in own]
        wanted = self._by_actor([[0, *completion.token_ids] for completion in sampled], HEAT)
        found = torch.tensor([completion.log_probs for completion in sampled])
        difference, allowed = float((found - wanted).abs().mean(-1).max()), rounding(wanted, *self.dtypes)
        if not difference <= allowed:
            raise RolloutError(
                f"the rollout engine gives tokens that it samples (temperature {HEAT:g}, top_k {TOP_K}) other "
                f"log-probs than the actor: they differ by {difference:.2g}, {allowed:.2g} is rounding. Unset "
                "variables that change how it samples, or use rollout.name=native"
            )

    def _by_actor(self, rows: list[list[int]], temperature: float) -> Tensor:
        """The log-probs (B, L - 1) of the tokens of sequences (B, L) after the first."""
        ids = torch.tensor(rows)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "responses": ids[:, 1:]}
        passed = self.actor.infer(
            lambda micro: self.actor.forward.log_probs(pack(micro.batch), temperature),
            DataProto.from_dict(batch),
            MicroBatch(),
        )
        return passed["log_prob"]

    def make_room(self) -> None:
        """Before a pass of training: the engine gives its memory back until it is asked again."""
        if self.frees_memory:
            self.engine.sleep()

    def close(self) -> None:
        self.engine.close()
