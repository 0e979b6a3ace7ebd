"""Interactions: who answers the policy between its turns. Write your own from these names."""

from burnish.agents.interactions.base import BaseInteraction

__all__ = ["BaseInteraction"]
