"""The interaction `gsm8k`, by the name that users' files have. It is burnish's."""

from burnish.agents.interactions.gsm8k import Gsm8kInteraction

__all__ = ["Gsm8kInteraction"]
