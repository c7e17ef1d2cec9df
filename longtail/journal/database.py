"""The SQLite file: opened for writing, opened for reading, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import apsw

from longtail.errors import InfrastructureError, LongtailError, UserError, disk_is_full, no_space

FILE_NAME = "journal.db"
SCHEMA = 1
_APPLICATION_ID = 0x6C747431  # "ltt1"

_WRITER_PRAGMAS = """
PRAGMA synchronous = FULL;
PRAGMA wal_autocheckpoint = 4000;
PRAGMA busy_timeout = 10000;
"""


def execute(connection: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """Run all the statements; their rows."""
    return list(stream(connection, sql, values))


def stream(connection: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Iterable[Any]:
    """Rows as they are asked for."""
    return connection.execute(sql, values or None)  # pyright: ignore[reportUnknownMemberType]  (apsw's stubs)


def execute_many(connection: apsw.Connection, sql: str, rows: Iterable[Sequence[Any]]) -> None:
    connection.executemany(sql, rows)  # pyright: ignore[reportUnknownMemberType]  (apsw's stubs)


def open_writer(directory: Path) -> apsw.Connection:
    """The run's database, created when new. Raises UserError, DiskFull."""
    try:
        connection = apsw.Connection(str(directory / FILE_NAME))
        version = _check(connection, directory)  # first: what is not ours stays as it is
        execute(connection, "PRAGMA page_size = 16384; PRAGMA journal_mode = WAL;" + _WRITER_PRAGMAS)
        if version == 0:
            schema = resources.files("longtail.journal").joinpath("schema.sql").read_text("utf-8")
            marks = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {SCHEMA};"
            execute(connection, f"BEGIN IMMEDIATE;\n{schema}\n{marks} COMMIT;")
    except apsw.Error as error:
        raise meaning(error, directory) from error
    return connection


def open_reader(directory: Path) -> apsw.Connection:
    """Read only; a live writer is not disturbed. Raises UserError when there is no journal."""
    path = directory / FILE_NAME
    if not path.is_file():
        raise UserError(f"{directory} is not a run directory: it has no {FILE_NAME}")
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(10_000)
        if _check(connection, directory) == 0:
            raise UserError(f"{path} is empty: the run did not start")
    except apsw.Error as error:
        raise meaning(error, directory) from error
    return connection


def _check(connection: apsw.Connection, directory: Path) -> int:
    """The stored schema version, 0 for a new file."""
    ((version,),) = execute(connection, "PRAGMA user_version")
    ((owner,),) = execute(connection, "PRAGMA application_id")
    if owner != _APPLICATION_ID and (owner, version) != (0, 0):
        raise UserError(f"{directory / FILE_NAME} is a database of another program")
    if version > SCHEMA:
        raise UserError(
            f"{directory / FILE_NAME} has schema {version}, this longtail knows up to {SCHEMA}: update longtail"
        )
    return version


def meaning(error: Exception, directory: Path) -> LongtailError:
    """What an error of SQLite or of the operating system means for the run."""
    if isinstance(error, LongtailError):
        return error
    if is_full(error):
        return no_space(directory)
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return UserError(f"{directory / FILE_NAME} is not a readable journal: {error}")
    if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
        return UserError(f"{directory / FILE_NAME} cannot be opened for this: {error}")
    return InfrastructureError(f"the journal in {directory} failed: {type(error).__name__}: {error}")


def is_full(error: BaseException) -> bool:
    """Whether the disk or the quota is at its end."""
    return isinstance(error, apsw.FullError) or disk_is_full(error)
