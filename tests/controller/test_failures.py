"""Errors on their way from a worker's process to the controller."""

import pickle
import threading

import pytest
import torch.distributed

from burnish.controller.failures import Weight, carry, restore
from burnish.controller.worker import WorkerPlace, failed
from burnish.errors import BurnishError, DataError, NotAvailable, WorkerDied, WorkerError


class Odd(DataError):
    def __init__(self, row, *, file):
        super().__init__(f"row {row} of {file}")
        self.row = row


def through(error):
    return restore(pickle.loads(pickle.dumps(carry(error))))  # noqa: S301 (our own)


def untyped(cause):
    error = failed(object, "m", WorkerPlace(), cause)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [DataError("row 3"), NotAvailable("flying", "walk"), Odd(3, file="a")])
def test_deliberate_errors_arrive_as_themselves(error):
    back = through(error)
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)
    assert back.__cause__ is None


def test_an_error_whose_class_is_unknown_here_arrives_as_the_nearest_known():
    class Local(DataError):
        pass

    back = through(Local("row 3"))
    assert type(back) is DataError and str(back) == "row 3"


def test_an_attribute_that_has_no_pickle_costs_no_more_than_the_attribute():
    error = Odd(3, file="a")
    error.lock = threading.Lock()
    back = through(error)
    assert type(back) is DataError and str(back) == "row 3 of a"


def test_the_cause_comes_along_with_its_traceback():
    try:
        {}["w_7"]
    except KeyError as cause:
        back = through(untyped(cause))
    assert str(back) == "object.m failed on rank 0 of 1: KeyError: 'w_7'"
    assert isinstance(back.__cause__, KeyError) and back.__cause__.args == ("w_7",)
    assert '{}["w_7"]' in back.__cause__.__notes__[0]


def test_a_cause_that_has_no_pickle_comes_as_text():
    class Strange(Exception):
        pass

    back = through(untyped(Strange("thing")))
    assert isinstance(back.__cause__, RuntimeError) and str(back.__cause__).endswith("Strange: thing")


@pytest.mark.parametrize(
    ("error", "weight"),
    [
        (DataError("x"), Weight.TYPED),
        (WorkerError("said on purpose"), Weight.TYPED),
        (untyped(KeyError("x")), Weight.UNTYPED),
        (untyped(ConnectionError("reset by peer")), Weight.UNTYPED),  # a tool's, say; collectives raise RuntimeErrors
        (untyped(RuntimeError("[gloo/tcp/pair.cc:1] Connection closed by peer [10.0.0.1]:7")), Weight.BROKEN),
        (untyped(torch.distributed.DistBackendError("NCCL error")), Weight.BROKEN),
    ],
)
def test_the_reason_weighs_more_than_its_consequences(error, weight):
    assert carry(error).weight is weight
    assert Weight.DIED < Weight.TYPED < Weight.UNTYPED < Weight.BROKEN


def test_every_error_of_the_model_can_be_carried():
    def below(cls):
        yield cls
        for sub in cls.__subclasses__():
            yield from below(sub)

    for cls in below(BurnishError):
        if cls.__module__ == "burnish.errors":
            assert type(through(cls("text"))) is cls


def test_the_death_of_a_worker_that_was_called_tells_most_wherever_it_is_told():
    error = WorkerDied("rank 1, pid 7, died")
    error.__cause__ = RuntimeError("nccl: connection reset by peer")
    assert carry(error).weight is Weight.DIED
    assert type(through(error)) is WorkerDied
