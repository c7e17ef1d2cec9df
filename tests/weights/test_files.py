"""The order of a publication: written, journaled, loaded by every engine; only then the older file goes."""

import pytest

from longtail.errors import EngineError
from longtail.fakes import VirtualClock
from longtail.weights.files import FileWeights


class Witness:
    """Trainer, journal and two engines in one: writes down what happens, and which files there are then."""

    def __init__(self, directory):
        self.directory, self.seen, self.broken = directory, [], False

    def note(self, what):
        self.seen.append((what, sorted(path.name for path in self.directory.iterdir())))

    async def export(self, path):
        path.write_bytes(b"weights")
        self.note("export")

    async def append(self, *events):
        self.note(*(event.kind for event in events))

    async def load(self, path, version):
        assert path.read_bytes() == b"weights"
        self.note(f"load {version}")
        if self.broken:
            raise EngineError("no")


ONE, TWO = "version-000001.safetensors", "version-000002.safetensors"


@pytest.fixture
def witness(tmp_path):
    return Witness(tmp_path)


@pytest.fixture
def weights(tmp_path, witness):
    return FileWeights(tmp_path, [witness, witness], witness, VirtualClock())


async def test_a_version_is_journaled_before_an_engine_loads_it_and_the_older_goes_after_all_of_them(weights, witness):
    await weights.publish(witness, 1)
    await weights.publish(witness, 2)
    assert witness.seen == [
        ("export", [ONE]),
        ("version.published", [ONE]),
        ("load 1", [ONE]),
        ("load 1", [ONE]),
        ("export", [ONE, TWO]),
        ("version.published", [ONE, TWO]),
        ("load 2", [ONE, TWO]),
        ("load 2", [ONE, TWO]),
    ]
    witness.note("end")
    assert witness.seen[-1] == ("end", [TWO])


async def test_where_a_load_fails_the_older_stays(weights, witness):
    await weights.publish(witness, 1)
    witness.broken = True
    with pytest.raises(EngineError):
        await weights.publish(witness, 2)
    witness.note("end")
    assert witness.seen[-1] == ("end", [ONE, TWO])
