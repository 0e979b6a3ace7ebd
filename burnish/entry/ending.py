"""How the process of a command ends, whatever users' code does in it.

importing, begin           a signal while modules are imported ends the process at once, without a traceback
terminated_as_interrupted  SIGTERM does what Ctrl-C does
StopRequest                a signal waits for the end of a training step
watched                    a second SIGINT or SIGTERM ends the process in `SECOND_S`, a third at once, also where the
                           main thread does not handle them
leave                      the end of every command: a thread that does not end is given up after `LEAVE_S`

Only a command uses `watched` and `leave`: a program that calls the trainer is not ended from here. Imports little at
the top: a signal before that is done meets Python's own handler.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

STOPS = (signal.SIGINT, signal.SIGTERM)
STOPPED = 130  # the exit code
SECOND_S = 10.0  # after the second signal
REPORT_S, LEAVE_S = 1.0, 10.0  # for threads to end, before they are reported and before they are given up

received: list[int] = []  # signals of STOPS while `watched`, also those that a program that hangs could not handle

_writing: int | None = None  # where signals are written while `watched`
_code: int | None = None  # of a command that has left
_LIBRARY = os.path.dirname(os.__file__)


def _forget() -> None:
    """A fork, whose signals are its own, must not have them counted here, nor keep `_count` from ending."""
    global _writing
    if _writing is not None:
        signal.set_wakeup_fd(-1)
        os.close(_writing)
        _writing = None


def _end_before_teardown() -> None:
    """After all other functions of atexit, because it is registered first: Python now destroys what is left, and
    objects of users' code may hang in that, where no thread runs any more."""
    if _code is not None:
        try:
            sys.stdout.flush()
        finally:  # nobody reads it, it is closed, or it is an object of users' code
            os._exit(_code)


os.register_at_fork(after_in_child=_forget)
atexit.register(_end_before_teardown)


def _stop(number: int, frame: FrameType | None) -> None:
    end("stopped")


def begin(name: str) -> bool:
    """Called with `__name__` by a module that may be a program, before its own imports: `importing` from here on."""
    usual = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _stop)  # not where it is ignored
    can_stop = name == "__main__" and usual and threading.current_thread() is threading.main_thread()
    if can_stop:
        signal.signal(signal.SIGINT, _stop)
    return can_stop


@contextmanager
def importing() -> Iterator[None]:
    """Nothing is at stake, and an exception raised inside an import may be lost or become another one."""
    can_stop = begin("__main__")
    try:
        yield
    finally:
        if can_stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _handled(number: int, handler: Any) -> Iterator[None]:
    try:
        before = signal.signal(number, handler)
    except ValueError:  # not the main thread: whoever runs it there handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """A scheduler's SIGTERM ends the run as Ctrl-C does: with its last words."""
    from asyncio.events import _get_running_loop

    is_first = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_first
        handler, loop, was_first = signal.getsignal(signal.SIGINT), _get_running_loop(), is_first
        is_first = False
        if callable(handler):  # an event loop has its own
            handler(number, frame)
        elif loop is not None and was_first:  # a shell's background job has none: between two steps of the loop
            loop.call_soon_threadsafe(signal.default_int_handler, number, frame)
        else:
            raise KeyboardInterrupt

    with _handled(signal.SIGTERM, interrupt):
        yield


class StopRequest:
    """Ctrl-C, and SIGTERM where it does the same, that waits for a place at which stopping loses nothing."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """What is in the block is done first; a second signal does not wait."""
        before = signal.getsignal(signal.SIGINT)

        def note(number: int, frame: FrameType | None) -> None:
            if self.asked and callable(before):
                before(number, frame)
            self.asked = True
            with suppress(OSError):  # of a terminal that is gone
                os.write(2, b"burnish: stopping after this step; another signal ends the run at once\n")

        with _handled(signal.SIGINT, note if callable(before) else before):
            yield

    @contextmanager
    def breaks(self) -> Iterator[None]:
        """What is in the block is broken off, and can be: what follows it is done."""
        try:
            yield
        except KeyboardInterrupt:
            if self.asked:
                raise
            self.asked = True


@contextmanager
def watched() -> Iterator[None]:
    """Python handles a signal in the main thread, which may be blocked or swallow it; another one counts them here."""
    global _writing
    received.clear()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    except ValueError:  # not the main thread
        os.close(reading)
        os.close(writing)
        yield
        return
    _writing = writing
    threading.Thread(target=_count, args=(reading,), name="signals", daemon=True).start()
    try:
        yield
    finally:
        if _writing is not None:  # else this is a fork
            _writing = None
            signal.set_wakeup_fd(before)
            os.close(writing)


def _count(reading: int) -> None:
    """Until the other end is closed: what was watched has ended, and so has the time that a second signal gave it."""
    timer = threading.Timer(SECOND_S, end, [f"ended {SECOND_S:g} s after the second signal"])
    timer.daemon = True
    while numbers := os.read(reading, 64):
        for number in numbers:
            if number not in STOPS:
                continue
            received.append(number)
            if len(received) == 2:
                timer.start()
            elif len(received) > 2:
                end("ended by the third signal")
    timer.cancel()
    os.close(reading)


def end(text: str) -> NoReturn:
    """Now; what the process started ends with it, as after any kill."""
    try:
        os.write(2, f"burnish: {text}\n".encode())
    finally:
        os._exit(STOPPED)


def leave(code: int) -> NoReturn:
    """End a command that has closed all it owns. Python would wait for the threads of users' code for ever. From here
    on a signal ends the process at once, and the kernel does where native code keeps Python from ending."""
    global _code
    _code = code
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 3 * LEAVE_S)
    for seconds, act in ((REPORT_S, _report), (LEAVE_S, lambda: os._exit(code))):
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()
    sys.exit(code)


def _report() -> None:
    from traceback import walk_stack

    frames = sys._current_frames()
    pooled = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())  # waited for, daemons or not
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        is_left = thread in pooled or not thread.daemon
        if is_left and thread is not threading.main_thread() and frame is not None:
            places = [(inner.f_code.co_filename, line, inner.f_code.co_name) for inner, line in walk_stack(frame)]
            own = [place for place in places if not place[0].startswith(_LIBRARY)]  # not in Python's library, as a wait
            where = "{}, line {}, in {}".format(*(own or places)[0])
            text = f"still running: thread {thread.name} ({where}); given up {LEAVE_S:g} s after the end\n"
            os.write(2, f"burnish: {text}".encode())
