"""What every isolation level keeps of the Sandbox port."""

import asyncio
import time
from pathlib import Path

import pytest

from longtail.errors import SandboxLost, UserError
from longtail.ports import Sandbox, Sandboxes
from longtail.types import SandboxLimits, SandboxSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILES = {"main.py": b"print('main')\n", "pkg/__init__.py": b"", "pkg/data.txt": b"data"}


async def fresh(sandboxes: Sandboxes, **limits: float) -> Sandbox:
    return await sandboxes.create(SandboxSpec(files=FILES, limits=SandboxLimits(**limits)))  # type: ignore[arg-type]


async def test_exec_returns_what_the_command_did(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    result = await sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.timed_out, result.oom_killed, result.dropped_bytes) == (False, False, 0)
    assert 0 < result.seconds < 10
    await sandbox.close()


async def test_exec_runs_in_the_workspace_with_its_files(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    result = await sandbox.exec(["python", "main.py"])
    assert (result.exit_code, result.stdout) == (0, b"main\n")
    result = await sandbox.exec(["cat", "pkg/data.txt"])
    assert result.stdout == b"data"
    await sandbox.close()


async def test_a_command_that_cannot_start_exits_like_in_a_shell(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    assert (await sandbox.exec(["no-such-command"])).exit_code == 127
    assert (await sandbox.exec(["./pkg"])).exit_code == 126
    await sandbox.close()


async def test_a_signal_gives_a_negative_exit_code(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    assert (await sandbox.exec(["sh", "-c", "kill -SEGV $$"])).exit_code == -11
    await sandbox.close()


async def test_stdin_arrives_whole_and_ends(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    text = bytes(range(256)) * 1000
    assert (await sandbox.exec(["wc", "-c"], stdin=text)).stdout.strip() == b"256000"
    assert (await sandbox.exec(["cat"])).stdout == b""
    assert (await sandbox.exec(["head", "-c", "3"], stdin=text)).stdout == text[:3]  # it need not be read
    assert (await sandbox.exec(["sleep", "60"], stdin=text, seconds=0.2)).timed_out
    program = "import sys; print(len(sys.stdin.buffer.read()))"
    assert (await sandbox.exec(["python", "-c", program], stdin=text)).stdout == b"256000\n"
    await sandbox.close()


async def test_env_is_added_and_the_host_environment_is_not_inherited(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    sandbox = await fresh(sandboxes)
    for argv in (
        ["env"],
        ["python", "-c", "import os; print(*(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')"],
    ):
        lines = (await sandbox.exec(argv, env={"ADDED": "a=b c"})).stdout.decode().splitlines()
        assert "ADDED=a=b c" in lines
        assert "PYTHONHASHSEED=0" in lines
        assert not any(line.startswith("SECRET") for line in lines)
    assert b"ADDED" not in (await sandbox.exec(["env"])).stdout
    await sandbox.close()


@pytest.mark.parametrize("argv", [[], [""], ["echo", "a\0b"]])
async def test_a_command_that_no_process_can_have_is_a_value_error(sandboxes: Sandboxes, argv: list[str]) -> None:
    sandbox = await fresh(sandboxes)
    with pytest.raises(ValueError, match=r"argv|NUL"):
        await sandbox.exec(argv)
    await sandbox.close()


async def test_the_deadline_fires_and_keeps_partial_output(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    started = time.monotonic()
    for argv in (
        ["sh", "-c", "echo begun; sleep 60"],
        ["python", "-uc", "print('begun'); import time; time.sleep(60)"],
    ):
        result = await sandbox.exec(argv, seconds=0.4)
        assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"begun\n")
    assert time.monotonic() - started < 4
    assert (await sandbox.exec(["true"])).exit_code == 0
    await sandbox.close()


async def test_the_default_deadline_is_that_of_the_spec(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes, seconds=0.3)
    assert (await sandbox.exec(["sleep", "60"])).timed_out
    await sandbox.close()


async def test_output_is_cut_at_the_limit_and_the_rest_is_counted(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes, output_kb=4)
    result = await sandbox.exec(["sh", "-c", "head -c 1000000 /dev/zero; head -c 5000 /dev/zero >&2"], seconds=20)
    assert (len(result.stdout), len(result.stderr)) == (4096, 4096)
    assert result.dropped_bytes == 1_000_000 + 5000 - 2 * 4096
    await sandbox.close()


async def test_files_are_written_read_and_listed(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    await sandbox.write("new/deep/file.bin", bytes(range(256)))
    await sandbox.write("main.py", b"changed")
    assert await sandbox.read("new/deep/file.bin") == bytes(range(256))
    assert await sandbox.read("./pkg/../main.py") == b"changed"
    assert await sandbox.read("main.py", limit=3) == b"cha"
    assert await sandbox.list() == ["main.py", "new/deep/file.bin", "pkg/__init__.py", "pkg/data.txt"]
    assert await sandbox.list("pkg") == ["pkg/__init__.py", "pkg/data.txt"]
    assert (await sandbox.exec(["cat", "main.py"])).stdout == b"changed"
    await sandbox.close()


async def test_file_errors_are_the_usual_ones(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    with pytest.raises(FileNotFoundError):
        await sandbox.read("missing")
    with pytest.raises(FileNotFoundError):
        await sandbox.list("missing")
    with pytest.raises(FileNotFoundError):
        await sandbox.read("nul\0")
    with pytest.raises(IsADirectoryError):
        await sandbox.read("pkg")
    with pytest.raises(IsADirectoryError):
        await sandbox.write("pkg", b"")
    with pytest.raises(NotADirectoryError):
        await sandbox.write("main.py/x", b"")
    assert (await sandbox.exec(["true"])).exit_code == 0
    await sandbox.close()


@pytest.mark.parametrize("path", ["..", "../x", "OUT", "OUT/x", "pkg/../../x", "out", "out/x", "rootOUT/x", "proc"])
async def test_a_path_that_leaves_the_workspace_is_refused(sandboxes: Sandboxes, path: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"kept")
    sandbox = await fresh(sandboxes)
    for name, target in (("out", str(tmp_path)), ("root", "/"), ("proc", "/proc/1/root")):
        await sandbox.exec(["ln", "-s", target, name])
    path = path.replace("OUT", str(tmp_path))
    for attempt in (sandbox.read(path), sandbox.write(path, b"x"), sandbox.list(path)):
        with pytest.raises(PermissionError):
            await attempt
    assert (tmp_path / "x").read_bytes() == b"kept"
    await sandbox.close()


async def test_closing_leaves_alone_what_links_lead_to(sandboxes: Sandboxes, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    (outside / "file").write_bytes(b"kept")
    outside.chmod(0o751)
    sandbox = await fresh(sandboxes)
    await sandbox.exec(["ln", "-s", str(outside), "link"])
    await sandbox.exec(["ln", "-s", str(outside / "file"), "file"])
    assert await sandbox.list() == sorted(FILES)
    assert dict((await sandbox.snapshot()).files) == FILES
    await sandbox.close()
    assert outside.stat().st_mode & 0o777 == 0o751
    assert sorted(path.name for path in outside.iterdir()) == ["below", "file"]
    assert (outside / "file").read_bytes() == b"kept"


async def test_a_fifo_or_device_is_refused_at_once(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    await sandbox.exec(["mkfifo", "fifo"])
    started = time.monotonic()
    for attempt in (sandbox.read("fifo"), sandbox.write("fifo", b"x")):
        with pytest.raises(PermissionError):
            await attempt
    assert time.monotonic() - started < 2
    assert "fifo" not in await sandbox.list()
    await sandbox.close()


async def test_a_snapshot_starts_an_equal_sandbox(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    await sandbox.exec(
        ["sh", "-c", "echo more >> pkg/data.txt; rm main.py; ln -s pkg link; mkdir shut; echo x >shut/f"]
    )
    await sandbox.exec(["chmod", "000", "shut/f", "shut"])
    spec = await sandbox.snapshot()
    await sandbox.close()
    assert dict(spec.files) == {"pkg/__init__.py": b"", "pkg/data.txt": b"datamore\n", "shut/f": b"x\n"}
    again = await sandboxes.create(spec)
    assert dict((await again.snapshot()).files) == dict(spec.files)
    await again.close()


async def test_sandboxes_of_one_spec_do_not_see_each_other(sandboxes: Sandboxes) -> None:
    first, second = await asyncio.gather(fresh(sandboxes), fresh(sandboxes))
    await first.write("main.py", b"first")
    assert await second.read("main.py") == FILES["main.py"]
    await first.close()
    third = await fresh(sandboxes)
    assert await third.read("main.py") == FILES["main.py"]
    await asyncio.gather(second.close(), third.close())


@pytest.mark.parametrize("files", [{"../x": b""}, {"/x": b""}, {"": b""}, {"a//b": b""}, {"a": b"", "a/b": b""}])
async def test_a_spec_with_impossible_files_is_a_user_error(sandboxes: Sandboxes, files: dict[str, bytes]) -> None:
    with pytest.raises(UserError, match="sandbox file"):
        await sandboxes.create(SandboxSpec(files=files))


async def test_a_closed_sandbox_is_lost_and_can_be_closed_again(sandboxes: Sandboxes) -> None:
    sandbox = await fresh(sandboxes)
    await sandbox.close()
    await sandbox.close()
    for attempt in (sandbox.exec(["true"]), sandbox.read("main.py"), sandbox.list(), sandbox.snapshot()):
        with pytest.raises(SandboxLost):
            await attempt


async def test_the_event_loop_is_never_blocked(sandboxes: Sandboxes) -> None:
    late: list[float] = []

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            late.append(time.monotonic() - before - 0.01)

    ticker = asyncio.create_task(tick())
    sandbox = await fresh(sandboxes)
    await sandbox.exec(["sleep", "0.5"])
    await sandbox.close()
    ticker.cancel()
    assert len(late) > 10
    assert max(late) < 0.4  # the command takes longer


async def test_descriptors_do_not_leak(sandboxes: Sandboxes) -> None:
    async def use() -> None:
        sandbox = await fresh(sandboxes)
        await sandbox.exec(["true"])
        await sandbox.close()

    await use()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await use()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
