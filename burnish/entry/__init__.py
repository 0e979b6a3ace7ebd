"""What programs of burnish share, whether started as `burnish X` or as `python3 -m burnish.trainer.X`.

guard.py      runs a command: one message, one exit code
ending.py     the end of its process: signals, and threads of users' code that do not end
arguments.py  command lines with flags: `--help` with an example, mistakes as ConfigErrors
keys.py       commands configured by keys (ppo, sft, rm, generate, eval): what they are, their `--help`

Nothing here imports torch.
"""
