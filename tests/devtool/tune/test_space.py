"""What is wrong with a tuning.py is said with the file, the name and what belongs there."""

import pytest

from tests.devtool_tree import Tree

RIGHT = """
DEVICE = "cpu"
PARAMETERS = {"threads": (128, 256), "stages": (1, 2)}
CLASSES = {"rows": (64,)}


def allowed(threads, stages):
    return threads * stages <= 256


def key(a, **others):
    return {"rows": a.shape[0]}


def start(rows):
    return {"threads": 256, "stages": 1}
"""
FILE = "tune: kernels/simple_add/tuning.py"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("space"))


def said(tree, text: str | None, *arguments: str) -> str:
    path = tree.kernels / "simple_add/tuning.py"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    result = tree.run("tune", "simple_add", *arguments)
    assert result.returncode == 1 and "\n\nhint: " in result.stderr, result.stderr
    return result.stderr


def test_start_is_written(tree):
    (tree.kernels / "simple_add/tuning.py").write_text(RIGHT)
    result = tree.run("tune", "simple_add", "--start")
    assert result.returncode == 0, result.stderr
    header, record = (tree.kernels / "simple_add" / name for name in ("tuning.h", "tuning.json"))
    assert result.stdout == f"{header}\n{record}\n"
    assert "    return body(Tuned<256, 1>{});\n" in header.read_text()
    assert '"class": {"rows": 64}, "values": {"threads": 256, "stages": 1}' in record.read_text()


def test_op_without_the_file_is_told_what_to_write(tree):
    text = said(tree, None)
    assert text.startswith("tune: OP: expected kernels/simple_add/tuning.py, which declares parameters, got none\n")
    # What the hint shows is a file that is taken.
    example = text[text.index("PARAMETERS") :].replace("def key(x)", "def key(a, **others)")
    (tree.kernels / "simple_add/tuning.py").write_text(example)
    assert tree.run("tune", "simple_add", "--start").returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("PARAMETERS", "PARAMETRES", "PARAMETERS: expected a dict of names in lower case, each with different whole "),
        ("(128, 256)", "(128, 128)", "PARAMETERS: expected a dict of names in lower case, each with different whole "),
        ('"threads": (128, 256), "stages": (1, 2)', "", "PARAMETERS: expected at least one parameter, got none"),
        ("(1, 2)", "tuple(range(-98, 2))", "PARAMETERS: expected 2 to 64 variants that are allowed, got 200"),
        ("<= 256", "< 256", "PARAMETERS: expected 2 to 64 variants that are allowed, got 1"),
        ("(64,)", "(64, 8)", "CLASSES: expected ascending numbers for rows, got (64, 8)"),
        ("(64,)", '("64",)', "CLASSES: expected a dict of names in lower case, each with different whole numbers"),
        ("def key", "def keys", "key: expected a function, got None"),
        ("cpu", "tpu", "DEVICE: expected cpu or cuda, got 'tpu'"),
        ('"stages": 1}', '"stages": 2}', "start(rows=64): expected allowed values of threads, stages, got {'threads'"),
        ('"stages": 1}', '"stage": 1}', "start(rows=64): expected allowed values of threads, stages, got {'threads'"),
        ("DEVICE", "1 / 0\nDEVICE", "file: expected Python that can be imported, got ZeroDivisionError: division by "),
    ],
)
def test_wrong_file(tree, old, new, message):
    assert RIGHT.replace(old, new, 1) != RIGHT
    assert said(tree, RIGHT.replace(old, new, 1), "--start").startswith(f"{FILE}: {message}")


def test_key_that_is_not_a_number_of_each_class():
    from devtool.errors import DevtoolError
    from devtool.tune.space import Space

    space = Space("op", "cpu", {"tile": (1, 2)}, {"rows": (10,)}, ((1,), (2,)), {(10,): (1,), (None,): (1,)})
    assert space.class_of({"rows": 10}) == (10,) and space.class_of({"rows": 11}) == (None,)
    for wrong in ({"row": 10}, {"rows": 1.5}, {}, None):
        with pytest.raises(DevtoolError, match=r"tuning\.py: key: expected whole numbers for rows, got "):
            space.class_of(wrong)


def test_record_of_something_else(tree):
    (tree.kernels / "simple_add/tuning.py").write_text(RIGHT)
    record = tree.kernels / "simple_add/tuning.json"
    for text, got in (("{", "JSONDecodeError: "), ('{"schema": 7}', "schema 7"), ("[]", "TypeError: ")):
        record.write_text(text)
        result = tree.run("tune", "simple_add")
        assert result.returncode == 1
        expected = f"tune: {record}: expected a record that devtool tune wrote (schema 1), got {got}"
        assert result.stderr.startswith(expected), result.stderr
    record.unlink()


@pytest.mark.parametrize("more", ["--check", "--json x"])
def test_start_measures_nothing(tree, more):
    result = tree.run("tune", "simple_add", "--start", *more.split())
    assert result.returncode == 2 and "--start measures nothing" in result.stderr


def test_parameters_of_cuda_code_need_a_gpu(tree):
    (tree.kernels / "simple_add/tuning.py").write_text(RIGHT.replace('DEVICE = "cpu"', ""))
    result = tree.run("tune", "simple_add", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1
    expected = "tune: simple_add: expected a CUDA device, as its parameters are those of CUDA code, got none\n"
    assert result.stderr.startswith(expected)
    assert "hint: run it on a machine with a GPU; devtool tune simple_add --start writes a table" in result.stderr
