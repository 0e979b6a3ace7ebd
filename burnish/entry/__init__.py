"""What programs of burnish share, whether started as `burnish X` or as `python3 -m burnish.trainer.X`.

guard.py      runs a command and ends the process: one message, one exit code
arguments.py  command lines with flags: `--help` with an example, mistakes as ConfigErrors
keys.py       commands configured by keys (ppo, sft, rm, generate, eval): what they are, their `--help`

Nothing here imports torch.
"""
