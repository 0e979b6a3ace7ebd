"""`ray_init` and the profilers: keys of the processes around a run."""

from dataclasses import dataclass

from burnish.config.key import key

RAY = "controller/ray/group.py"


@dataclass
class RayInitConfig:
    """How Ray is started or found."""

    num_cpus: int | None = key(
        None, "CPUs of a Ray that the run starts; null: as many as the processes need", reader=RAY, low=1
    )
    timeline_json_file: str | None = key(
        None, "file for Ray's timeline, written when the run ends", reader=RAY, path=True
    )
    address: str | None = key(
        None, "a running cluster to join: host:port of its head, or auto; null: start a Ray here", reader=RAY
    )


@dataclass
class ProfilerConfig:
    """Profiles of chosen steps."""

    tool: str | None = key(None, "torch, torch_memory or nsys; null: none")
    steps: list[int] | None = key(None, "steps to profile")
