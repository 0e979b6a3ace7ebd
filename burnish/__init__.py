"""burnish: reinforcement learning for language models, from a laptop to a cluster.

    import burnish
    run = burnish.train(model="burnish/models/nano", data=rows, reward=my_function, steps=30, n=16, lr=2e-4)

Importing this package imports nothing else: its names are looked up when they are first used. The commands are in
`burnish/cli`, the calls from Python in `burnish/api`, the training loop in `burnish/trainer/ppo.py`, every
configuration key in `burnish/config`.
"""

__version__ = "0.1.0"

_PLACES = {  # name → module, or module:name in it
    "train": "burnish.api.train",
    "sft": "burnish.api.train",
    "generate": "burnish.api.answer",
    "evaluate": "burnish.api.answer",
    "serve": "burnish.api.answer",
    "Run": "burnish.api.run",
    "DataProto": "burnish.protocol",
    "AgentLoopBase": "burnish.agents.base",
    "AgentLoopOutput": "burnish.agents.output",
    "register_agent_loop": "burnish.agents.base",
    "register_adv_est": "burnish.algorithms.advantages",
    "register_policy_loss": "burnish.algorithms.losses",
    "register_reward_manager": "burnish.rewards.managers:register",
    "BaseTool": "burnish.agents.tools",
    "BaseInteraction": "burnish.agents.interactions",
}
__all__ = [*_PLACES, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}; it has {', '.join(_PLACES)}")
    import importlib

    module, _, attribute = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return __all__
