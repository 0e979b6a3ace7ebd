"""Which device is meant by `trainer.device` and `--device`: auto, cuda or cpu. Imported without torch."""

from typing import TYPE_CHECKING

from burnish.errors import ConfigError

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cuda", "cpu")


def pick_device(kind: str, index: int = 0, key: str = "trainer.device") -> "torch.device":
    """The device meant by auto, cuda or cpu; auto is a GPU where there is one. `key` is what chose it."""
    import torch

    if kind not in DEVICES:
        raise ConfigError(f"{key}={kind} is not a kind of device; choose auto, cuda or cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{key}={kind}, but torch sees no GPU; set {key}=auto or cpu")
    return torch.device("cuda", index) if kind != "cpu" and torch.cuda.is_available() else torch.device("cpu")
