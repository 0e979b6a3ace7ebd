"""`PPOConfig`: the whole configuration of `burnish ppo`. Every RL algorithm is run by it."""

from dataclasses import dataclass
from typing import Any

from burnish.config.actor import ACTOR, ActorConfig, CriticConfig, ProcessRewardConfig, RefConfig
from burnish.config.algorithm import AlgorithmConfig
from burnish.config.data import DataConfig
from burnish.config.key import key, read, section
from burnish.config.model import ModelConfig
from burnish.config.profiler import GlobalProfilerConfig, ProfilerConfig
from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig, RewardManagerConfig, RewardModelConfig
from burnish.config.rollout import RetrieverConfig, RolloutConfig
from burnish.config.trainer import RayInitConfig, TrainerConfig

ACTOR_MODEL, CRITIC_MODEL, PROCESS_REWARD_MODEL = "actor_rollout_ref.model", "critic.model", "process_reward.model"
REWARD_MODEL = "reward_model.model"


@dataclass
class ActorRolloutRefConfig:
    """The policy: its model, its update, its reference and its rollouts."""

    hybrid_engine: bool = key(
        True,
        "train and generate on the same devices; false: on separate ones",
        later="separate devices for training and generation",
    )
    profiler: ProfilerConfig = section(ProfilerConfig)
    model: ModelConfig = section(ModelConfig, readers={"path": ACTOR, "tokenizer_path": ACTOR})
    actor: ActorConfig = section(ActorConfig)
    ref: RefConfig = section(RefConfig)
    rollout: RolloutConfig = section(RolloutConfig)


@dataclass
class PPOConfig:
    """Every setting of `burnish ppo`."""

    data: DataConfig = section(DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = section(ActorRolloutRefConfig)
    critic: CriticConfig = section(CriticConfig)
    reward_model: RewardModelConfig = section(RewardModelConfig)
    process_reward: ProcessRewardConfig = section(ProcessRewardConfig)
    custom_reward_function: CustomRewardFunctionConfig = section(CustomRewardFunctionConfig)
    reward: RewardConfig = section(RewardConfig)
    reward_manager: RewardManagerConfig = section(RewardManagerConfig)
    algorithm: AlgorithmConfig = section(AlgorithmConfig)
    trainer: TrainerConfig = section(TrainerConfig)
    do_search: bool = key(False, "rows without agent_name use search_agent", "config/rules/sampling.py")
    max_turns: int = key(10, "searches per question", "agents/loops/search.py", low=0)
    retriever: RetrieverConfig = section(RetrieverConfig)
    ray_init: RayInitConfig = section(RayInitConfig)
    global_profiler: GlobalProfilerConfig = section(GlobalProfilerConfig)
    controller_nsight_options: dict[str, Any] = key({}, "options of `nsys profile` for this process", "trainer/nsys.py")
    worker_nsight_options: dict[str, Any] = key({}, "options of `nsys profile` for workers", "trainer/nsys.py")

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The models that this run loads, by their key; the policy's comes first. Known once it is finalised."""
        others = (CRITIC_MODEL, PROCESS_REWARD_MODEL, REWARD_MODEL)
        there = [name for name in others if read(self, name.removesuffix("model") + "enable")]
        return {name: read(self, name) for name in (ACTOR_MODEL, *there)}

    @property
    def agents_apart(self) -> bool:
        """Whether agent loops run in separate processes, and ask the policy's for tokens."""
        return self.trainer.executor != "local"

    @property
    def staleness(self) -> int:
        """Versions that trajectories may lag behind the policy they train; with 0 generation and training alternate."""
        ahead = self.trainer.async_rollout
        return ahead.staleness if ahead.enable else 0

    @property
    def reads_reference(self) -> bool:
        """Whether a KL term, in the loss or in the reward, reads the reference policy."""
        return self.actor_rollout_ref.actor.use_kl_loss or self.algorithm.use_kl_in_reward
