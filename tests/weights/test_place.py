"""Where versions lie: in shared memory where there is room; what a kill left goes."""

import shutil
import types
from pathlib import Path

from longtail.weights.place import weight_directory


def test_weights_lie_in_shared_memory_where_there_is_room(tmp_path: Path, monkeypatch):
    memory, run = tmp_path / "shm", tmp_path / "run"
    memory.mkdir()
    run.mkdir()
    with weight_directory(run, 5000, memory) as place:
        assert place.parent == memory
        assert list(place.iterdir()) == []
    assert not place.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=4000))
    with weight_directory(run, 5000, memory) as place:
        assert place == run / "weights"


def test_what_killed_drivers_left_goes_and_what_a_living_one_holds_stays(tmp_path: Path):
    memory, run = tmp_path / "shm", tmp_path / "run"
    run.mkdir()
    for left in (memory / "longtail-weights-0123456789abcdef", memory / "longtail-eval-other", run / "weights"):
        left.mkdir(parents=True)
        (left / "version-000001.safetensors").touch()
    with weight_directory(tmp_path / "living", 0, memory) as living, weight_directory(run, 0, memory) as place:
        assert sorted(path.name for path in memory.iterdir()) == sorted(
            [living.name, place.name, "longtail-eval-other"]
        )
        assert not (run / "weights").exists()
