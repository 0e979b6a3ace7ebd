"""The `burnish` command: main.py has the table of commands, the other files the flags of each. Nothing here imports
torch: a command's module is imported when that command runs. No other part imports this one."""
