"""What keeps `devtool test` of one op quick, and checks nothing less."""

import os

import pytest
from click.testing import CliRunner

from devtool.cli import cli
from devtool.testing import run


@pytest.mark.parametrize(("own", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(monkeypatch, own, expected):
    """With other work on two cores: 12 s of processor time instead of 16 for an edit and the tests of simple_add."""
    seen = []
    monkeypatch.setattr(run, "run_tests", lambda *_, **__: seen.append(os.environ["OMP_WAIT_POLICY"]) or 0)
    monkeypatch.setenv("OMP_WAIT_POLICY", own or "")
    if own is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    result = CliRunner().invoke(cli, ["test", "simple_add"])
    monkeypatch.delenv("OMP_WAIT_POLICY")  # what the command has set
    assert (result.exit_code, seen) == (0, [expected])


def test_plugins_that_no_test_needs_are_not_loaded(request):
    """anyio's would import trio in every run."""
    assert not request.config.pluginmanager.hasplugin("anyio")
