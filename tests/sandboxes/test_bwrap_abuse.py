"""What hostile code tries in a bwrap sandbox. Numbers in names keep kinds of attack together."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from conftest import require_bwrap

import longtail_repair
from longtail.errors import SandboxLost
from longtail.sandboxes import bwrap as driver
from longtail.sandboxes.bwrap import BwrapSandbox, BwrapSandboxes
from longtail.sandboxes.cgroups import Cgroups
from longtail.types import ExecResult, SandboxLimits, SandboxSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALIVE = "import os; print(len([name for name in os.listdir('/proc') if name.isdigit()]))"


async def fresh(bwrap: BwrapSandboxes, **limits: int) -> BwrapSandbox:
    return await bwrap.create(SandboxSpec(files={"kept.txt": b"kept"}, limits=SandboxLimits(**limits)))


async def python(sandbox: BwrapSandbox, program: str, seconds: float = 20) -> ExecResult:
    return await sandbox.exec(["python", "-c", program], seconds=seconds)


async def count_alive(sandbox: BwrapSandbox) -> int:
    """Processes in the sandbox beside pid 1 and the agent."""
    return int((await python(sandbox, ALIVE)).stdout) - 3


BOMBS = {
    "python": ["python", "-c", "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"],
    "bash": ["bash", "-c", "bomb() { bomb | bomb & }; while true; do bomb; done"],
}


@pytest.mark.parametrize("argv", BOMBS.values(), ids=list(BOMBS))
async def test_01_a_fork_bomb_stops_below_the_limit(bwrap: BwrapSandboxes, argv: list[str]) -> None:
    sandbox = await fresh(bwrap, processes=24)
    result = await sandbox.exec(argv, seconds=0.7)
    assert result.timed_out
    assert await count_alive(sandbox) == 0
    assert await sandbox.read("kept.txt") == b"kept"
    await sandbox.close()


async def test_01_the_limit_of_processes_is_exact(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap, processes=10)
    program = "import os, time\nn = 1\ntry:\n  while True:\n    os.fork() or time.sleep(60)\n    n += 1\n"
    result = await python(sandbox, program + "except OSError: print(n)")
    assert result.stdout == b"10\n"
    assert await count_alive(sandbox) == 0
    await sandbox.close()


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if sys.argv[1] == "quiet":
            for fd in (0, 1, 2): os.close(fd)
        time.sleep(60)
    os._exit(0)
os.wait()
print("started", flush=True)
"""


@pytest.mark.parametrize("kind", ["quiet", "holding"])
async def test_02_a_daemon_does_not_delay_or_survive_its_exec(bwrap: BwrapSandboxes, kind: str) -> None:
    sandbox = await fresh(bwrap)
    started = time.monotonic()
    result = await sandbox.exec(["python", "-c", DAEMON, kind], seconds=30)
    assert time.monotonic() - started < 2
    assert (result.exit_code, result.stdout) == (0, b"started\n")
    assert await count_alive(sandbox) == 0
    await sandbox.close()


