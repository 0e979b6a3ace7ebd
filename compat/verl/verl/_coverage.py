"""What this package stands in for, and what it does not: it says so at import, refuses to hide an installed verl, and
answers an import of anything else with one line that names what to use instead.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish import __version__

PAGE = "docs/from-verl.md"
ANNOUNCED = "BURNISH_VERL_ANNOUNCED"  # set for the processes that this one starts
HERE = Path(__file__).resolve().parent

#: Parts of verl that are not here (of a package that is: its other names), and what does their job.
NOT_COVERED = {
    "verl.base_config": "sections can be read as attributes, with [] and with get: docs/configuration.md",
    "verl.checkpoint_engine": "the workers of burnish publish weights to the rollout engines: docs/rollout.md",
    "verl.experimental.agent_loop": "burnish runs loops itself; derive yours from AgentLoopBase: docs/agents.md",
    "verl.experimental.reward_loop": "burnish runs managers itself; derive yours from RewardManagerBase",
    "verl.interactions": "burnish.agents.interactions has its own: docs/tools.md",
    "verl.model_merger": "`burnish export` writes a checkpoint as a Hugging Face folder: docs/export.md",
    "verl.models": "burnish trains the models of transformers: docs/training.md",
    "verl.third_party": "burnish runs vLLM as it is installed: docs/vllm.md",
    "verl.tools": "burnish.agents.tools has its own: docs/tools.md",
    "verl.trainer.config": "keys and their defaults are in burnish/config; `burnish ppo --help` lists them",
    "verl.trainer.main_generation_server": "use `burnish serve` or `burnish generate`: docs/serving.md",
    "verl.trainer.main_ppo": "use burnish.trainer.ppo.PPOTrainer, as examples/custom_trainer does",
    "verl.trainer.ppo.metric_utils": "the trainer reports these: docs/metrics.md",
    "verl.trainer.ppo.ray_trainer": "use burnish.trainer.ppo.PPOTrainer, as examples/custom_trainer does",
    "verl.trainer.ppo.reward": "use burnish.rewards.managers.load_manager, as examples/custom_trainer does",
    "verl.trainer.ppo.rollout_corr_helper": "set algorithm.rollout_correction: docs/rollout-correction.md",
    "verl.trainer.ppo.utils": "use burnish.trainer.ppo.PPOTrainer, as examples/custom_trainer does",
    "verl.utils.checkpoint": "runs save and resume by themselves: docs/run-folder.md",
    "verl.utils.fsdp_utils": "burnish shards with FSDP2: docs/cluster.md",
    "verl.utils.megatron_utils": "burnish shards with FSDP2: docs/cluster.md",
    "verl.utils.seqlen_balancing": "burnish packs and balances micro-batches itself: docs/performance.md",
    "verl.utils.tracking": "set trainer.logger, or pass on_step to burnish.train: docs/metrics.md",
    "verl.utils.ulysses": "set actor.ulysses_sequence_parallel_size: docs/cluster.md",
    "verl.utils.vllm_utils": "burnish runs vLLM as it is installed: docs/vllm.md",
    "verl.workers.actor": "register a policy loss: docs/extending.md",
    "verl.workers.critic": "replace burnish.workers.critic, as examples/custom_trainer does for the policy",
    "verl.workers.engine_workers": "subclass burnish.workers.actor_rollout_ref, as examples/custom_trainer does",
    "verl.workers.fsdp_workers": "subclass burnish.workers.actor_rollout_ref, as examples/custom_trainer does",
    "verl.workers.megatron_workers": "burnish shards with FSDP2: docs/cluster.md",
    "verl.workers.reward_model": "set reward_model.model.path: docs/reward-models.md",
    "verl.workers.rollout": "docs/architecture.md shows how to add a rollout engine",
    "verl.workers.sharding_manager": "the workers of burnish publish weights to the rollout engines: docs/rollout.md",
}


def refuse_to_shadow() -> None:
    """ImportError where verl itself could be imported too: nobody should have to guess which one they got."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE.parent]
    spec = PathFinder.find_spec("verl", others)
    real = next((f"verl {one.version}" for one in distributions(name="verl")), None)
    if real is None and spec and spec.origin and not Path(spec.origin).with_name(Path(__file__).name).exists():
        real = f"verl at {Path(spec.origin).parent}"
    if real:
        raise ImportError(
            f"burnish's stand-in for verl ({HERE}) does not take the place of {real}: remove one of the two "
            "(`pip uninstall burnish-verl` or `pip uninstall verl`)"
        )


def announce() -> None:
    """One line on stderr, in the first process only."""
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    if not os.environ.get(ANNOUNCED) and not (program and program.name.startswith("burnish.")):
        sys.stderr.write(f"burnish {__version__} answers `import verl` (0.4 to 0.9); what differs: {PAGE}\n")
    os.environ[ANNOUNCED] = "1"


def absent(name: str) -> str:
    """Why `name`, a dotted name below verl, cannot be imported."""
    part = next((part for part in NOT_COVERED if f"{name}.".startswith(f"{part}.")), None)
    instead = NOT_COVERED[part] if part else f"{PAGE} lists what it has"
    return f"burnish's stand-in for verl has no {name}; {instead}"


class _Loader(SourceFileLoader):
    """Gives every module the answer for names that it lacks. With a `__path__`, empty in a module that is no package,
    `from module import name` asks `Covered` about a missing name instead of failing without a reason."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        vars(module).setdefault("__getattr__", answer_for(module.__name__))
        vars(module).setdefault("__path__", [])


class Covered(MetaPathFinder):
    """Finds the modules of this package; of another name below `verl` it says what to use instead."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("verl."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:  # without `name=`, or Python would put its own words in place of these
            raise ModuleNotFoundError(absent(fullname))
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def answer_for(module: str) -> Callable[[str], Any]:
    def __getattr__(name: str) -> Any:
        raise AttributeError(absent(f"{module}.{name}"))

    return __getattr__
