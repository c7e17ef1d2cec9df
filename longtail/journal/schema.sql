-- The journal, schema 1. Append-only: seq is the order of the run, and the order of each trajectory.
-- seq is the rowid, so the index on trajectory is in fact unique (trajectory, seq) without storing seq twice.

CREATE TABLE events (
    seq        INTEGER PRIMARY KEY,
    trajectory TEXT NOT NULL,  -- '' for events of the run
    kind       TEXT NOT NULL,
    at_s       REAL NOT NULL,  -- seconds since the epoch
    data       TEXT NOT NULL,  -- JSON
    arrays     BLOB            -- codec.py; NULL when there are none
);

CREATE INDEX events_by_trajectory ON events (trajectory);
CREATE INDEX events_by_kind ON events (kind);

CREATE TRIGGER events_never_change BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

CREATE TRIGGER events_never_go BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
