"""Frames between driver and agent: a list of byte strings. And messages with descriptors.

    u32 length of the rest | u32 number of fields | u32 size of each field | the fields     (little-endian)

What comes from the agent is untrusted: unpack() raises ValueError on anything malformed.
"""

from __future__ import annotations

import array
import socket

HEADER = 4
MAX_FIELDS = 1 << 20
MOST_NAMES = 4 << 20  # bytes of the paths in a list or snapshot


def pack(*fields: bytes) -> bytes:
    numbers = (4 + 4 * len(fields) + sum(map(len, fields)), len(fields), *map(len, fields))
    return b"".join([*(number.to_bytes(4, "little") for number in numbers), *fields])


def unpack(body: bytes | memoryview) -> list[bytes]:
    """The fields of a frame, without its leading length."""
    count = int.from_bytes(body[:4], "little")
    start = 4 + 4 * count
    if len(body) < 4 or count > MAX_FIELDS or len(body) < start:
        raise ValueError("malformed frame")
    fields: list[bytes] = []
    for at in range(4, start, 4):
        size = int.from_bytes(body[at : at + 4], "little")
        fields.append(bytes(body[start : start + size]))
        start += size
    if start != len(body):
        raise ValueError("malformed frame")
    return fields


def receive_fds(channel: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """One message and the descriptors with it, closed on exec (socket.recv_fds forgets its flags)."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(most * fds.itemsize)
    message, ancillary, _, _ = channel.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)
