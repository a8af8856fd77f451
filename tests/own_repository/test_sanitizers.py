"""`devtool test --sanitize` in a repository of one's own: host code, and the file and line of what it finds."""

import pytest

from tests.devtool.scaffold.test_init import made, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return made(tmp_path_factory.mktemp("sanitized"), "my-kernels")


@pytest.fixture
def host_code(repository):
    """The file, with its text restored afterwards."""
    path = repository / "kernels/scaled/scaled_host.cc"
    text = path.read_text()
    yield path
    path.write_text(text)


@pytest.mark.parametrize(
    ("sanitizer", "right", "wrong", "report"),
    [
        ("address", "out[i] = ", "out[i + 1] = ", "SUMMARY: AddressSanitizer: heap-buffer-overflow {place} in"),
        (
            "undefined",
            "out[i] = ",
            "out[i << (i + 70)] = ",
            "{place}:{column}: runtime error: shift exponent 70 is too",
        ),
    ],
)
def test_sanitizer_finds_a_mistake_and_nothing_else(repository, host_code, sanitizer, right, wrong, report):
    one_case = ("test", "scaled", "--sanitize", sanitizer, "--", "-k", "check_lazy and f32")
    result = run(repository, *one_case)
    assert result.returncode == 0 and " passed" in result.stdout, result.stderr
    text = host_code.read_text()
    host_code.write_text(text.replace(right, wrong))
    result = run(repository, *one_case)
    assert result.returncode == 1
    line = text[: text.index(right)].count("\n") + 1
    column = host_code.read_text().splitlines()[line - 1].index("<<") + 1 if "<<" in wrong else 0
    assert report.format(place=f"scaled/scaled_host.cc:{line}", column=column) in result.stderr, result.stderr
