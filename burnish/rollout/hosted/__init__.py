"""Engines that burnish only hosts: a third-party program in separate processes. `engine` is what burnish talks to, and
`weights` are the files that weights travel by. `process` starts, watches and ends a process that runs a `host`, which
has the program in it; `keeper` ends it where nobody else is left to do so."""
