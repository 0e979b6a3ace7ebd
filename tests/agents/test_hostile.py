"""Tools, agent loops, interactions and loggers that hang: their run ends by itself with a known exit code, nothing of
it is left, and the trajectories next to them are as ever."""

import json
import multiprocessing
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agents import hostile

LATE, GIVEN_UP, LEFT = "did not end in 5 s", "given up: ", "still running: thread "
AT_ONCE = 6  # most of the time they wait for limits
PRELOADED = ["burnish.agents.runner", "burnish.workers.rollouts", "burnish.models.tiny", "tests.agents.hostile"]


def case(place, act, *, code=0, failure="", says="", ahead=False, core=False):
    """`failure`: of the hostile trajectory; `says`: what is logged; `ahead`: agent loops have a thread."""
    marks = [pytest.mark.hostile] if core else [pytest.mark.hostile, pytest.mark.long]
    return pytest.param((place, act, ahead), code, failure, says, id=f"{place}-{act}", marks=marks)


def late(place, *acts, **about):
    return [case(place, act, failure=LATE, ahead=i % 2 == 1, **about) for i, act in enumerate(acts)]


CASES = [
    *late("tool.execute", "in_looping_thread", "swallows_cancellation", says=GIVEN_UP, core=True),
    *late("tool.execute", "in_thread", "in_many_threads", "swallows_everything", "shielded", says=GIVEN_UP),
    *late("tool.execute", "hangs_when_cancelled", says=GIVEN_UP),
    *late("tool.execute", "in_its_own_pool", says=LEFT),
    *late("tool.execute", "never", "deadlock", "spins", "child"),
    *late("tool.create", "swallows_cancellation", "in_looping_thread", says=GIVEN_UP),
    *late("tool.calc_reward", "in_looping_thread", "swallows_cancellation", says=GIVEN_UP),
    *late("tool.release", "in_looping_thread", "swallows_everything", "hangs_when_cancelled", says=GIVEN_UP),
    case("tool.execute", "generator", says=GIVEN_UP),
    case("tool.execute", "leaves_tasks", says=GIVEN_UP),
    case("tool.execute", "leaves_thread", says=LEFT),
    case("tool.execute", "leaves_pool", says=LEFT, ahead=True),
    case("tool.execute", "blocks", code=3),
    case("tool.execute", "exits", failure="SystemExit"),
    case("tool.execute", "interrupts", code=130, says="stopped"),
    case("tool.execute", "raises_base", failure="of no known kind"),
    case("tool.execute", "raises_cancelled", failure="CancelledError", ahead=True),
    case("tool.execute", "raises_wordless", failure="Wordless"),
    case("tool.execute", "returns_nonsense", failure="not a [(]ToolResponse"),
    case("tool.close", "in_looping_thread", says=GIVEN_UP, core=True, ahead=True),
    case("tool.close", "swallows_cancellation", says="Tool to close did not end in 1 s"),
    case("tool.close", "shielded", says=GIVEN_UP, ahead=True),
    case("tool.close", "blocks", code=3),
    case("tool.close", "exits", says="SystemExit"),
    case("tool.close", "child"),
    *late("interaction.respond", "in_looping_thread", "swallows_cancellation", says=GIVEN_UP),
    *late("interaction.start", "in_many_threads", "shielded", says=GIVEN_UP),
    *late("interaction.score", "hangs_when_cancelled", "in_thread", says=GIVEN_UP),
    *late("interaction.finalize", "swallows_everything", says=GIVEN_UP),
    case("interaction.respond", "blocks", code=3),
    case("interaction.respond", "exits", failure="SystemExit"),
    case("interaction.close", "swallows_everything", says=GIVEN_UP),
    *(
        case("loop.run", act, code=1, says="1 of 3 trajectories were not done", ahead=ahead)
        for act in ("in_looping_thread", "swallows_cancellation", "shielded", "child", "deadlock")
        for ahead in [act in ("shielded", "deadlock")]
    ),
    case("loop.run", "generator", says=GIVEN_UP),
    case("loop.run", "leaves_tasks", says=GIVEN_UP, ahead=True),
    case("loop.run", "leaves_thread", says=LEFT),
    case("loop.run", "leaves_pool", says=LEFT),
    case("loop.run", "exits", code=1, says="agent loop hostile failed for uid 0, sample 0: SystemExit: 7"),
    case("loop.run", "blocks", code=3),
    case("logger.log", "blocks", code=3),
    case("logger.log", "raises_base", code=1, says="of no known kind"),
    case("logger.close", "blocks", code=3),
    case("logger.close", "in_looping_thread", code=3),
    case("logger.close", "swallows_everything", code=3),
    case("logger.close", "leaves_thread", says=LEFT),
    case("logger.close", "raises_wordless", code=1),
]


def started(folder, place, act, ahead):
    """The exit code of the command, once it has ended; the test's own limit ends one that does not."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=hostile.command, args=(str(folder), place, act, ahead), daemon=True)
    process.start()
    try:
        process.join(200)
        return process.pid, process.exitcode
    finally:
        process.kill()


@pytest.fixture(scope="module")
def commands(request, tmp_path_factory) -> dict[tuple[str, str, bool], tuple[Path, Future]]:
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    asked = [item.callspec.params["names"] for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        folders = [tmp_path_factory.mktemp("run") for _ in asked]
        yield {n: (at, pool.submit(started, at, *n)) for n, at in zip(asked, folders, strict=True)}


def of_session(session):
    """The processes of a session that are there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.parametrize(("names", "code", "failure", "says"), CASES)
def test_run_with_hostile_code_ends_by_itself(commands, names, code, failure, says):
    folder, running = commands[names]
    session, exit_code = running.result()
    log = (folder / "log.txt").read_text()
    assert exit_code == code and not of_session(session), log
    assert re.search(says, log), log
    if code == 0 or "not done" in says:  # else it ended all at once
        outcome = json.loads((folder / "outcome.json").read_text())
        assert [outcome["turns"][uid] for uid in "12"] == [2, 2], "an honest neighbour was disturbed"
        if code == 0:
            found = outcome["failures"]
            assert found["1"] == found["2"] == "" and bool(found["0"]) == bool(failure)
            assert re.search(failure, found["0"])
