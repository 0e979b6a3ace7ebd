"""What engines that burnish only hosts have in common: a third-party program, in separate processes.

`engine` is what burnish talks to; `weights` are the files that weights travel by. `process` starts, watches and ends a
process that runs a `host`, which has the program in it and answers `messages`; `keeper` ends it where nobody else is
left to do so. Packages next to this one (`vllm`, `sglang`) say what is particular about their program: its arguments,
how it is asked, and what burnish adds to it.
"""
