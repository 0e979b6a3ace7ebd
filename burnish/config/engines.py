"""What is known about a rollout engine before one is made. Its folder in `rollout/` has a `spec.py`, without torch,
with an `EngineSpec` called `SPEC`; `ENGINES` in `rollout/__init__.py` lists them. `engine_spec(name)` imports table and
spec by name, when they are asked for: the configuration itself depends on no engine."""

from dataclasses import dataclass
from importlib import import_module

from burnish.config.model import ModelConfig
from burnish.config.nearest import nearest
from burnish.config.rollout import BaseRolloutConfig, RolloutConfig
from burnish.config.rules import Given
from burnish.config.values import show
from burnish.errors import ConfigError, NotAvailable

FREES = "free_cache_engine"
TABLE = "burnish.rollout"  # the module with `ENGINES`


@dataclass(frozen=True)
class RolloutLoad:
    """What one process of a run asks of its engine; sizes in bytes."""

    rollout: RolloutConfig
    token_bytes: int  # keys and values of one token
    weights: int  # in the type that generates
    longest: int  # tokens of a sequence at most
    sequences: int  # generated at the same time at most
    context: int  # tokens that the engine has room for in a sequence
    processes: int  # that the policy has
    memory_bytes: int | None  # of the device; None: not known
    on_gpu: bool

    @property
    def share(self) -> int | None:
        """What `gpu_memory_utilization` leaves the engine of the device's memory."""
        return None if self.memory_bytes is None else int(self.rollout.gpu_memory_utilization * self.memory_bytes)


