"""Roles in their own process: calls, errors, death, and that none outlives its driver."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longtail.cluster.processes import ProcessCluster
from longtail.errors import InfrastructureError, UserError


class Echo:
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting

    async def say(self, name: str, *, after: float = 0.0) -> str:
        await asyncio.sleep(after)
        return f"{self.greeting} {name}"

    async def refuse(self) -> None:
        raise UserError("model 'x': no such directory")

    async def break_down(self) -> None:
        raise KeyError("weights")

    async def die(self) -> None:
        print("out of memory", flush=True)
        os._exit(3)

    async def pid(self) -> int:
        return os.getpid()

    async def close(self) -> None: ...


def make_echo(greeting: str) -> Echo:
    if not greeting:
        raise UserError("a greeting is needed")
    return Echo(greeting)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    cluster = ProcessCluster(tmp_path)
    yield cluster
    await cluster.close()


FACTORY = "test_processes:make_echo"


async def test_a_role_answers_in_another_process_and_out_of_order(cluster: ProcessCluster):
    role = await cluster.start("echo", FACTORY, greeting="hello")
    order: list[str] = []

    async def ask(name: str, after: float) -> None:
        order.append(await role.say(name, after=after))

    await asyncio.gather(ask("slow", 0.3), ask("quick", 0.0))
    assert order == ["hello quick", "hello slow"]
    assert await role.pid() != os.getpid()


async def test_errors_cross_with_their_class_and_foreign_ones_become_infrastructure(cluster: ProcessCluster):
    role = await cluster.start("echo", FACTORY, greeting="hello")
    with pytest.raises(UserError, match="no such directory"):
        await role.refuse()
    with pytest.raises(InfrastructureError, match="KeyError: 'weights'"):
        await role.break_down()
    assert await role.say("again") == "hello again"


async def test_a_factory_that_refuses_its_input_says_so_at_the_start(cluster: ProcessCluster):
    with pytest.raises(UserError, match="a greeting is needed"):
        await cluster.start("echo", FACTORY, greeting="")


async def test_a_dead_role_fails_its_calls_with_its_status_and_last_words(cluster: ProcessCluster):
    role = await cluster.start("echo", FACTORY, greeting="hello")
    waiting = asyncio.create_task(role.say("nobody", after=60))
    with pytest.raises(InfrastructureError, match=r"ended with status 3.*out of memory"):
        await role.die()
    with pytest.raises(InfrastructureError, match="the echo process"):
        await waiting
    with pytest.raises(InfrastructureError, match="the echo process"):
        await role.say("later")


async def test_a_killed_role_is_named_with_its_signal(cluster: ProcessCluster):
    role = await cluster.start("echo", FACTORY, greeting="hello")
    pid = await role.pid()
    waiting = asyncio.create_task(role.say("nobody", after=60))
    await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="killed by signal 9"):
        await waiting


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_process_group_leaves_roles_to_their_driver(cluster: ProcessCluster, number: int):
    role = await cluster.start("echo", FACTORY, greeting="hello")
    os.kill(await role.pid(), number)
    assert await role.say("you", after=0.05) == "hello you"


DRIVER = """
import asyncio, sys
from pathlib import Path
from longtail.cluster.processes import ProcessCluster

async def main():
    role = await ProcessCluster(Path(sys.argv[1])).start("echo", "test_processes:make_echo", greeting="hello")
    print(await role.pid(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_role_ends_when_its_driver_is_killed(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, env=environment)
    assert driver.stdout is not None
    role = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{role}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{role}").exists()
