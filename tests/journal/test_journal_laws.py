"""What append() has acknowledged is there, in order, whatever dies."""

import asyncio
import signal
import subprocess
import sys

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longtail.errors import DiskFull, InfrastructureError, UserError
from longtail.journal import FILE_NAME, SqliteJournal, is_live, list_trajectories, load_trajectory, read_events
from longtail.types import Event


def opened(path, **options):
    return SqliteJournal.open(path, wall=lambda: 5.0, **options)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.lists(st.integers(1, 12), min_size=1, max_size=8))
async def test_concurrent_appends_keep_the_order_of_each_trajectory(counts, tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    journal = opened(path)

    async def attempt(name, count):
        for i in range(count):
            await journal.append(Event(kind="note", trajectory=name, data={"i": i}, arrays={"x": (i, i + 1)}))

    await asyncio.gather(*(attempt(f"t{n}", count) for n, count in enumerate(counts)))
    for n, count in enumerate(counts):
        events = list(read_events(path, trajectory=f"t{n}"))
        assert [e.data["i"] for e in events] == list(range(count))
        assert [e.arrays["x"] for e in events] == [(i, i + 1) for i in range(count)]
    assert [e.seq for e in read_events(path)] == list(range(1, sum(counts) + 1))
    await journal.close()


async def test_appends_given_together_stand_in_the_order_given_even_after_a_full_queue(tmp_path):
    journal = opened(tmp_path)
    await asyncio.gather(*(journal.append(Event(kind="note", data={"i": i})) for i in range(9000)))
    assert [e.data["i"] for e in read_events(tmp_path)] == list(range(9000))
    await journal.close()


async def test_waiting_appends_share_commits(tmp_path):
    journal = opened(tmp_path)
    reader = apsw.Connection(str(tmp_path / FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    before = reader.pragma("data_version")
    await asyncio.gather(*(journal.append(Event(kind="note")) for _ in range(1000)))
    frames = (tmp_path / f"{FILE_NAME}-wal").stat().st_size / 16384
    assert reader.pragma("data_version") != before
    assert frames < 200  # a commit writes at least three pages: 1000 commits would be 3000
    reader.close()
    await journal.close()


async def test_events_given_in_one_append_are_there_together_or_not_at_all(tmp_path):
    journal = opened(tmp_path)
    with pytest.raises(TypeError):
        await journal.append(Event(kind="note"), Event(kind="note", data={"x": object()}))
    assert list(read_events(tmp_path)) == []
    await journal.close()


CRASHING_WRITER = """
import asyncio, sys
from pathlib import Path
from longtail.journal import SqliteJournal
from longtail.types import Event

async def main():
    journal = SqliteJournal.open(Path(sys.argv[1]), wall=lambda: 1.0)
    async def attempt(name):
        i = 0
        while True:
            await journal.append(Event(kind="note", trajectory=name, data={"i": i}, arrays={"ids": range(300)}))
            print(name, i, flush=True)
            i += 1
    await asyncio.gather(*(attempt(f"t{n}") for n in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("after_lines", [1, 57, 400])
def test_every_acknowledged_event_survives_kill_9(tmp_path, after_lines):
    writer = subprocess.Popen(
        [sys.executable, "-c", CRASHING_WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    lines = [writer.stdout.readline() for _ in range(after_lines)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    acknowledged = {tuple(line.split()) for line in lines if line.endswith("\n")}
    assert len(acknowledged) >= after_lines
    assert not is_live(tmp_path)
    events = list(read_events(tmp_path))
    assert acknowledged <= {(e.trajectory, str(e.data["i"])) for e in events}
    assert all(e.arrays["ids"] == tuple(range(300)) for e in events)
    for name in {e.trajectory for e in events}:
        numbers = [e.data["i"] for e in events if e.trajectory == name]
        assert numbers == list(range(len(numbers)))


async def test_a_second_driver_is_refused_and_readers_are_not(tmp_path):
    journal = opened(tmp_path)
    await journal.append(Event(kind="note"))
    assert is_live(tmp_path)
    with pytest.raises(UserError, match="in use by a live run"):
        opened(tmp_path)
    assert len(list(read_events(tmp_path))) == 1
    await journal.close()
    assert not is_live(tmp_path)
    await opened(tmp_path).close()


async def test_a_full_disk_is_named_and_what_was_acknowledged_stays_readable(tmp_path):
    def small(connection):
        connection.pragma("max_page_count", 12)

    apsw.connection_hooks.append(small)
    try:
        journal = opened(tmp_path)
    finally:
        apsw.connection_hooks.remove(small)
    acknowledged = 0
    refusal = None
    while refusal is None and acknowledged < 1000:
        try:
            await journal.append(Event(kind="note", data={"i": acknowledged, "text": "x" * 4000}))
            acknowledged += 1
        except DiskFull as error:
            refusal = error
    assert str(tmp_path) in str(refusal)
    with pytest.raises(DiskFull):  # no hole: nothing is written after a lost event
        await journal.append(Event(kind="note"))
    await journal.close()
    assert [e.data["i"] for e in read_events(tmp_path)] == list(range(acknowledged))
    again = opened(tmp_path)
    await again.append(Event(kind="note", data={"i": acknowledged}))
    await again.close()
    assert len(list(read_events(tmp_path))) == acknowledged + 1


async def test_a_failure_of_any_kind_in_the_writer_reaches_those_who_wait(tmp_path):
    journal = opened(tmp_path)
    with pytest.raises(InfrastructureError, match="UnicodeEncodeError"):
        await asyncio.wait_for(journal.append(Event(kind="note", trajectory="\ud800")), 10)
    await journal.close()
    assert list(read_events(tmp_path)) == []


async def test_a_cancelled_append_does_not_hold_up_the_others(tmp_path):
    journal = opened(tmp_path)
    task = asyncio.create_task(journal.append(Event(kind="note")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.gather(*(journal.append(Event(kind="note")) for _ in range(5000)))
    await journal.close()
    assert len(list(read_events(tmp_path))) >= 5000


async def test_after_close_an_append_is_refused(tmp_path):
    journal = opened(tmp_path)
    await journal.close()
    with pytest.raises(RuntimeError, match="closed"):
        await journal.append(Event(kind="note"))


async def test_events_are_filtered_by_kind_trajectory_and_place(tmp_path):
    journal = opened(tmp_path)
    for i in range(6):
        await journal.append(Event(kind=f"k{i % 2}", trajectory=f"t{i % 3}", data={"i": i}))
    assert [e.data["i"] for e in read_events(tmp_path, kinds=["k1"])] == [1, 3, 5]
    assert [e.data["i"] for e in read_events(tmp_path, kinds=["k1"], trajectory="t0")] == [3]
    assert [e.data["i"] for e in read_events(tmp_path, after=4)] == [4, 5]
    await journal.close()


async def test_the_journal_cannot_be_rewritten(tmp_path):
    journal = opened(tmp_path)
    await journal.append(Event(kind="note"))
    await journal.close()
    connection = apsw.Connection(str(tmp_path / FILE_NAME))
    for statement in ("UPDATE events SET kind = 'x'", "DELETE FROM events"):
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            connection.execute(statement)
    connection.close()


async def test_a_newer_schema_another_programs_file_and_no_file_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        list_trajectories(tmp_path)
    await opened(tmp_path).close()
    connection = apsw.Connection(str(tmp_path / FILE_NAME))
    connection.pragma("user_version", 99)
    with pytest.raises(UserError, match="schema 99"):
        opened(tmp_path)
    with pytest.raises(UserError, match="schema 99"):
        list(read_events(tmp_path))
    connection.pragma("application_id", 7)
    with pytest.raises(UserError, match="another program"):
        opened(tmp_path)
    connection.close()
    assert not is_live(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"not a database " * 1000)
    with pytest.raises(UserError, match="not a readable journal"):
        opened(tmp_path)


async def test_an_unknown_trajectory_is_a_user_error(tmp_path):
    await opened(tmp_path).close()
    with pytest.raises(UserError, match="no trajectory 'g1'"):
        load_trajectory(tmp_path, "g1")
