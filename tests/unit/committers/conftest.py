import pytest

from support.places import new_place


@pytest.fixture
def place():
    return new_place()
