"""The file of an exported function, without XLA: each defect gives one clear error."""

import dataclasses
import hashlib
import json
import re
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxla.artifact.archive import ArtifactFile, write_artifact
from pyxla.artifact.manifest import CallTarget, Manifest, Output, Tensor, read_manifest
from pyxla.errors import ArtifactError

MANIFEST = Manifest(
    versions={"pyxla": "0.1.0"},
    stablehlo="1.11.0",
    platform="Host",
    inputs=(Tensor("x", (2, 3), "bfloat16"), Tensor("cache", (0,), "float8_e4m3fn")),
    outputs=(Output("cache", (0,), "float8_e4m3fn", "cache"), Output("result", (), "float32", None)),
    weights=(Tensor("w", (4,), "int32"),),
    parameters=(("weight", 0), ("input", 1)),
    custom_calls=(CallTarget("xla_gpu_f", "f", "(Tensor x) -> Tensor", "f", "ab", "cd", (0, 1), False),),
    other_targets=("TopK",),
    members={},
)
MEMBERS = {"module.stablehlo": b"the module", "weights/0": bytes(range(16))}
FORM = r"artifact: [\w ./]+: expected (.|\n)+, got (.|\n)*"


def write(path, manifest=MANIFEST):
    write_artifact(path, manifest, {name: lambda c=content: c for name, content in MEMBERS.items()})
    return path


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return write(tmp_path_factory.mktemp("file") / "f.pyxla").read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("altered") / "f.pyxla"


def marked(content):
    """The file with a correct mark at its end."""
    body = content[: -len("pyxla-artifact 1 sha256 ") - 64]
    return body + f"pyxla-artifact 1 sha256 {hashlib.sha256(body).hexdigest()}".encode()


def read_all(path):
    file = ArtifactFile.open(path)
    return file.manifest, {name: bytes(file.member(name)) for name in file.manifest.members}


def test_what_is_written_is_read(content, place):
    place.write_bytes(content)
    manifest, members = read_all(place)
    assert members == MEMBERS
    digests = {name: hashlib.sha256(member).hexdigest() for name, member in MEMBERS.items()}
    assert manifest == dataclasses.replace(MANIFEST, members=digests)
    assert marked(content) == content


def test_the_mode_is_that_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    assert write(tmp_path / "f").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail():
        raise OSError(28, "No space left on device")

    with pytest.raises(ArtifactError, match=r"export: path: expected a file that can be written, got .*No space left"):
        write_artifact(tmp_path / "f", MANIFEST, {"module.stablehlo": fail})
    assert list(tmp_path.iterdir()) == []


@given(data=st.data())
def test_a_truncated_file(content, place, data):
    place.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ArtifactError, match=r"artifact: file: expected the mark of an artifact at its end, got "):
        read_all(place)


@given(data=st.data())
def test_an_altered_byte(content, place, data):
    """A byte changed anywhere, even where a zip reader does not look, such as in a date."""
    altered = bytearray(content)
    altered[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    place.write_bytes(altered)
    with pytest.raises(ArtifactError, match=r"^artifact: (file|format version): expected "):
        read_all(place)


@given(data=st.data())
def test_altered_bytes_with_a_right_mark(content, place, data):
    """With a recomputed digest: an error in the usual form, or the same members."""
    altered = bytearray(content)
    for position in data.draw(st.lists(st.integers(0, len(content) - 89), min_size=1, max_size=3)):
        altered[position] = data.draw(st.integers(0, 255))
    place.write_bytes(marked(bytes(altered)))
    try:
        _, members = read_all(place)
    except ArtifactError as error:
        assert re.fullmatch(FORM, error.message), error.message
    else:
        assert all(MEMBERS[name] == member for name, member in members.items())


@pytest.mark.parametrize("cut", ["front", "middle", "appended"])
def test_bytes_taken_out_or_added(content, place, cut):
    place.write_bytes({"front": content[7:], "middle": content[:50] + content[60:], "appended": content + b"x"}[cut])
    with pytest.raises(ArtifactError, match="artifact: file: expected "):
        read_all(place)


@pytest.mark.parametrize("foreign", [b"", b"text", b"\x7fELF" + bytes(200), b"PK\x03\x04" + bytes(200)])
def test_a_foreign_file(place, foreign):
    place.write_bytes(foreign)
    with pytest.raises(ArtifactError) as caught:
        ArtifactFile.open(place)
    zipped = ", a zip archive cut short or another one" if foreign.startswith(b"PK") else ""
    assert caught.value.message == (
        "artifact: file: expected the mark of an artifact at its end, "
        f"got {len(foreign)} bytes without one{zipped} in {place}"
    )


def test_a_repacked_archive(content, place, tmp_path):
    place.write_bytes(content)
    with zipfile.ZipFile(place) as old, zipfile.ZipFile(tmp_path / "new", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ArtifactError, match="a zip archive cut short or another one"):
        ArtifactFile.open(tmp_path / "new")


def test_a_member_of_another_artifact(content, place, tmp_path):
    """A correct archive with a correct mark, assembled from two."""
    place.write_bytes(content)
    with zipfile.ZipFile(place) as old, zipfile.ZipFile(tmp_path / "new", "w") as new:
        for name in old.namelist():
            new.writestr(name, bytes(16) if name == "weights/0" else old.read(name))
        new.comment = bytes(88)
    place.write_bytes(marked((tmp_path / "new").read_bytes()))
    digests = [hashlib.sha256(member).hexdigest() for member in (MEMBERS["weights/0"], bytes(16))]
    with pytest.raises(ArtifactError) as caught:
        read_all(place)
    message = f"artifact: weights/0: expected SHA-256 {digests[0]} (manifest.json), got {digests[1]} in {place}"
    assert caught.value.message == message


def test_a_compressed_member_with_a_right_mark(tmp_path):
    path = tmp_path / "f"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * 10_000_000)
        archive.comment = bytes(88)
    path.write_bytes(marked(path.read_bytes()))
    with pytest.raises(ArtifactError, match=r"artifact: manifest.json: expected a stored member of the archive, got "):
        ArtifactFile.open(path)


