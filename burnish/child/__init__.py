"""One way to run a child process: it is started, called by number, killed with everything it started.

    frames.py   the frames both sides exchange, and the child's end of them (`Parent`)
    process.py  the parent's end (`ChildProcess`): start, call, cancel, kill, and how a death is reported

Used for scoring (`rewards/child.py`), math-verify (`rewards/equivalence/algebra.py`), the sandbox's supervisor
(`sandbox/local.py`) and hosted rollout engines (`rollout/hosted/process.py`). The contract:

- **Start.** Any command; its standard input and output are the two pipes. The child moves them to private descriptors
  before other code runs: what prints goes to standard error (or the log that the owner names), what reads gets an empty
  file. It is the first of a session and inherits no other descriptor.
- **Frames.** A header (payload bytes, number of the call, kind) and the payload. Towards the child payloads are
  pickles, since the parent is trusted. Towards the parent they are JSON: nothing that a child sends is ever unpickled.
- **Calls.** Each has a number and a deadline. The child may send any number of PARTs and then one ANSWER, in any order
  of calls. CANCEL ends one call where the child supports it; otherwise its owner kills the child.
- **Death.** A child that dies fails its calls with `ChildDied`, which says how it ended. Its descendants are killed.
  An unreadable answer fails its call in the same way and kills the child; its other calls end with `ChildKilled`.
- **Parent's death.** The pipe ends, however the parent ended, and the child's reading thread kills the whole group. A
  fork of the parent holds no end of any pipe.
- **Limits.** `Parent` takes resource limits, an audit hook and "die at once with the parent" (for code that can hold
  the interpreter's lock); CPU time, memory and system calls of programs are the sandbox's own matter.
"""

from burnish.child.frames import ANSWER, CALL, CANCEL, PART, FrameBuffer, Parent, frame

__all__ = ["ANSWER", "CALL", "CANCEL", "PART", "FrameBuffer", "Parent", "frame"]
