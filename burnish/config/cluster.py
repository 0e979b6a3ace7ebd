"""`ray_init` and the profilers: keys of the processes around a run."""

from dataclasses import dataclass

from burnish.config.key import key


@dataclass
class RayInitConfig:
    """How Ray is started or found."""

    num_cpus: int | None = key(None, "CPUs that Ray may use")
    timeline_json_file: str | None = key(None, "file for Ray's timeline")
    address: str | None = key(None, "address of a running cluster")


@dataclass
class ProfilerConfig:
    """Profiles of chosen steps."""

    tool: str | None = key(None, "torch, torch_memory or nsys; null: none")
    steps: list[int] | None = key(None, "steps to profile")
