"""What is known about the toy engine before it is made."""

from dataclasses import dataclass

from burnish.config.engines import EngineSpec, RolloutLoad
from burnish.config.rollout import BaseRolloutConfig
from burnish.errors import ConfigError


@dataclass(frozen=True)
class ToySpec(EngineSpec):
    """It takes one argument, and has room for the logits of one request."""

    def check_arguments(self, rollout: BaseRolloutConfig, section: str) -> None:
        for name in rollout.engine_kwargs.get(self.name) or {}:
            if name != "patience":
                raise ConfigError(f"{section}.engine_kwargs.toy.{name}: the toy engine takes patience; leave it out")

    def memory(self, load: RolloutLoad) -> int:
        return load.longest * load.token_bytes

    def memory_line(self, load: RolloutLoad, keeps: bool) -> tuple[str, str]:
        return "toy", f"one sequence of {load.longest} tokens"


SPEC = ToySpec(
    name="toy",
    path="tests.rollout.toy.engine:ToyEngine",
    label="the toy rollout engine",
    lora=False,
    temperatures=(0.5, 1.0),
    ignores=(("the toy engine reads whole prompts", "enable_chunked_prefill"),),
)