@dataclass(frozen=True)
class EngineSpec:
    """One engine. The defaults are those of an engine in the trainer's process without a KV pool."""

    name: str  # its value in `rollout.name`, and its folder in `rollout/`
    path: str  # its class, as package.module:name
    label: str  # what messages call it
    own_weights: bool = False  # it has a copy of the weights, in separate processes, that `publish` sends
    in_flight_updates: bool = False  # it takes new weights while requests run, which continue under them
    several_devices: bool = False  # one engine may span `tensor_model_parallel_size` devices
    lora: bool = True  # it generates with a LoRA adapter
    deterministic: bool = True  # the same requests give the same tokens and log-probs, bit for bit
    own_kernels: bool = False  # it generates with burnish's kernels, compiled before the first step on a GPU
    has_pool: bool = False  # memory for keys and values is allocated before they are needed
    frees_memory: tuple[str, ...] = ()  # the devices on which `free_cache_engine` gives its memory back
    attention: tuple[str, ...] = ()  # values of `model.attn_implementation` that it takes; empty: all
    temperatures: tuple[float, float] | None = None  # lowest and highest that it samples at; None: any
    ignores: tuple[tuple[str, ...], ...] = ()  # keys of `rollout` without effect, each group after its reason
    ignores_on_cpu: tuple[tuple[str, ...], ...] = ()  # and those that have none on a CPU

    def check_installed(self, asked: str, choice: str) -> None:
        """ConfigError where a package that it needs is missing or too old. `asked` is what asks for the engine;
        `choice` and a name chooses one."""

    def check_arguments(self, rollout: BaseRolloutConfig, section: str) -> None:
        """ConfigError for an argument in `engine_kwargs.<name>` that the engine does not take; this one takes none."""
        if given := rollout.engine_kwargs.get(self.name):
            raise ConfigError(
                f"{section}.engine_kwargs.{self.name}.{min(given)}: {self.label} takes no arguments but the keys of "
                f"{section}; leave it out"
            )

    def check(self, rollout: BaseRolloutConfig, model: ModelConfig, section: str, given: Given) -> None:
        """Refuse what the engine cannot do, report keys of `section` that it ignores. Knows the keys alone."""
        if not self.several_devices and (size := rollout.tensor_model_parallel_size) > 1:
            able = [name for name in engine_names() if engine_spec(name).several_devices]
            raise NotAvailable(
                f"a rollout engine other than {', '.join(able)} over several devices (asked for by "
                f"{section}.tensor_model_parallel_size={size})",
                f"Use {section}.name={' or '.join(able)}, or leave it at 1",
            )
        self.check_installed(f"{section}.name={self.name}", f"{section}.name=")
        self.check_arguments(rollout, section)
        if model.has_lora and not self.lora:
            raise NotAvailable(
                f"a LoRA adapter with {section}.name={self.name}", f"Use {section}.name=native, or train all weights"
            )
        if self.attention and model.attn_implementation not in self.attention:
            raise ConfigError(
                f"{section.removesuffix('rollout')}model.attn_implementation={model.attn_implementation}: "
                f"{self.label} generates with the trained module and takes {', '.join(self.attention)}; choose one of "
                f"them, or {section}.name=hf"
            )
        asked = {f"{section}.temperature": rollout}
        if isinstance(rollout, RolloutConfig):
            asked[f"{section}.val_kwargs.temperature"] = rollout.val_kwargs  # type: ignore[assignment]
        for key, sampling in asked.items():
            if sampling.do_sample and (problem := self.temperature_problem(sampling.temperature)):
                raise ConfigError(f"{key}={problem}, or {section}.name=native")
        self._report(self.ignores, rollout, section, given)

    def check_devices(self, rollout: BaseRolloutConfig, section: str, gpus: int, choice: str) -> None:
        """Refuse what the engine cannot do with the devices of one process; `gpus` 0: it computes on a CPU."""
        if gpus and (size := rollout.tensor_model_parallel_size) > gpus:
            raise ConfigError(
                f"{section}.tensor_model_parallel_size={size}: one engine has {gpus} GPUs here; choose at most {gpus}"
            )

    def check_cpu(self, rollout: BaseRolloutConfig, section: str, given: Given, choice: str) -> None:
        """Refuse an engine that cannot compute on a CPU; report keys that have no effect there."""
        self._report(self.ignores_on_cpu, rollout, section, given)

    def temperature_problem(self, temperature: float) -> str | None:
        """Why the engine cannot sample at a temperature, as `3: vLLM takes …`; None: it can. 0 is greedy."""
        if self.temperatures is None or not temperature or self.temperatures[0] <= temperature <= self.temperatures[1]:
            return None
        low, high = self.temperatures
        return f"{temperature:g}: {self.label} takes 0 (greedy), or {low:g} to {high:g}; choose one of these"

    def memory(self, load: RolloutLoad) -> int:
        """Bytes that the engine has: keys and values, and what else is not the trainer's."""
        return load.sequences * load.longest * load.token_bytes

    def memory_line(self, load: RolloutLoad, keeps: bool) -> tuple[str, str]:
        """How `--plan` calls that memory, and how it comes about; `keeps`: also while it trains."""
        return "KV cache", f"{load.sequences} sequences of {load.longest} tokens"

    def _report(
        self, groups: tuple[tuple[str, ...], ...], rollout: BaseRolloutConfig, section: str, given: Given
    ) -> None:
        for reason, *names in groups:
            # Without training `free_cache_engine` has no effect under any engine, which is reported elsewhere.
            meant = [name for name in names if name != FREES or isinstance(rollout, RolloutConfig)]
            given.no_effect(reason, *(f"{section}.{name}" for name in meant if f"{section}.{name}" in given))


def engine_names() -> tuple[str, ...]:
    return tuple(import_module(TABLE).ENGINES)


def engine_spec(name: str, choice: str = "rollout.name=") -> EngineSpec:
    """The spec of an engine; `choice` and a name is how messages write that one is chosen."""
    names = engine_names()
    if name not in names:
        hint = f"; did you mean {near}?" if (near := nearest(name, names)) else ""
        raise ConfigError(f"{choice}{name}: unknown rollout engine{hint}; this version has {', '.join(names)}")
    spec: EngineSpec = import_module(import_module(TABLE).ENGINES[name]).SPEC
    return spec


def check_engine(rollout: BaseRolloutConfig, model: ModelConfig, section: str, given: Given) -> None:
    """The rules of the engine that was chosen, and arguments for others in `engine_kwargs`."""
    for name, arguments in rollout.engine_kwargs.items():
        key = f"{section}.engine_kwargs.{name}"
        engine_spec(name, f"{section}.engine_kwargs.")
        if not isinstance(arguments, dict | None):
            raise ConfigError(f"{key}={show(arguments)}: must be a mapping")
        if name != rollout.name:
            given.say(f"unused: {key} ({section}.name={rollout.name})")
    rollout.engine_kwargs = {name: arguments or {} for name, arguments in rollout.engine_kwargs.items()}
    engine_spec(rollout.name, f"{section}.name=").check(rollout, model, section, given)
