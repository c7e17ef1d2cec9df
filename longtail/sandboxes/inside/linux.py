"""The system calls that the standard library lacks, each raising OSError. Linux on x86_64 and aarch64."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
OTHER_NAMESPACES = CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18

_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_CAPABILITY_VERSION_3 = 0x2008_0522

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 4, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL, _SECCOMP_MODE_FILTER = 2, 4, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = [text.encode() if text else None for text in (source, target, kind)]
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() if data else None)
    _check(result, f"mount {kind or 'bind'} on {target}")


def bind(source: str, target: str) -> None:
    mount(source, target, flags=MS_BIND | MS_REC)


def restrict(target: str, flags: int) -> None:
    """Add MS_RDONLY, MS_NOSUID or MS_NODEV to a mount and all below it."""
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)  # these three MOUNT_ATTR_ flags equal their MS_ namesakes
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, ctypes.byref(attributes), ctypes.c_size_t(32)
    )
    _check(result, f"restrict mount {target}")


def enter_root(new_root: str, old_inside: str) -> None:
    """Make `new_root` this mount namespace's root and drop the old one. `old_inside` is a directory in the new root."""
    _check(_libc.pivot_root(new_root.encode(), (new_root + old_inside).encode()), "pivot_root")
    os.chdir("/")
    unmount(old_inside)


def unmount(target: str) -> None:
    """Take a mount from the tree; it lives on where it is in use."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    _check(_libc.setns(fd, flags), "setns")


def _prctl(option: int, first: int = 0, second: int = 0) -> int:
    return _libc.prctl(option, first, second, 0, 0)


def set_dumpable(on: bool) -> None:
    """A process that is not dumpable keeps its /proc/N/mem and fd closed to others of the same uid."""
    _check(_prctl(_PR_SET_DUMPABLE, int(on)), "prctl dumpable")


def become_subreaper() -> None:
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl subreaper")


def pass_capabilities_on() -> None:
    """Let the next program that this process becomes keep its capabilities, whatever its uid."""
    _set_capabilities(0xFFFF_FFFF)
    capability = 0
    while _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability) == 0:
        capability += 1


def keep_capabilities_here() -> None:
    """Undo pass_capabilities_on for the programs that come after."""
    _check(_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL), "prctl ambient")


def _set_capabilities(word: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)(*[word] * 6))), "capset")


def drop_privileges(seccomp_filter: bytes) -> None:
    """Give up every capability for good, and apply a compiled seccomp filter unless it is empty."""
    capability = 0
    while _prctl(_PR_CAPBSET_DROP, capability) == 0:
        capability += 1
    keep_capabilities_here()
    _set_capabilities(0)
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl no_new_privs")
    if seccomp_filter:
        _install_filter(seccomp_filter)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _install_filter(code: bytes) -> None:
    program = _FilterProgram(len(code) // 8, code)
    _check(_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program)), "seccomp")
