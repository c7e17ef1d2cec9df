"""The parts below the bwrap driver, each by itself: frames, layers, the janitor, cgroups, the seccomp filter."""

import asyncio
import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.errors import UserError
from longtail.sandboxes import cgroups, layers, seccomp
from longtail.sandboxes.inside import wire
from longtail.sandboxes.places import Places
from longtail.types import SandboxLimits


@given(st.lists(st.binary(max_size=50)))
def test_a_frame_gives_back_its_fields(fields: list[bytes]) -> None:
    frame = wire.pack(*fields)
    assert int.from_bytes(frame[: wire.HEADER], "little") == len(frame) - wire.HEADER
    assert wire.unpack(frame[wire.HEADER :]) == fields


@given(st.binary(max_size=60))
def test_any_bytes_are_a_frame_or_a_value_error(body: bytes) -> None:
    try:
        fields = wire.unpack(body)
    except ValueError:
        return
    assert wire.pack(*fields)[wire.HEADER :] == body


paths = st.lists(st.text("ab/.", min_size=1, max_size=6), max_size=3)


@given(paths, paths)
def test_layers_are_addressed_by_content_alone(first: list[str], second: list[str]) -> None:
    def address(names: list[str]) -> str | None:
        try:
            return layers.digest({name: name.encode() for name in names})
        except UserError:
            return None

    assert address(first) == address(list(reversed(first)))
    if None not in (address(first), address(second)):
        assert (address(first) == address(second)) == (set(first) == set(second))


def test_a_layer_holds_the_files_and_stays_while_it_is_used(tmp_path: Path) -> None:
    store = layers.Layers(tmp_path / "lower", None)
    files = {"a/b": b"1", "c": b"2"}
    name = layers.digest(files)
    assert not store.ready(name)
    store.write(name, files)
    store.write(name, files)  # another writer was faster
    store.hold(name)
    store.hold(name)
    assert store.ready(name)
    assert {p.relative_to(store.root / name).as_posix() for p in store.root.rglob("*") if p.is_file()} == set(files)
    assert store.release(name) == []
    assert store.release(name) == []
    assert store.ready(name)
    assert sorted(path.name for path in store.root.iterdir()) == [name]


def test_only_so_many_unused_layers_are_kept(tmp_path: Path) -> None:
    store = layers.Layers(tmp_path / "lower", None)
    dropped: list[Path] = []
    names = [layers.digest({"number": b"%d" % number}) for number in range(300)]
    for number, name in enumerate(names):
        store.write(name, {"number": b"%d" % number})
        store.hold(name)
        dropped += store.release(name)
    assert [name for name in names if store.ready(name)] == names[300 - 256 :]
    assert [(path / "number").read_text() for path in dropped] == [str(number) for number in range(300 - 256)]
    layers.delete(dropped)
    assert {path.name for path in store.root.iterdir()} == set(names[300 - 256 :])


def test_a_layer_that_is_written_again_while_it_is_deleted_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_KEPT", 0)
    store = layers.Layers(tmp_path / "lower", None)
    files = {"a": b"1"}
    name = layers.digest(files)
    store.write(name, files)
    store.hold(name)
    old = store.release(name)
    store.write(name, files)
    layers.delete(old)  # late: it runs in the background
    assert (store.root / name / "a").read_bytes() == b"1"


def test_the_janitor_removes_dead_drivers_and_leaves_living_ones(tmp_path: Path) -> None:
    living = layers.DriverDirectory(tmp_path)
    dead = tmp_path / "driver-dead"
    (dead / "lower/x").mkdir(parents=True)
    (dead / "lock").write_text(f"{tmp_path}/no-such-cgroup\n")
    assert layers.sweep(tmp_path) == [dead]
    assert not dead.exists()
    assert living.path.exists()
    living.close()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_for_the_life_of_the_driver(tmp_path: Path) -> None:
    living = layers.DriverDirectory(tmp_path)
    with (living.path / "lock").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    living.close()


def fake_proc(tmp_path: Path, cgroup: str, mounts: str) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text(mounts)
    return proc


def test_cgroups_of_version_1_are_found(tmp_path: Path) -> None:
    proc = fake_proc(
        tmp_path,
        "4:memory:/docker/x\n3:cpu,pids:/docker/x/y\n0::/\n",
        "30 20 0:1 /docker/x /cg/memory rw - cgroup cgroup rw,memory\n"
        "31 20 0:2 / /cg/pids rw - cgroup cgroup rw,cpu,pids\n"
        "32 20 0:3 / /cg/unified rw - cgroup2 cgroup2 rw\n33 20 0:4 / / rw - ext4 /dev/x rw\n",
    )
    assert cgroups.find_own(proc) == (1, (Path("/cg/memory"), Path("/cg/pids/docker/x/y")))


