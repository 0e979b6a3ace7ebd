"""The growing output: killed at any instant, it is made whole by the same job and touched by no other."""

import itertools
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from burnish.errors import CheckpointError, ConfigError, DataError
from burnish.trainer import response_file as parts
from burnish.trainer.response_file import GenerationOutput

TOTAL = 10
SCHEMA = pa.schema({"number": pa.int64(), "words": pa.list_(pa.string())}, metadata={b"from": b"the input"})
FACTS = {"data.path": "sha256:1", "rollout.temperature": 1.0, "rollout.stop": []}


class Killed(BaseException):
    """Stands for SIGKILL: nothing that would clean up runs."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "out.parquet"


def table(rows):
    return pa.table({"number": list(rows), "words": [[f"row {i}", ""] for i in rows]}, schema=SCHEMA)


def make(path, size=3, *, stop_after=None, made=None, facts=FACTS, overwrite=False):
    """The job: every missing row, then the file. Returns the rows that were made, which are added to `made`."""
    made = [] if made is None else made
    with GenerationOutput(path, facts, overwrite=overwrite) as output:
        if output.is_complete():
            return made
        output.begin(SCHEMA, TOTAL)
        for count, rows in enumerate(output.missing(size)):
            if count == stop_after:
                return made
            output.write(rows, table(rows))
            made += rows
        output.merge()
    return made


def assert_whole(path):
    assert pq.ParquetFile(path).read().equals(table(range(TOTAL)))
    assert os.listdir(path.parent) == [path.name], "nothing is left beside the file"


@pytest.mark.parametrize(("bytes_held", "groups"), [(parts.ROW_GROUP, 1), (1, 4)])
def test_rows_come_out_in_order_with_the_facts_in_the_metadata(path, monkeypatch, bytes_held, groups):
    """Small parts are merged into large row groups; large ones are not held in memory together."""
    monkeypatch.setattr(parts, "ROW_GROUP", bytes_held)
    make(path)
    assert_whole(path)
    file = pq.ParquetFile(path)
    metadata = file.schema_arrow.metadata
    assert metadata[b"from"] == b"the input" and b"rollout.temperature" in metadata[parts.KEY]
    assert file.metadata.num_row_groups == groups


def test_a_hole_in_the_middle_is_filled(path):
    make(path, stop_after=3)
    (path.parent / "out.parquet.parts" / "rows-000000003-000000006.parquet").unlink()
    assert make(path, 2) == [3, 4, 5, 9]
    assert_whole(path)


@pytest.fixture
def kill_at(monkeypatch):
    """Die at the n-th change of the file system, before or after it; returns whether there was one."""
    changes = [(os, "replace"), (Path, "unlink"), (Path, "rmdir"), (Path, "mkdir"), (os, "fsync")]
    originals = {name: getattr(owner, name) for owner, name in changes}

    def arm(number, *, after):
        left = itertools.count(number, -1)

        def patched(name):
            def call(*args, **kwargs):
                is_last = next(left) == 0
                if is_last and not after:
                    raise Killed
                result = originals[name](*args, **kwargs)
                if is_last:
                    raise Killed
                return result

            return call

        for owner, name in changes:
            monkeypatch.setattr(owner, name, patched(name))

    def leave_as_a_dead_process_does(output):
        if output._lock._file is not None:
            output._lock._file.close()  # the kernel lets go of the lock; files stay as they are

    def attempt(job, number, *, after):
        monkeypatch.setattr(GenerationOutput, "_leave", leave_as_a_dead_process_does)
        arm(number, after=after)
        try:
            job()
            return False
        except Killed:
            return True
        finally:
            monkeypatch.undo()

    return attempt


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_instant_no_row_is_lost_or_made_twice(tmp_path, kill_at, after):
    for number in itertools.count():
        path, made = tmp_path / str(number) / "out.parquet", []
        if not kill_at(lambda path=path, made=made: make(path, made=made), number, after=after):
            break
        saved = [i for rows, _ in GenerationOutput(path, FACTS)._parts() for i in rows]
        is_whole = path.exists()
        assert is_whole or saved[: len(made)] == made, "what was said to be saved is"
        assert make(path, 4) == ([] if is_whole else [i for i in range(TOTAL) if i not in saved])
        assert_whole(path)
    assert number > 15, "every change of the file system was tried"


@pytest.mark.parametrize("facts", [FACTS, {"old": 1}], ids=["its own", "of another job"])
def test_overwrite_remakes_a_file_and_resumes_its_own_parts(path, facts):
    make(path, facts=facts)
    before = path.read_bytes()
    made = make(path, stop_after=2, overwrite=True)
    assert path.read_bytes() == before, "the old file stays until the new one is whole"
    assert made + make(path, overwrite=True) == list(range(TOTAL)), "the parts of the new one are not made twice"
    assert_whole(path)


def test_another_job_does_not_touch_the_file(path):
    make(path)
    before = path.read_bytes()
    with pytest.raises(DataError) as error:
        make(path, facts=FACTS | {"rollout.temperature": 0.5, "data.path": "sha256:2", "rollout.stop": ["x"]})
    assert str(error.value) == (
        f"{path} already exists and was made by another command (data.path had other contents, rollout.temperature "
        "was 1.0 and is 0.5, rollout.stop was [] and is [x]); name another data.output_path, or replace it with "
        "data.overwrite=true"
    )
    assert path.read_bytes() == before
    assert_whole(path)


def test_another_job_does_not_touch_the_parts(path):
    make(path, stop_after=2)
    with pytest.raises(DataError, match=r"parts holds 6 rows of an unfinished output, which was made by .*temperature"):
        make(path, facts=FACTS | {"rollout.temperature": 0.5})
    assert make(path) == [6, 7, 8, 9]


def test_a_file_of_someone_else_is_not_replaced(path):
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(DataError, match="already exists and was not written by burnish generate; name another"):
        make(path)
    assert path.read_text() == "precious" and os.listdir(path.parent) == [path.name]
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="is a folder; name a file in data.output_path"):
        make(path)


def test_overwrite_throws_away_the_parts_of_another_job(path):
    make(path, stop_after=2, facts={"old": 1})
    assert make(path, overwrite=True) == list(range(TOTAL))
    assert_whole(path)


def test_an_attempt_that_saved_nothing_does_not_block_another_command(path):
    make(path, stop_after=0, facts={"old": 1})
    assert os.listdir(path.parent) == []
    make(path)
    assert_whole(path)


def spoil(path):
    """Change one byte of a part's rows, which leaves what the file says of itself as it was; returns the part."""
    part = min(path.parent.glob("out.parquet.parts/rows-*"))
    content = bytearray(part.read_bytes())
    content[content.index(b"row 0")] ^= 1
    part.write_bytes(content)
    return part


