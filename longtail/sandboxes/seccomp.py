"""The seccomp filter of a sandbox, as classic BPF code for x86_64 and aarch64.

It refuses what code in a sandbox never needs and what has opened kernels before: mounts, namespaces, tracing, keys,
bpf, io_uring, userfaultfd, perf, modules, limits of another process, and sockets other than unix and internet ones.
Where no cgroup counts it, it also refuses memory that belongs to no process.
"""

from __future__ import annotations

import errno
import platform
import struct

_CLONE_NAMESPACES = 0x7E02_0000  # new mount, cgroup, uts, ipc, user, pid, net namespace
_FAMILIES = (1, 2, 10)  # unix, inet, inet6
_TERMINAL_INJECTION = (0x5412, 0x541C)  # ioctls TIOCSTI, TIOCLINUX
_X32 = 0x4000_0000

_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
# name: number on (x86_64, aarch64); -1 where it does not exist
_REFUSED = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "unshare": (272, 97),
    "setns": (308, 268),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "syslog": (103, 116),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
_UNOWNED = {  # what lives on while no process has it mapped: no limit of a process holds it, and no sampling sees it
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
}
_CLONE, _CLONE3, _SOCKET, _IOCTL, _PRLIMIT = (56, 220), (435, 435), (41, 198), (16, 29), (302, 261)

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000


def compile_filter(machine: str = "", *, unowned_memory: bool = True) -> bytes:
    """The filter's code; empty for a machine it is not written for."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        return b""
    column = list(_ARCHITECTURES).index(machine)
    code = [
        _op(_LOAD, _ARCHITECTURE),
        _op(_JUMP_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
        *(_when(_JUMP_AT_LEAST, _X32, errno.EPERM) if machine == "x86_64" else ()),
        *_when(_JUMP_EQUAL, _CLONE3[column], errno.ENOSYS),  # its flags cannot be read here: libc falls back to clone
    ]
    for numbers in (*_REFUSED.values(), *(() if unowned_memory else _UNOWNED.values())):
        if numbers[column] >= 0:
            code += _when(_JUMP_EQUAL, numbers[column], errno.EPERM)
    families = [_op(_JUMP_EQUAL, family, len(_FAMILIES) - at, 0) for at, family in enumerate(_FAMILIES)]
    code += _on_argument(_CLONE[column], 0, _when(_JUMP_ANY_BIT, _CLONE_NAMESPACES, errno.EPERM))
    code += _on_argument(_SOCKET[column], 0, [*families, _op(_RETURN, _ERROR | errno.EAFNOSUPPORT)])
    code += _on_argument(_PRLIMIT[column], 0, [_op(_JUMP_EQUAL, 0, 1, 0), _op(_RETURN, _ERROR | errno.EPERM)])
    injections = [op for request in _TERMINAL_INJECTION for op in _when(_JUMP_EQUAL, request, errno.EPERM)]
    code += _on_argument(_IOCTL[column], 1, injections)
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when(jump: int, value: int, number: int) -> list[bytes]:
    """Refuse with that errno when the comparison holds."""
    return [_op(jump, value, 0, 1), _op(_RETURN, _ERROR | number)]


def _on_argument(call: int, index: int, body: list[bytes]) -> list[bytes]:
    """Run `body` over the low word of an argument of one system call; what it does not refuse is allowed."""
    loaded = [_op(_LOAD, 16 + 8 * index), *body, _op(_RETURN, _ALLOW)]
    return [_op(_JUMP_EQUAL, call, 0, len(loaded)), *loaded]
