import pytest

from support.committers.pipelines import Gates
from support.places import driver_at, new_place
from tidegate.base import failpoints
from tidegate.committers.background.pipeline import PipelineThread
from tidegate.committers.opening.open import open_namespace


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.arm(None)


@pytest.fixture
def place():
    return new_place()


@pytest.fixture
def gates():
    gates = Gates()
    yield gates
    gates.errors.clear()
    gates.open(*gates.closed)


@pytest.fixture
def make(place, gates):
    """A driver that is open, and its pipeline; threads end with the test."""
    pipelines = []

    def pipelined(port=gates, **options):
        driver = driver_at(place, port=port, **options)
        open_namespace(driver, "query-1")
        pipelines.append(PipelineThread(driver))
        return driver, pipelines[-1]

    yield pipelined
    gates.errors.clear()
    gates.open(*list(gates.closed))
    for pipeline in pipelines:
        pipeline.close()
