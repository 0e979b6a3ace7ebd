"""Reward managers of verl 0.7 to 0.9."""
