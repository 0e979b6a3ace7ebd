"""The rollout engine of one worker process: whose weights it generates with, and how new ones get there.

In one process the engine reads the actor's own module, so after an update the next token comes from the new weights,
and `publish` only says so. Where the actor is spread over several processes, each has a replica: an engine over a whole
copy of the module. `publish` then brings the shards together, bucket by bucket, never all at once, into every copy, and
proves that each arrived: sums over the bits of what processes hold are compared with sums over the bits of the copy.

Under Ray, agent loops of other processes ask for completions at any time, so there the engine has a thread of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from burnish.config import PPOConfig
from burnish.engine.sharding import checksums, slices_of, whole_buckets
from burnish.engine.trainable import Trainable
from burnish.errors import RolloutError
from burnish.rollout import make_engine
from burnish.rollout.base import RolloutEngine
from burnish.rollout.engine_loop import EngineLoop

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Replica:
    """An engine and where its weights come from; `load_copy` gives the module as the actor's was when it was loaded."""

    def __init__(self, config: PPOConfig, tokenizer: Any, actor: Trainable, load_copy: Callable[[], "PreTrainedModel"]):
        rollout = config.actor_rollout_ref.rollout
        self.actor, self.frees_memory = actor, rollout.free_cache_engine
        self.module = actor.module if actor.mesh is None else load_copy().requires_grad_(False)
        engine = make_engine(rollout.name, self.module, tokenizer, rollout)
        self._loop = EngineLoop(engine) if config.agents_apart else None
        self.engine: RolloutEngine = self._loop or engine

    @property
    def in_flight(self) -> int:
        """Requests of other processes that wait for their answer."""
        return self._loop.in_flight if self._loop else 0

    def publish(self, version: int) -> None:
        """Generate with the actor's weights as they are now, under this version number."""
        self.engine.wake()
        if self.actor.mesh is None:
            self.engine.publish(None, version)
            return
        self.engine.publish(self._new_weights(version), version)

    def _new_weights(self, version: int) -> Iterator[Mapping[str, Tensor]]:
        """The actor's weights bucket by bucket, and then the proof that the copy holds all of them."""
        masters, slices, mesh = self.actor.masters, self.actor.slices, self.actor.mesh
        assert mesh is not None, "without a mesh the engine reads the actor's own weights"
        dtype = self.module.dtype
        yield from whole_buckets(masters, slices, mesh, dtype=dtype)
        there = dict(self.module.named_parameters())
        copies = {name: there[name] for name in masters}
        meant = checksums(masters, slices, mesh, dtype)
        arrived = checksums(copies, slices_of(copies, None), None)
        if wrong := [name for name, same in zip(copies, (meant == arrived).tolist(), strict=True) if not same]:
            raise RolloutError(
                f"{len(wrong)} of {len(copies)} weights of version {version} did not arrive in the replica of rank "
                f"{mesh.rank}, such as {wrong[0]}: it would generate with another model than the one that is trained"
            )

    def make_room(self) -> None:
        """Before a pass of training: the engine gives its memory back until it is asked again."""
        if self.frees_memory:
            self.engine.sleep()

    def close(self) -> None:
        """End the engine's own thread, where it has one."""
        if self._loop is not None:
            self._loop.stop()
