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


@pytest.fixture
def preempted(monkeypatch):
    """The requests that the scheduler has preempted."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import RequestStatus

    found, free = [], KVCacheManager.free

    def watched(self, request):
        found.extend([request.request_id] * (request.status == RequestStatus.RUNNING))
        free(self, request)

    monkeypatch.setattr(KVCacheManager, "free", watched)
    return found
