"""`@rollout_trace_op` changes nothing: trajectories are in the run folder (docs/run-folder.md)."""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def rollout_trace_op(function: Function) -> Function:
    return function
