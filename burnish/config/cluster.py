"""`ray_init` and the profilers: keys of the processes around a run."""

from dataclasses import dataclass

from burnish.config.key import Keys, key


@dataclass
class RayInitConfig(Keys, reader="controller/ray/group.py"):
    """How Ray is started or found."""

    num_cpus: int | None = key(
        None, "CPUs of the Ray cluster that the run starts; null: as many as the processes need", low=1
    )
    timeline_json_file: str | None = key(None, "file for Ray's timeline, written when the run ends", path=True)
    address: str | None = key(None, "running Ray cluster to join: host:port of its head, or auto; null: start one here")


@dataclass
class ProfilerConfig:
    """Profiles of chosen steps."""

    tool: str | None = key(None, "torch, torch_memory or nsys; null: none")
    steps: list[int] | None = key(None, "steps to profile")