def test_cgroups_of_version_2_get_memory_and_process_limits(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    (root / "user").mkdir(parents=True)
    proc = fake_proc(tmp_path, "0::/user\n", f"32 20 0:3 / {root} rw - cgroup2 cgroup2 rw\n")
    made = cgroups.Cgroups("driver-x", proc)
    assert (made.version, made.reason, made.parents) == (2, "", (root / "user/driver-x",))
    assert (root / "user/cgroup.subtree_control").read_text() == "+memory +pids"
    (box,) = made.make(SandboxLimits(memory_mb=100, processes=7)).directories
    assert int((box / "memory.max").read_text()) == 132 << 20
    assert (box / "pids.max").read_text() == "11"
    (box / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert cgroups.Cgroup(directories=(box,)).oom_kills() == 2


def test_without_cgroups_the_reason_is_given(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, "0::/\n", "33 20 0:4 / / rw - ext4 /dev/x rw\n")
    made = cgroups.Cgroups("driver-x", proc)
    assert made.parents == ()
    assert "no memory and pids controllers" in made.reason


ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
MACHINES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}


def run_filter(code: bytes, number: int, arch: int, *arguments: int) -> int:
    """What the kernel would answer: a small interpreter of classic BPF."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x06:
                return value
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
                at += if_true if holds[operation] else if_false
            case _:
                raise AssertionError(f"operation {operation:#x}")


def refuse(number: int) -> int:
    return 0x0005_0000 | number


@pytest.mark.parametrize("unowned", [True, False], ids=["memory is counted", "memory is not counted"])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_its_list_and_nothing_else(machine: str, unowned: bool) -> None:
    code, arch = seccomp.compile_filter(machine, unowned_memory=unowned), MACHINES[machine]
    column = list(MACHINES).index(machine)
    refused = [*seccomp._REFUSED.values(), *(() if unowned else seccomp._UNOWNED.values())]
    listed = {numbers[column] for numbers in refused}
    by_argument = {pair[column] for pair in ((56, 220), (435, 435), (41, 198), (16, 29), (302, 261))}
    for number in set(range(501)) - by_argument:
        for argument in (0, 1, 2**64 - 1):
            expected = refuse(errno.EPERM) if number in listed else ALLOW
            assert run_filter(code, number, arch, argument, argument) == expected, number


@pytest.mark.parametrize(
    ("machine", "clone", "socket", "ioctl", "prlimit"),
    [("x86_64", 56, 41, 16, 302), ("aarch64", 220, 198, 29, 261)],
)
def test_the_filter_looks_at_arguments(machine: str, clone: int, socket: int, ioctl: int, prlimit: int) -> None:
    code, arch = seccomp.compile_filter(machine), MACHINES[machine]
    assert run_filter(code, clone, arch, 0x0120_0011) == ALLOW  # fork
    assert run_filter(code, clone, arch, 0x003D_0F00) == ALLOW  # a thread
    for flag in (0x0002_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000):
        assert run_filter(code, clone, arch, flag | 17) == refuse(errno.EPERM)
    assert run_filter(code, 435, arch) == refuse(errno.ENOSYS)
    assert [family for family in range(50) if run_filter(code, socket, arch, family) == ALLOW] == [1, 2, 10]
    assert run_filter(code, socket, arch, 16) == refuse(errno.EAFNOSUPPORT)
    assert run_filter(code, ioctl, arch, 0, 0x5412) == refuse(errno.EPERM)
    assert run_filter(code, ioctl, arch, 0, 0x5413) == ALLOW
    assert run_filter(code, prlimit, arch, 0) == ALLOW  # limits of its own
    assert run_filter(code, prlimit, arch, 4711) == refuse(errno.EPERM)
    assert run_filter(code, 0, arch ^ 1) == KILL
    if machine == "x86_64":
        assert run_filter(code, 0x4000_0000 | 165, arch) == refuse(errno.EPERM)


def test_a_machine_without_a_filter_has_an_empty_one() -> None:
    assert seccomp.compile_filter("riscv64") == b""


def test_the_filter_knows_this_machine_s_numbers() -> None:
    if os.uname().machine not in MACHINES:
        pytest.skip("no filter for this machine type")
    assert len(seccomp.compile_filter()) % 8 == 0
    assert len(seccomp.compile_filter()) // 8 < 4096


async def test_who_had_a_place_before_is_served_first() -> None:
    places = Places(1)
    served: list[str] = []

    async def episode(name: str) -> None:
        for part in ("work", "grade"):
            holder = await places.take()
            served.append(f"{name} {part}")
            await asyncio.sleep(0)
            places.give(holder)

    await asyncio.wait_for(asyncio.gather(*(episode(name) for name in "abc")), 5)
    assert served == ["a work", "b work", "a grade", "b grade", "c work", "c grade"]


@pytest.mark.parametrize("given", [False, True], ids=["while it waits", "when it was just served"])
async def test_a_cancelled_wait_takes_no_place(given: bool) -> None:
    places = Places(1)
    holder = await places.take()
    waiting = asyncio.create_task(places.take())
    await asyncio.sleep(0)
    if given:
        places.give(holder)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    if not given:
        places.give(holder)
    await asyncio.wait_for(places.take(), 5)
    late = asyncio.create_task(places.take())
    await asyncio.sleep(0)
    assert not late.done()
    places.give(holder)
    await late


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
async def test_tasks_that_hold_a_place_and_ask_for_a_second_never_wait_for_each_other(
    count: int, episodes: list[tuple[int, int]]
) -> None:
    """Each episode: so many turns of the loop with its first place, so many with both."""
    places, first, all_of_them = Places(count), 0, 0

    async def episode(alone: int, both: int) -> None:
        nonlocal first, all_of_them
        own = await places.take()
        first, all_of_them = first + 1, all_of_them + 1
        assert first <= count
        for _ in range(alone):
            await asyncio.sleep(0)
        second = await places.take()
        all_of_them += 1
        assert all_of_them <= count + max(1, count // 8)
        for _ in range(both):
            await asyncio.sleep(0)
        all_of_them -= 1
        places.give(second)
        await asyncio.sleep(0)
        first, all_of_them = first - 1, all_of_them - 1
        places.give(own)

    await asyncio.wait_for(asyncio.gather(*(episode(*turns) for turns in episodes)), 5)
    assert (first, all_of_them) == (0, 0)
