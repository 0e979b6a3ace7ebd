"""burnish: reinforcement learning for language models, from a laptop to a cluster.

Importing this package imports nothing else. The commands are in `burnish/cli`, the training loop in
`burnish/trainer/ppo.py`, every configuration key in `burnish/config`.
"""

__version__ = "0.1.0"
