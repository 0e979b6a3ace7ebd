"""The local sandbox's other side: one supervisor process that starts programs, watches and ends them.

    supervisor.py  the process: takes programs from its parent, keeps the loop that serves all of them
    running.py     one program as the supervisor sees it, from its start to the answer
    launch.py      an isolated process tree for each program
    unsafe.py      one that has limits alone
    view.py        what of the file system a program sees
    users.py       who it is: user namespaces and the id that it runs as
    inside.py      what happens in the new process before the program starts
    seccomp.py     which system calls it may not make
    usage.py       what its tree uses, read from /proc
    wire.py        what the parent sends and gets
    linux.py       the system calls that Python lacks

Standard library only, and nothing of it is imported by a training process except wire.py. Every step of the set-up
raises where the kernel refuses it, and the program is started by the last one: half a jail runs nothing.
"""
