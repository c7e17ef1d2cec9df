"""The bench of lag says where it runs, and weighs idle shares by time."""

import pytest

from longtail.bench import lag
from longtail.errors import UserError


def test_it_runs_in_the_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="in the repository"):
        next(lag.records())


def test_records_compare_both_lags(monkeypatch):
    def lines(seconds):
        busy = {"seconds": seconds, "groups": 4, "tokens": 100, "success": 0.5, "idle/train": 0.2}
        return [busy, busy | {"seconds": 3 * seconds, "idle/train": 0.6}]

    monkeypatch.setattr(lag, "_run", lambda max_lag: lines(8.0 if max_lag else 10.0))
    synchronous, asynchronous = lag.records()
    assert (synchronous["value"], synchronous["ratio"], synchronous["seconds"]) == (0.2, 1.0, 40.0)
    assert (asynchronous["name"], asynchronous["ratio"]) == ("repair.lag1", 1.25)
    assert (asynchronous["n"], asynchronous["spread"]) == (2, [0.833, 2.5])
    assert asynchronous["idle"] == {"train": 0.5}
