"""Timers, where verl has them until 0.5."""

from verl.utils.profiler import marked_timer, simple_timer

__all__ = ["marked_timer", "simple_timer"]
