"""Builds the launcher's root: the few host paths that sandboxes see, read-only, at neutral places. Then becomes it.

Runs as its own process, once per driver, in private mount and pid namespaces: nothing it mounts is seen by the host,
and all of it goes away with the launcher. A root driver keeps root here, and its sandboxes get a dedicated uid; any
other user gets a user namespace.

    /sandbox   what a sandbox sees as / (usr, etc, opt/python, opt/bin, opt/longtail and empty places for mounts)
    /usr, /etc, /opt, ...   the same, so that the launcher's interpreter finds itself where sandboxes have it
    /layers    the read-only lower layers of workspaces
    /box       where each sandbox's own tmpfs is mounted, in a mount namespace of its own
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from . import linux

_CHANNEL = 3  # the socket to the driver, for the launcher
_NEW = "/tmp"  # covered by the new root; it is everywhere, and bubblewrap needs it too
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = {
    "passwd": "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_PLACES = ("proc", "dev", "tmp", "workspace")


def main() -> None:
    """argv[1]: JSON of `binds` {source: place in the sandbox}, `mounts` {source: place in the launcher's root}, places
    `hidden` in the sandbox, `python`, and `env` and `options` of the launcher."""
    setup: dict[str, Any] = json.loads(sys.argv[1])
    driver = os.pidfd_open(os.getppid())
    _enter_namespaces()
    # opened before the new root covers what lies below it, and in the mount namespace that binds them
    sources = {path: os.open(path, os.O_PATH) for path in (*setup["binds"], *setup["mounts"])}
    linux.mount("tmpfs", _NEW, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755,size=1m")
    _build_sandbox(f"{_NEW}/sandbox", setup, sources)
    _build_root(setup, sources)
    for fd in sources.values():
        os.close(fd)
    linux.enter_root(_NEW, "/old")
    if launcher := os.fork():
        os.close(_CHANNEL)  # the driver is to see it close with the launcher
        os._exit(os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1]) & 0x7F)
    # over the host's, which has to stay below: the kernel asks for one that shows everything
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV)
    os.set_inheritable(driver, True)
    if os.getuid():
        linux.pass_capabilities_on()  # root keeps them anyway
    start = "import sys; fresh = frozenset(sys.modules); sys.path[0] = '/opt/longtail'; from _longtail import zygote"
    command = [
        setup["python"],
        "-c",
        f"{start}; zygote.main(fresh)",
        json.dumps({**setup["options"], "driver": driver}),
    ]
    os.execve(setup["python"], command, setup["env"])


def _enter_namespaces() -> None:
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID | (linux.CLONE_NEWUSER if uid else 0))
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def _build_sandbox(root: str, setup: Mapping[str, Any], sources: Mapping[str, int]) -> None:
    os.mkdir(root)
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755,size=1m")
    for name in (*_PLACES, "etc", "opt", "opt/bin", "opt/empty"):
        os.mkdir(f"{root}/{name}")
    for name in _SYSTEM:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
        elif os.path.isdir(f"/{name}"):
            _bind(f"/{name}", f"{root}/{name}")
    for name, text in _ETC.items():
        with open(f"{root}/etc/{name}", "w", encoding="ascii") as file:
            file.write(text)
    for name in ("alternatives", "ld.so.cache"):
        if os.path.exists(f"/etc/{name}"):
            _bind(f"/etc/{name}", f"{root}/etc/{name}")
    for name in ("python", "python3"):
        os.symlink(setup["python"], f"{root}/opt/bin/{name}")
    for source, place in setup["binds"].items():
        _bind(f"/proc/self/fd/{sources[source]}", root + place)
    for place in setup["hidden"]:
        if os.path.isdir(root + place):
            linux.bind(f"{root}/opt/empty", root + place)
    linux.restrict(root, linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)


def _build_root(setup: Mapping[str, Any], sources: Mapping[str, int]) -> None:
    for name in os.listdir(f"{_NEW}/sandbox"):
        if os.path.islink(f"{_NEW}/sandbox/{name}"):
            os.symlink(os.readlink(f"{_NEW}/sandbox/{name}"), f"{_NEW}/{name}")
        elif name not in _PLACES:
            _bind(f"{_NEW}/sandbox/{name}", f"{_NEW}/{name}")
    for name in ("proc", "dev"):
        _bind(f"/{name}", f"{_NEW}/{name}")
    for name in ("tmp", "box", "box/work", "box/scratch", "old"):
        os.mkdir(f"{_NEW}/{name}")
    for source, place in setup["mounts"].items():
        _bind(f"/proc/self/fd/{sources[source]}", _NEW + place)


def _bind(source: str, target: str) -> None:
    """Bind a directory or file on a place that is made for it."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT, 0o644))
    linux.bind(source, target)
