"""The table as the kernel is compiled with it: tuning.h, whose function chooses constants by the numbers of a call."""

from __future__ import annotations

from collections.abc import Sequence

from devtool.tune.space import ShapeClass, Space, Table, Values

_INDENT = "  "


def constant(parameter: str) -> str:
    """The name of a parameter's constant in C++: kRowsPerCta for rows_per_cta."""
    return "k" + "".join(word.capitalize() for word in parameter.split("_"))


def macro(parameter: str) -> str:
    """The macro that gives the parameter a value for all shapes."""
    return f"PYXLA_TUNE_{parameter.upper()}"


def flags(space: Space, values: Values) -> str:
    """The options of the compilers with which an op has these values for all shapes."""
    return " ".join(f"-D{macro(name)}={value}" for name, value in space.named(values).items())


def header_text(space: Space, table: Table) -> str:
    """The whole file tuning.h.

    Args:
        space: what the op's tuning.py declares.
        table: the values of every class.
    """
    own = ", ".join(f"int {constant(name)}_" for name in space.parameters)
    arguments = [f"[[maybe_unused]] int64_t {name}" for name in space.classes]
    lines = [
        f"// The values with which {space.op} is compiled, by the shape of a call.",
        f"// `devtool tune {space.op}` writes this file; tuning.json says how they were measured,",
        "// tuning.py what they mean.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        f"namespace {space.op} {{",
        "",
        f"template <{own}>",
        "struct Tuned {",
        *(f"  static constexpr int {constant(name)} = {constant(name)}_;" for name in space.parameters),
        "};",
        "",
        "struct Tuning {",
        "  /** Calls body(Tuned<...>{}) with the values for the shape. */",
        "  template <typename Body>",
        f"  static auto Choose({', '.join([*arguments, 'const Body& body'])}) {{",
        f"#ifdef {macro(next(iter(space.parameters)))}",
        f"    return body(Tuned<{', '.join(map(macro, space.parameters))}>{{}});",
        "#else",
        *(f"{_INDENT * 2}{line}" for line in _choices(space, table, ())),
        "#endif",
        "  }",
        "};",
        "",
        f"}}  // namespace {space.op}",
    ]
    return "\n".join(lines) + "\n"


def _choices(space: Space, table: Table, given: ShapeClass) -> list[str]:
    """The statements for the classes that begin with the given numbers; classes with equal values are one."""
    if len(given) == len(space.classes):
        return [f"return body(Tuned<{', '.join(map(str, table[given]))}>{{}});"]
    name, bounds = list(space.classes.items())[len(given)]
    branches = [(largest, _choices(space, table, (*given, largest))) for largest in (*bounds, None)]
    # The last of equal neighbours has their largest number.
    kept = [
        branch for branch, after in zip(branches, [*branches[1:], (None, None)], strict=True) if branch[1] != after[1]
    ]
    lines: list[str] = []
    for largest, inner in kept[:-1]:
        lines += _condition(f"if ({name} <= {largest})", inner)
    return [*lines, *kept[-1][1]]


def _condition(condition: str, inner: Sequence[str]) -> list[str]:
    if len(inner) == 1:
        return [f"{condition} {inner[0]}"]
    return [f"{condition} {{", *(f"{_INDENT}{line}" for line in inner), "}"]
