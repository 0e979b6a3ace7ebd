"""Which device is meant by `trainer.device` and `--device`, and which type by `dtype`, where they say auto.

Imported without torch.
"""

from typing import TYPE_CHECKING

from burnish.errors import ConfigError

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cuda", "cpu")
BFLOAT16 = (8, 0)  # the first generation of GPUs that computes in it


def memory_of(device: "torch.device", processes: int = 1) -> int | None:
    """Bytes of a GPU for each of the processes that share it; None for a CPU, whose memory is that of the machine."""
    import torch

    return torch.cuda.get_device_properties(device).total_memory // processes if device.type == "cuda" else None


def measured_memory(device: "torch.device") -> str:
    """How much of a GPU's memory this process and others have taken."""
    import torch

    if device.type != "cuda":
        return "the memory of this machine is used up"
    free, total = torch.cuda.mem_get_info(device)
    own, most = torch.cuda.memory_reserved(device), torch.cuda.max_memory_allocated(device)
    gib = [f"{value / 2**30:.1f} GiB" for value in (most, own, max(total - free - own, 0), total)]
    return f"measured were at most {gib[0]} in tensors; this process holds {gib[1]}, others {gib[2]} of {gib[3]}"


def dtype_on(device: "torch.device | str | None", dtype: str) -> str:
    """The type of weights that is meant on a device: auto is bfloat16 where the hardware has it, else float32. None: a
    GPU that is planned for and not here, which has it."""
    import torch

    if dtype != "auto":
        return dtype
    if device is None:
        return "bfloat16"
    device = torch.device(device)
    has_it = device.type == "cuda" and torch.cuda.get_device_capability(device) >= BFLOAT16
    return "bfloat16" if has_it else "float32"


def pick_device(kind: str, index: int = 0, key: str = "trainer.device") -> "torch.device":
    """The device meant by auto, cuda or cpu; auto is a GPU where there is one. `key` is what chose it."""
    import torch

    if kind not in DEVICES:
        raise ConfigError(f"{key}={kind} is not a kind of device; choose auto, cuda or cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{key}={kind}, but torch sees no GPU; set {key}=auto or cpu")
    return torch.device("cuda", index) if kind != "cpu" and torch.cuda.is_available() else torch.device("cpu")


def gpus(kind: str) -> int:
    """GPUs of this machine that `trainer.device` allows; 0 where it computes on a CPU."""
    import torch

    return torch.cuda.device_count() if pick_device(kind).type == "cuda" else 0
