"""Sections of burnish's configuration, by the names that users' annotations have. They can be read as attributes, with
`[]` and with `get`."""

from burnish.config.actor import ActorConfig, CriticConfig, PolicyLossConfig
from burnish.config.model import ModelConfig as HFModelConfig
from burnish.config.optim import OptimConfig as FSDPOptimizerConfig
from burnish.config.rollout import MultiTurnConfig, RolloutConfig

FSDPActorConfig, FSDPCriticConfig = ActorConfig, CriticConfig

__all__ = [
    "ActorConfig",
    "CriticConfig",
    "FSDPActorConfig",
    "FSDPCriticConfig",
    "FSDPOptimizerConfig",
    "HFModelConfig",
    "MultiTurnConfig",
    "PolicyLossConfig",
    "RolloutConfig",
]
