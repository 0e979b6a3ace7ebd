"""Sections of burnish's configuration, by the names that users' annotations have. They can be read as attributes, with
`[]` and with `get`."""

from burnish.config.algorithm import AlgorithmConfig as AlgoConfig
from burnish.config.algorithm import FilterGroupsConfig, KLControlConfig, RolloutCorrectionConfig

__all__ = ["AlgoConfig", "FilterGroupsConfig", "KLControlConfig", "RolloutCorrectionConfig"]
