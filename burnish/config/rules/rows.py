"""Rows and rewards: settings that only make sense together."""

from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given
from burnish.errors import ConfigError


def rows(config: PPOConfig, given: Given) -> None:
    """Weights for each file, curricula and classes that are whole."""
    data = config.data
    data.val_files = data.val_files or []
    if data.dataset_weights is not None:
        weights, files = data.dataset_weights, len(data.train_files)
        if len(weights) != files:
            raise ConfigError(f"data.dataset_weights has {len(weights)} weights for {files} files; give one for each")
        if min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError(f"data.dataset_weights={weights}: weights are at least 0 and not all 0")
    if not data.augment.enable:
        for name in sorted({*given.below("data.augment")} - {"data.augment.enable"}):
            given.say(f"{name} has no effect, because data.augment.enable is false")
    _both("data.curriculum.key", data.curriculum.key, "data.curriculum.stages", data.curriculum.stages)
    _both("data.custom_cls.path", data.custom_cls.path, "data.custom_cls.name", data.custom_cls.name)
    _both("data.sampler.class_path", data.sampler.class_path, "data.sampler.class_name", data.sampler.class_name)


def rewards(config: PPOConfig, given: Given) -> None:
    """One reward manager, and a reward function that can be found."""
    custom, chosen = config.custom_reward_function, config.reward_manager
    custom.path = custom.path or None  # `custom_reward_function.path=` takes it back
    if custom.path is None and "custom_reward_function.name" in given:
        raise ConfigError(
            f"custom_reward_function.name={custom.name} without custom_reward_function.path: name the file it is in"
        )
    if chosen.source == "importlib":
        name = chosen.module.name or chosen.name
        if not chosen.module.path or not name:
            raise ConfigError("reward_manager.source=importlib needs reward_manager.module.path and .module.name")
    elif chosen.module.path or chosen.module.name:
        raise ConfigError("reward_manager.module names a class of yours: set reward_manager.source=importlib with it")
    elif chosen.name and "reward_model.reward_manager" in given and chosen.name != config.reward_model.reward_manager:
        raise ConfigError(
            f"reward_manager.name={chosen.name} and reward_model.reward_manager={config.reward_model.reward_manager} "
            "are the same thing; keep one"
        )


def _both(first: str, one: object, second: str, other: object) -> None:
    if (one is None) != (other is None):
        there, missing = (first, second) if other is None else (second, first)
        raise ConfigError(f"{there} is set without {missing}; give both")
