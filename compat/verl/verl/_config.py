"""The configuration of a run as users' classes read it."""

from typing import Any

from omegaconf import DictConfig, OmegaConf


def as_omegaconf(config: Any) -> DictConfig:
    """It has burnish's keys, which can be read as attributes, with `[]` and with `get`."""
    return OmegaConf.create(_plain(config))


def _plain(section: Any) -> Any:
    return {name: _plain(value) for name, value in vars(section).items()} if hasattr(section, "__dict__") else section
