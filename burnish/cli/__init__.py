"""The `burnish` command. `main.py` holds the table of commands, `help.py` explains keys, `errors.py` ends a command.

Nothing here imports torch: a command's module is imported when that command runs.
"""
