"""One end of the pipe between tester and candidate: asks the other end, and answers it while waiting.

A message is one line of JSON: a request `[operation, …]`, or the reply to the last one, `["ok", …]` or `["error",
class, arguments]`. Both ends run in one thread, so requests nest: while the tester waits for a call of the solution,
the solution may call a function that the test handed over. Runs inside the sandbox.
"""

from __future__ import annotations

import builtins
import json

from burnish.sandbox.harness.wire import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any


class Gone(BaseException):
    """The other end has closed the pipe. No test catches this by `except Exception`."""


class HarnessPeer(Wire):
    """`ask` sends a request and gives what comes back; a subclass performs the other end's requests."""

    def __init__(self, incoming: int, outgoing: int):
        self._incoming: IO[str] = open(incoming, encoding="ascii")  # noqa: SIM115  (open as long as the process lives)
        self._outgoing: IO[str] = open(outgoing, "w", encoding="ascii")  # noqa: SIM115

    def perform(self, operation: str, *parts: Any) -> list[Any]:
        """What to reply to a request; whatever it raises becomes an error reply."""
        raise NotImplementedError

    def send(self, message: Any) -> None:
        text = json.dumps(message)
        try:
            self._outgoing.write(text + "\n")
            self._outgoing.flush()
        except OSError:
            raise Gone from None

    def receive(self) -> list[Any]:
        line = self._incoming.readline()
        if not line.endswith("\n"):
            raise Gone
        message: list[Any] = json.loads(line)
        return message

    def ask(self, *request: Any) -> list[Any]:
        self.send(request)
        while True:
            message = self.receive()
            if message[0] == "ok":
                return message[1:]
            if message[0] == "error":
                raise self._raised(message[1], message[2])
            self.answer(message)

    def answer(self, request: list[Any]) -> None:
        try:
            self.send(["ok", *self.perform(*request)])
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the other end's request raises is its answer
            self.send(["error", self.exception_form(type(error)), self._arguments(error)])

    def exception_form(self, kind: type[BaseException]) -> Any:
        """How a class of exceptions is sent to the other end: as the nearest built-in one."""
        return next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")

    def exception_class(self, form: Any) -> type[BaseException]:
        kind = getattr(builtins, form)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(f"{form} is no exception")
        return kind

    def _arguments(self, error: BaseException) -> list[Any]:
        try:
            forms = self.encode_all(error.args)
            json.dumps(forms)
            return forms
        except Exception as unsendable:  # noqa: BLE001  the error itself has to get across
            return [f"(arguments lost: {type(unsendable).__name__})"]

    def _raised(self, form: Any, arguments: list[Any]) -> BaseException:
        kind, values = self.exception_class(form), self.decode_all(arguments)
        try:
            return kind(*values)
        except TypeError:  # a class that insists on other arguments
            return RuntimeError(f"{kind.__name__}: {values}")
