import pytest

from tests.vllm.models import make


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Name of an architecture -> the folder of its model, made once."""
    made = {}

    def find(name):
        if name not in made:
            made[name] = make(name, tmp_path_factory.mktemp("models"))
        return made[name]

    return find