def cut(path):
    part = min(path.parent.glob("out.parquet.parts/rows-*"))
    part.write_bytes(part.read_bytes()[:-9])
    return part


@pytest.mark.parametrize("damage", [cut, spoil])
def test_a_damaged_part_is_made_again(path, caplog, damage):
    make(path, stop_after=2)
    part = damage(path)
    assert make(path) == [0, 1, 2, *range(6, 10)] and f"{part} is damaged; its rows are made again" in caplog.text
    assert_whole(path)


def test_a_part_that_is_damaged_before_it_is_merged_bars_nothing(path):
    with pytest.raises(DataError) as error, GenerationOutput(path, FACTS) as output:
        output.begin(SCHEMA, TOTAL)
        output.write(range(4), table(range(4)))
        output.write(range(4, TOTAL), table(range(4, TOTAL)))
        part = spoil(path)
        output.merge()
    assert str(error.value) == f"{part} was damaged since it was written; the same command makes its rows again"
    assert make(path) == list(range(4))
    assert_whole(path)


def test_two_processes_do_not_write_the_same_file(path):
    with GenerationOutput(path, FACTS) as output:
        output.begin(SCHEMA, TOTAL)
        with pytest.raises(ConfigError, match=rf"data.output_path={path}: process {os.getpid()} on .* is writing"):
            make(path)
        output.write(range(4), table(range(4)))
    assert make(path) == list(range(4, TOTAL))


def test_an_unwritable_folder_is_reported_with_the_fix(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*: part of the path is a file.*data\.output_path$"):
        make(tmp_path / "file" / "out.parquet")


def test_a_full_disk_keeps_what_was_saved(path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    make(path, stop_after=1)
    with monkeypatch.context() as patch:
        patch.setattr(parts.pq, "write_table", full)
        with pytest.raises(DataError, match=r"the disk is full: .* data\.output_path\. What was saved before is kept"):
            make(path)
    assert make(path) == list(range(3, TOTAL))
