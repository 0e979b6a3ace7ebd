"""The local sandbox's other side: one supervisor process (supervisor.py) that starts programs, watches and ends them.

launch.py makes a process tree for each program, isolated or with limits alone: inside.py is what happens in it before
the program starts, view.py what of the file system it sees, users.py who it is, seccomp.py which system calls it may
not make, usage.py what it uses. Standard library only, and no training process imports it. Every step of the set-up
raises where the kernel refuses it, and the program is started by the last one: half a jail runs nothing.
"""
