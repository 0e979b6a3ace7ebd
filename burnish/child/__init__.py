"""One way to run a child process: it is started, called by number, killed with everything it started.

frames.py has the frames both sides exchange and the child's end of them (`Parent`), process.py the parent's end
(`ChildProcess`), output.py the limit of what children print. Used for scoring, math-verify, the sandbox's supervisor
and hosted rollout engines. The contract:

- **Start.** Any command; its standard input and output are the two pipes. The child moves them to private descriptors
  before other code runs: what prints goes to standard error, what reads gets an empty file. It leads a session.
- **Frames.** Payloads towards the child are pickles, since the parent is trusted. Towards the parent they are JSON:
  nothing that a child sends is ever unpickled.
- **Calls.** Each has a number and a deadline. The child may send any number of PARTs and then one ANSWER, in any order
  of calls. CANCEL ends one call where the child supports it; otherwise its owner kills the child.
- **Death.** A child that dies fails its calls with `ChildDied`. Its descendants are killed. An unreadable answer fails
  its call in the same way and kills the child; its other calls end with `ChildKilled`.
- **Parent's death.** The pipe ends, however the parent ended, and the child's reading thread kills the whole group. A
  fork of the parent holds no end of any pipe.
"""
