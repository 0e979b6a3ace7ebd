"""What a run folder must look like after a kill, and at the end."""

import contextlib
import json
from pathlib import Path

from benchmarks.same_numbers import contents, differences
from burnish.errors import CheckpointError
from burnish.models.folder import LATEST
from burnish.tracking.jsonl import read_lines
from burnish.tracking.run_folder import LEFT_BY_A_RUN
from burnish.trainer.checkpoint import REPLACED, STATE, WRITING, verify
from tests.trainer.kills.kinds import STEPS, Kind

PHASES = ("starting", "training", "saving", "replacing", "naming", "pruning", "ending")
NAMES = (*LEFT_BY_A_RUN, "status", "stacks", "logs", "trace", "previous-*", "console.log", "error.json")


def problems(run: Path) -> list[str]:
    """What is wrong with a run folder whose run was killed, or is done."""
    found = []
    for folder in [*run.glob("global_step_*"), *run.glob("previous-*/global_step_*")]:
        try:
            verify(folder)
        except CheckpointError as error:
            found.append(f"visible, but not complete: {error}")
    step = pointer(run)
    if step and not any((run / name).is_dir() for name in (f"global_step_{step}", f".global_step_{step}{REPLACED}")):
        found.append(f"{LATEST} names step {step}, which is not there")
    for path in run.glob("[!.]*"):
        if not any(path.match(name) for name in NAMES):
            found.append(f"{path.name} is none of a run's files")
    for file in run.rglob("[!.]*.jsonl"):
        try:
            whole = file.read_bytes().count(b"\n")
            assert len(read_lines(file)) == whole, "a line that is no record"
            if file.parent != run and not file.parent.name.startswith("previous-"):
                assert file.read_bytes().endswith(b"\n"), "torn"  # samples appear as a whole
        except (ValueError, AssertionError) as error:
            found.append(f"{file.relative_to(run)}: {error}")
    if (steps := logged(run)) and steps != list(range(steps[0], steps[0] + len(steps))):
        found.append(f"metrics.jsonl has the steps {steps}")
    return found


def pointer(run: Path) -> int:
    """The step that the pointer of a run folder names; 0: none."""
    with contextlib.suppress(FileNotFoundError):
        return int((run / LATEST).read_text())
    return 0


def logged(run: Path) -> list[int]:
    file = run / "metrics.jsonl"
    return [line["step"] for line in read_lines(file)] if file.exists() else []


def places(run: Path) -> dict[str, int]:
    """The checkpoints that are there or being written, and the pointer; a number tells two of one name apart."""
    found = {}
    for path in [*run.glob("global_step_*"), *run.glob(".global_step_*"), run / LATEST]:
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_ino
    return found


def compared(kind: Kind, whole: Path, run: Path) -> list[str]:
    """What differs between the finished run and one never killed."""
    if kind.prompts_only:
        one, other = prompts(whole), prompts(run)
        return [f"different: prompts of step {step}" for step in one | other if one.get(step) != other.get(step)]
    found = differences(contents(whole, STEPS), contents(run, STEPS))
    found += [] if state(whole) == state(run) else [STATE]
    return [f"different: {name}" for name in found if not any(part in name for part in kind.differs)]


def prompts(run: Path) -> dict[int, list[tuple[int, int]]]:
    steps = {int(file.stem): read_lines(file) for file in (run / "rollouts").glob("*.jsonl")}
    return {step: [(row["uid"], row["sample"]) for row in rows] for step, rows in steps.items()}


def state(run: Path) -> dict[str, object]:
    file = run / f"global_step_{STEPS}" / STATE
    return json.loads(file.read_text()) | {"config": {}} if file.exists() else {}


def phase(run: Path, before: dict[str, int], began_at: int) -> str:
    """What a run was doing when it was killed, by what it left."""
    now = places(run)
    new = {name for name, number in now.items() if before.get(name) != number}
    if any(name.endswith(REPLACED) for name in new):
        return "replacing"
    if any(name.endswith(WRITING) for name in new):
        return "saving"
    if any(name == f"global_step_{step}" for name in new for step in range(pointer(run) + 1, STEPS + 1)):
        return "naming"
    if any(name.startswith(".") for name in new):
        return "pruning"
    if pointer(run) == STEPS:
        return "ending"
    return "training" if max(logged(run), default=0) > began_at else "starting"