async def test_03_signals_that_are_ignored_do_not_help(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    started = time.monotonic()
    result = await sandbox.exec(
        ["sh", "-c", "trap '' TERM INT HUP; echo on; while true; do sleep 1; done"], seconds=0.4
    )
    assert time.monotonic() - started < 2
    assert (result.timed_out, result.exit_code, result.stdout) == (True, None, b"on\n")
    assert await count_alive(sandbox) == 0
    await sandbox.close()


async def test_04_output_without_end_is_counted_and_thrown_away(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    result = await sandbox.exec(["cat", "/dev/zero"], seconds=0.7)
    assert result.timed_out
    assert len(result.stdout) == 64 << 10
    assert result.dropped_bytes > 10 << 20
    await sandbox.close()


async def test_05_a_memory_hog_is_killed_and_the_sandbox_survives(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap, memory_mb=128)
    result = await python(sandbox, "x = []\nwhile True: x.append(bytearray(4 << 20))")
    if bwrap.enforcement()["memory"].startswith("cgroup"):
        assert (result.exit_code, result.oom_killed, result.timed_out) == (None, True, False)
    else:
        assert result.oom_killed or b"MemoryError" in result.stderr
    result = await python(sandbox, "print(len(bytearray(64 << 20)))")
    assert (result.stdout, result.oom_killed) == (b"67108864\n", False)
    await sandbox.close()


HOGS = """
import os, time
read, write = os.pipe()
children, ready, dead = set(), set(), set()
for _ in range(8):
    if (pid := os.fork()) == 0:
        memory = bytearray(60 << 20)
        os.write(write, os.getpid().to_bytes(4, "big"))
        time.sleep(60)
    children.add(pid)
os.set_blocking(read, False)
while ready | dead != children:
    time.sleep(0.02)
    if pid := os.waitpid(-1, os.WNOHANG)[0]: dead.add(pid)
    try: ready.add(int.from_bytes(os.read(read, 4), "big"))
    except BlockingIOError: pass
print(len(children - dead))
"""


async def test_06_children_together_are_held_to_the_limit(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap, memory_mb=200)
    result = await python(sandbox, HOGS)
    if bwrap.enforcement()["memory"].startswith("cgroup"):
        assert 0 < int(result.stdout) < 4
    else:
        assert result.oom_killed  # all of them together, by sampling
    assert (await sandbox.exec(["true"])).exit_code == 0
    await sandbox.close()


# Memory that no process owns, or that one hides: it grows by 8 MB at a time until something stops it.
HOARDS = {
    "memfd": """
import os
block = bytes(8 << 20)
while True:
    os.write(os.memfd_create("hoard"), block)
""",
    "shared memory of System V": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
while True:
    segment = libc.shmget(0, ctypes.c_size_t(8 << 20), 0o1600)
    if segment < 0: raise OSError(ctypes.get_errno(), "shmget")
    place = libc.shmat(segment, None, 0)
    ctypes.memset(place, 1, 8 << 20)
    libc.shmdt(ctypes.c_void_p(place))
""",
    "a process that cannot be looked at": """
import ctypes, mmap, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable
kept = []
while True:
    kept.append(mmap.mmap(-1, 8 << 20))
    kept[-1].write(bytes(8 << 20))
    time.sleep(0.01)
""",
}


@pytest_asyncio.fixture(params=["as it is here", "without a cgroup"])
async def counted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BwrapSandboxes]:
    require_bwrap()
    if request.param == "without a cgroup":
        monkeypatch.setattr(driver, "Cgroups", lambda name: Cgroups(name, tmp_path / "no-proc"))
    made = BwrapSandboxes(tmp_path / "work", 1)
    yield made
    await made.close()


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.parametrize("hoard", HOARDS)
async def test_06_memory_of_no_process_is_held_to_the_limit_too(counted: BwrapSandboxes, hoard: str) -> None:
    sandbox = await fresh(counted, memory_mb=128)
    result = await python(sandbox, HOARDS[hoard], seconds=60)
    if counted.enforcement()["memory"].startswith("cgroup") or hoard == "a process that cannot be looked at":
        assert (result.exit_code, result.oom_killed, result.timed_out) == (None, True, False)
    else:
        assert b"PermissionError" in result.stderr
    if hoard != "shared memory of System V":  # which stays for the life of the sandbox
        assert (await python(sandbox, "print(len(bytearray(64 << 20)))")).stdout == b"67108864\n"
    await sandbox.close()


@pytest.mark.asyncio(loop_scope="function")
async def test_06_shared_memory_and_locks_of_files_work_all_the_same(counted: BwrapSandboxes) -> None:
    sandbox = await fresh(counted)
    program = """
import multiprocessing
from multiprocessing import shared_memory
held = shared_memory.SharedMemory(create=True, size=4096)
lock = multiprocessing.get_context("fork").Lock()
with lock: held.buf[0] = 7
print(held.buf[0])
held.close(); held.unlink()
"""
    assert (await python(sandbox, program)).stdout == b"7\n"
    await sandbox.close()


FILL = """
import errno, sys
size = 0
try:
    with open(sys.argv[1], "wb", buffering=0) as file:
        while True:
            size += file.write(b"x" * 65536)
except OSError as error:
    print(errno.errorcode[error.errno], size)
"""


@pytest.mark.parametrize("place", ["/tmp/x", "/dev/shm/x"])
async def test_07_temporary_places_are_capped(bwrap: BwrapSandboxes, place: str) -> None:
    sandbox = await fresh(bwrap, workspace_mb=8)
    result = await sandbox.exec(["python", "-c", FILL, place])
    assert result.stdout.decode() == f"ENOSPC {8 << 20}\n"
    await sandbox.close()


@pytest.mark.parametrize("place", ["/x", "/usr/x", "/etc/x", "/dev/x", "/opt/x", "/opt/python/x", "/opt/longtail/x"])
async def test_07_all_other_places_are_read_only(bwrap: BwrapSandboxes, place: str) -> None:
    sandbox = await fresh(bwrap)
    result = await sandbox.exec(["python", "-c", FILL, place])
    assert result.stdout.decode().split()[0] in ("EROFS", "EACCES", "ENOENT")
    await sandbox.close()


async def test_08_the_workspace_is_full_exactly_at_its_cap(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap, workspace_mb=8)
    result = await sandbox.exec(["python", "-c", FILL, "big"])
    assert result.stdout.decode() == f"ENOSPC {8 << 20}\n"
    with pytest.raises(OSError, match="No space left"):
        await sandbox.write("more", b"x" * 5000)
    await sandbox.exec(["rm", "big"])
    await sandbox.write("more", b"x" * (7 << 20))
    with pytest.raises(OSError, match="No space left"):
        await sandbox.write("huge", b"x" * (9 << 20))
    await sandbox.close()


async def test_08_a_snapshot_stays_within_bounds(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap, workspace_mb=8)
    await sandbox.exec(["truncate", "-s", "100G", "sparse"])
    with pytest.raises(OSError, match="too large"):
        await sandbox.snapshot()
    assert (await sandbox.exec(["true"])).exit_code == 0
    await sandbox.close()


async def test_09_links_show_the_sandbox_s_own_view(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    await sandbox.exec(["sh", "-c", "ln -s /etc/passwd users; ln -s / root; ln -s /proc/1/root first"])
    users = (await sandbox.exec(["cat", "users"])).stdout.decode().splitlines()
    assert [line.split(":")[0] for line in users] == ["root", "user"]
    own = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "proc", "dev", "tmp", "workspace"}
    assert set((await sandbox.exec(["ls", "-A", "root/"])).stdout.decode().split()) <= own
    first = await sandbox.exec(["ls", "-A", "first/"])
    assert (first.exit_code, first.stdout) != (0, b"")
    assert set(first.stdout.decode().split()) <= own
    await sandbox.close()


HOST = {"home": Path.home(), "repository": Path(__file__).parents[2], "environment": Path(sys.prefix)}
LOOK = "import os, sys\nprint(os.listdir(sys.argv[1]) if os.path.lexists(sys.argv[1]) else 'absent')"


@pytest.mark.parametrize("place", [path for path in HOST.values() if path != Path("/")], ids=str)
async def test_09_places_of_the_host_are_absent_or_empty(bwrap: BwrapSandboxes, place: Path) -> None:
    sandbox = await fresh(bwrap)
    assert (await sandbox.exec(["python", "-c", LOOK, str(place)])).stdout in (b"absent\n", b"[]\n")
    assert (await sandbox.exec(["python", "-c", LOOK, "/workspace"])).stdout == b"['kept.txt']\n"
    await sandbox.close()


async def test_09_a_file_of_the_host_cannot_be_opened(bwrap: BwrapSandboxes, tmp_path: Path) -> None:
    files = [tmp_path / "secret", Path(__file__), Path(longtail_repair.__file__)]
    files[0].write_text("secret")
    sandbox = await fresh(bwrap)
    for path in files:
        assert path.read_bytes()
        result = await sandbox.exec(["cat", str(path)])
        assert (result.exit_code, result.stdout) == (1, b"")
    await sandbox.close()


SYSCALLS = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
for call in sys.argv[1:]:
    name, *arguments = call.split(",")
    numbers = [ctypes.c_long(int(text, 0)) for text in arguments]
    if name.isdigit():
        result = libc.syscall(ctypes.c_long(int(name)), *numbers)
    else:
        result = getattr(libc, name)(*numbers)
    print(call, "allowed" if result >= 0 else errno.errorcode[ctypes.get_errno()])
"""


async def test_11_dangerous_system_calls_are_refused(bwrap: BwrapSandboxes) -> None:
    if bwrap.enforcement()["system calls"] != "seccomp":
        pytest.skip("no filter for this machine type")
    sandbox = await fresh(bwrap)
    # io_uring_setup is 425 and mount_setattr 442 on every machine
    calls = [
        "mount,0,0,0,0,0",
        "umount2,0,0",
        "chroot,0",
        "ptrace,0,0,0,0",
        "unshare,0x10000000",
        "setns,0,0",
        "425,1,0",
    ]
    calls += ["442,0,0,0,0,0", "process_vm_readv,1,0,0,0,0,0", "acct,0", "swapoff,0"]
    result = await sandbox.exec(["python", "-c", SYSCALLS, *calls])
    assert result.stdout.decode().splitlines() == [f"{call} EPERM" for call in calls]
    for command in (["unshare", "-U", "true"], ["unshare", "-n", "true"], ["mknod", "disk", "b", "8", "0"]):
        assert (await sandbox.exec(command)).exit_code != 0
    await sandbox.close()


async def test_12_odd_sockets_are_refused(bwrap: BwrapSandboxes) -> None:
    if bwrap.enforcement()["system calls"] != "seccomp":
        pytest.skip("no filter for this machine type")
    sandbox = await fresh(bwrap)
    calls = ["socket,16,3,0", "socket,17,3,0", "socket,38,5,0", "socket,40,1,0"]  # netlink, packet, AF_ALG, vsock
    result = await sandbox.exec(["python", "-c", SYSCALLS, *calls, "socket,2,1,0", "socket,1,1,0"])
    expected = [*(f"{call} EAFNOSUPPORT" for call in calls), "socket,2,1,0 allowed", "socket,1,1,0 allowed"]
    assert result.stdout.decode().splitlines() == expected
    await sandbox.close()


async def test_13_processes_hold_no_privilege(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    for argv in (["cat", "/proc/self/status"], ["python", "-c", "print(open('/proc/self/status').read())"]):
        status = dict(
            line.split(":\t") for line in (await sandbox.exec(argv)).stdout.decode().split("\n") if ":\t" in line
        )
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == "1"
        assert set(status["Uid"].split()) == {"1000"}
    await sandbox.close()


async def test_14_the_host_can_be_neither_changed_nor_seen(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    for place in ("/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"):
        assert (await sandbox.exec(["sh", "-c", f"echo 1 > {place}"])).exit_code != 0
    assert (await sandbox.exec(["hostname"])).stdout == b"sandbox\n"
    assert os.uname().nodename != "sandbox"
    assert await count_alive(sandbox) == 0  # no process of the host is seen
    await sandbox.close()


PEEK = """
import os
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
    if pid == os.getpid(): continue
    for name in ("mem", "fd", "environ", "maps", "root"):
        path = f"/proc/{pid}/{name}"
        try:
            os.listdir(path) if name in ("fd", "root") else open(path, "r+b" if name == "mem" else "rb").read(1)
            print("open", path)
        except PermissionError: print("refused")
"""


async def test_15_the_agent_and_pid_1_cannot_be_read_or_written(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    for cold in ("0", "1"):
        result = await sandbox.exec(["python", "-c", PEEK], env={"LONGTAIL_COLD_PYTHON": cold})
        assert result.stdout == b"refused\n" * 10
    await sandbox.close()


async def test_15_a_program_holds_no_descriptor_of_the_agent(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    program = "import os\nfor fd in range(30):\n  try: print(os.readlink(f'/proc/self/fd/{fd}').partition(':')[0])\n"
    program += "  except FileNotFoundError: pass\n"
    for cold in ("0", "1"):
        result = await sandbox.exec(["python", "-c", program], env={"LONGTAIL_COLD_PYTHON": cold})
        assert result.stdout == b"/dev/null\npipe\npipe\n"
    await sandbox.close()


async def test_16_the_agent_s_limits_cannot_be_lowered(bwrap: BwrapSandboxes) -> None:
    """It would die at a later call, when nothing shows whose doing it was."""
    sandbox = await fresh(bwrap)
    program = """
import os, resource
refused = 0
others = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) != os.getpid()]
for pid in others:
    try: resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    except PermissionError: refused += 1
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
print(len(others), refused)
"""
    others, refused = (await python(sandbox, program)).stdout.split()
    assert others == refused != b"0"
    assert await sandbox.read("kept.txt") == b"kept"
    await sandbox.close()


@pytest.mark.parametrize(
    "argv", [["bash", "-c", "kill -9 -1"], ["python", "-c", "import os; os.kill(-1, 9); print(1)"]]
)
async def test_16_killing_everything_loses_the_sandbox(bwrap: BwrapSandboxes, argv: list[str]) -> None:
    sandbox = await fresh(bwrap)
    with pytest.raises(SandboxLost):
        await sandbox.exec(argv)
    with pytest.raises(SandboxLost):
        await sandbox.read("kept.txt")
    await sandbox.close()


async def test_17_no_network_is_reachable(bwrap: BwrapSandboxes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0longtail-test-abstract")
        abstract.listen()
        program = f"""
import socket
def attempt(name, family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(3); s.connect(address)
        print(name, "reached")
    except OSError as error: print(name, "refused")
attempt("loopback of the host", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {server.getsockname()[1]}))
attempt("abstract socket", socket.AF_UNIX, socket.SOCK_STREAM, "\\0longtail-test-abstract")
attempt("direct", socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80))
attempt("udp", socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53))
try: socket.getaddrinfo("example.com", 80); print("name reached")
except OSError: print("name refused")
print(*[line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line])
"""
        sandbox = await fresh(bwrap)
        lines = (await python(sandbox, program)).stdout.decode().splitlines()
        assert lines[-1] == "lo"
        assert [line.rsplit(" ", 1)[1] for line in lines[:-1]] == ["refused"] * 5
        await sandbox.close()


async def test_19_deep_and_shut_directories_go_on_close(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    program = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\n"
    assert (await python(sandbox, program)).exit_code == 0
    assert (await sandbox.exec(["sh", "-c", "mkdir shut; touch shut/x; chmod 000 shut"])).exit_code == 0
    await sandbox.close()


async def test_exec_leaves_no_zombies_or_descriptors_over_many_calls(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    for _ in range(30):
        await sandbox.exec(["sh", "-c", "sleep 60 & (sleep 60 &) ; exit 0"])
    assert await count_alive(sandbox) == 0
    probe = "import os; print(os.open('/dev/null', os.O_RDONLY))"
    assert (await python(sandbox, probe)).stdout == b"3\n"
    await sandbox.close()


async def test_a_cancelled_call_ends_the_sandbox(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    call = asyncio.create_task(sandbox.exec(["sleep", "60"], seconds=60))
    await asyncio.sleep(0.1)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    with pytest.raises(SandboxLost, match="cancelled"):
        await sandbox.exec(["true"])
    await sandbox.close()


async def test_closing_ends_a_running_exec_and_all_its_processes(bwrap: BwrapSandboxes) -> None:
    sandbox = await fresh(bwrap)
    call = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 61.25 & sleep 61.25"], seconds=60))
    await asyncio.to_thread(_wait_for_two, b"61.25")
    await sandbox.close()
    assert not any(_runs(pid, b"61.25") for pid in _pids())
    with pytest.raises(SandboxLost):
        await call


def _wait_for_two(argument: bytes) -> None:
    deadline = time.monotonic() + 10
    while sum(_runs(pid, argument) for pid in _pids()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _pids() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit()]


def _runs(pid: Path, argument: bytes) -> bool:
    try:
        return argument in (pid / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


async def test_create_waits_for_a_place(tmp_path: Path, bwrap: BwrapSandboxes) -> None:
    few = BwrapSandboxes(tmp_path, 1)
    first = await few.create(SandboxSpec())
    second = asyncio.create_task(few.create(SandboxSpec()))
    await asyncio.sleep(0.1)
    assert not second.done()
    await first.close()
    await (await second).close()
    await few.close()
