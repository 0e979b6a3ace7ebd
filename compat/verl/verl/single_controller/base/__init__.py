"""Workers, and pools of devices for them."""

from verl.single_controller.base.worker import Worker

__all__ = ["Worker"]
