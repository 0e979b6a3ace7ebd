"""Checkpoint folders that someone has changed: passed over or refused in one line that names the file, without a
traceback, without waiting, without running what is in them; and the honest checkpoint next to them is still used."""

import re
import shutil
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.errors import CheckpointError
from burnish.trainer.checkpoint import CheckpointStore, read_state
from tests.trainer.conftest import GRPO
from tests.trainer.tampering import ENGINE, LOADED, SEALED, SEEN, STATE, TENSORS, seal

pytestmark = pytest.mark.hostile
RUN = [*GRPO, "data.val_files=null", "trainer.save_freq=1", "trainer.test_freq=-1"]
STATE_TEXT = """{"step": 2, "experience": {"position": 8}, "kl": {}, "correction": {}, "bad_steps": {"actor": 0},
"run": {}, "config": {}}"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two checkpoints with the files that a run writes, and hardly anything in them."""
    texts = {STATE: STATE_TEXT, ENGINE: '{"parts": []}'}
    names = (*TENSORS, *texts, "actor/model.safetensors", "actor/config.json", "actor/tokenizer.json")

    def write(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(texts.get(name, f"{name} of {folder.name}"))
        (folder / "model.safetensors").symlink_to("actor/model.safetensors")

    store = CheckpointStore(tmp_path_factory.mktemp("two") / "run")
    for step in (1, 2):
        store.save(step, write)
    return store.root


@pytest.fixture
def store(two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CheckpointStore(shutil.copytree(two, tmp_path / "run", symlinks=True))


def assert_one_line(message: str, words: str) -> None:
    assert re.search(words, message), message
    assert "\n" not in message and "\x1b" not in message, message


@pytest.mark.parametrize(("tamper", "words"), SEEN)
def test_a_changed_checkpoint_is_passed_over_and_refused_by_name(store, tamper, words, caplog):
    newest = store.folder(2)
    tamper(newest)
    assert store.to_resume("auto", None) == store.folder(1)
    (message,) = caplog.messages
    assert_one_line(message, words)
    with pytest.raises(CheckpointError) as refused:
        store.to_resume("resume_path", str(newest))
    assert_one_line(str(refused.value), words)
    assert not Path("code-was-run").exists()


@pytest.mark.parametrize(("tamper", "words"), SEALED)
def test_a_changed_state_is_refused_though_its_manifest_fits(store, tamper, words):
    tamper(store.folder(2))
    seal(store.folder(2))
    with pytest.raises(CheckpointError) as refused:
        read_state(store.to_resume("auto", None))
    assert_one_line(str(refused.value), words)


@pytest.fixture
def command(begun, job, capsys):
    """A run of two steps in `run`; gives a function that goes on with it: its exit code and its lines on stderr."""
    begun(*RUN, "trainer.total_training_steps=2")
    capsys.readouterr()

    def resume(*overrides: str) -> tuple[int, list[str]]:
        code = main(["ppo", *job, *RUN, "trainer.total_training_steps=3", *overrides])
        err = capsys.readouterr().err
        assert "Traceback" not in err, err
        assert not Path("code-was-run").exists()
        assert not list(Path("run").glob(".global_step_*")), "something is left"
        return code, err.splitlines()

    return resume


@pytest.mark.long
@pytest.mark.parametrize(("tamper", "words"), SEEN[::8])  # the others by the store alone, above
def test_a_run_continues_from_the_checkpoint_before(command, tamper, words):
    tamper(Path("run/global_step_2"))
    code, lines = command()
    assert code == 0, lines
    (warning,) = [line for line in lines if "passed over" in line]
    assert re.search(words, warning)
    assert {f"run/global_step_{step}" for step in (1, 2, 3)} == {str(path) for path in Path("run").glob("global_*")}


@pytest.mark.long
@pytest.mark.parametrize(("tamper", "words"), [*SEALED[::8], *LOADED])
def test_a_run_is_refused_and_can_continue_from_the_checkpoint_before(command, tamper, words):
    folder = Path("run/global_step_2")
    tamper(folder)
    seal(folder)
    code, lines = command()
    assert code == 2, lines
    (error,) = [line for line in lines if line.startswith("burnish: error: ")]
    assert re.search(words, error) and lines[-1] == error
    shutil.rmtree(folder)
    code, lines = command()
    assert code == 0, lines
