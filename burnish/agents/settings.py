"""What agents read of a run's configuration: the narrow input of environment, checks, runner and built-in loops."""

from dataclasses import dataclass, field
from typing import Any

from burnish.config.algorithm import StateMaskingConfig
from burnish.config.data import DataConfig
from burnish.config.reward import SandboxConfig
from burnish.config.rollout import AgentConfig, BaseRolloutConfig, MultiTurnConfig, RetrieverConfig


@dataclass(frozen=True)
class AgentSettings:
    """Sections of a configuration. `loop_config` is what a user's own loop gets as `config`: all of it in training;
    in `burnish generate` the sections that it has, under the names that they have in training."""

    data: DataConfig  # limits of prompts and responses, arguments of the chat template
    rollout: BaseRolloutConfig  # multi_turn, agent, stop_token_ids
    retriever: RetrieverConfig
    max_turns: int
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    state_masking: StateMaskingConfig = field(default_factory=StateMaskingConfig)
    runs_ahead: bool = False  # trajectories continue while their owner trains
    loop_config: Any = None

    @property
    def multi_turn(self) -> MultiTurnConfig:
        return self.rollout.multi_turn

    @property
    def agent(self) -> AgentConfig:
        return self.rollout.agent
