"""Interactions written for verl: `base.py` the contract, `gsm8k_interaction.py` the built-in one."""