@pytest.mark.parametrize(
    ("version", "hint"), [(2, "load it with the pyxla that wrote it"), (999999999, "load it with")]
)
def test_a_newer_format_version(content, place, version, hint):
    place.write_bytes(content.replace(b"pyxla-artifact 1 ", f"pyxla-artifact {version} ".encode()))
    with pytest.raises(ArtifactError) as caught:
        ArtifactFile.open(place)
    assert caught.value.message == f"artifact: format version: expected 1, got {version} in {place}"
    assert caught.value.hint.startswith(hint)


def test_an_older_format_version(content, place, monkeypatch):
    monkeypatch.setattr("pyxla.artifact.archive.FORMAT", 2)
    place.write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        ArtifactFile.open(place)
    assert caught.value.message == f"artifact: format version: expected 2, got 1 in {place}"
    assert caught.value.hint == "export the function again"


def test_a_file_that_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "none", "/proc/self/mem"):
        with pytest.raises(ArtifactError, match=r"artifact: file: expected "):
            ArtifactFile.open(type(tmp_path)(path))


def values():
    """The manifest's JSON."""
    return json.loads(json.dumps(dataclasses.asdict(MANIFEST)))


def test_the_manifest_survives_json():
    assert read_manifest(values(), "f") == MANIFEST


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"inputs": [{"name": "x", "shape": [-1], "dtype": "int8"}]}, "inputs as export writes it"),
        ({"inputs": [{"name": "x", "shape": [True], "dtype": "int8"}]}, "inputs as export writes it"),
        ({"inputs": [{"name": "x", "shape": [1.0], "dtype": "int8"}]}, "inputs as export writes it"),
        ({"inputs": [{"name": "x", "shape": [1], "dtype": "complex64"}]}, "inputs as export writes it"),
        ({"inputs": [{"name": "x", "shape": [1 << 40, 1 << 40], "dtype": "int8"}]}, "inputs as export writes it"),
        ({"inputs": values()["inputs"] * 2}, "inputs with each name once"),
        ({"outputs": values()["outputs"] * 2}, "outputs with each name once"),
        ({"outputs": [{"name": "r", "shape": [], "dtype": "int8", "updates": "z"}]}, "outputs that update an input"),
        ({"outputs": [{"name": "r", "shape": [], "dtype": "int8", "updates": "x"}]}, "outputs that update an input"),
        ({"parameters": [["weight", 1]]}, "parameters that are its inputs and weights"),
        ({"parameters": [["other", 0]]}, "parameters as export writes it"),
        ({"platform": "TPU"}, "platform as export writes it"),
        ({"custom_calls": [{}]}, "custom_calls as export writes it"),
        ({"members": {"a": 1}}, "members as export writes it"),
        ({"versions": None}, "versions as export writes it"),
    ],
)
def test_a_field_with_another_value(change, expected):
    with pytest.raises(ArtifactError) as caught:
        read_manifest(values() | change, "f")
    assert caught.value.message.startswith(f"artifact: manifest.json: expected {expected}")


@pytest.mark.parametrize("name", sorted(values()))
def test_a_field_that_is_missing(name):
    rest = {key: value for key, value in values().items() if key != name}
    with pytest.raises(ArtifactError, match=f"artifact: manifest.json: expected {name} as export writes it, got None"):
        read_manifest(rest, "f")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["x", "int8", "input"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places_in(value, path=()):
    """The paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places_in(item, (*path, key)))]


@given(place=st.sampled_from(places_in(values())), other=ANY_JSON)
def test_any_json_in_any_place(place, other):
    """Gives an error, or a manifest whose fields have the right types."""
    changed = values()
    if place:
        target = changed
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = other
    else:
        changed = other
    try:
        manifest = read_manifest(changed, "f")
    except ArtifactError as error:
        assert error.message.startswith("artifact: manifest.json: expected ")
    else:
        assert all(tensor.nbytes >= 0 for tensor in (*manifest.inputs, *manifest.outputs, *manifest.weights))
        assert all(isinstance(call.ffi_api_version, tuple) for call in manifest.custom_calls)
        json.dumps(dataclasses.asdict(manifest))


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff", b"nul", b"{}", b"[]", b"1" * 5000])
def test_a_manifest_that_is_none(tmp_path, text):
    path = tmp_path / "f"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", text)
        archive.comment = bytes(88)
    path.write_bytes(marked(path.read_bytes()))
    with pytest.raises(ArtifactError, match=r"artifact: manifest.json: expected "):
        ArtifactFile.open(path)
