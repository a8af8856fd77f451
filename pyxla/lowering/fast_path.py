"""What runs on every call of an op, written out for its schema: loops over arguments would cost as much as the call.

For `simple_add(Tensor a, Tensor b, float alpha=1.0) -> Tensor` the functions are, in essence:

    def emit(a, b, alpha=1.0):
        known = calls.get(key := (a.shape, a.dtype, b.shape, b.dtype, alpha or repr(alpha)))
        user_computation, computation, uploads = known or first_call(key, (a, b, alpha))
        return user_computation("xla_gpu::simple_add", [a, b], computation)[0]

    def simple_add(a, b, alpha=1.0):
        return emit(a, b, alpha) if <plain XLA tensors, no gradient, nobody who listens> else overload(a, b, alpha)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import (
    _are_functorch_transforms_active,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    is_grad_enabled,
)

from pyxla.op.schema import Argument, Schema

# Arguments of these types alone: no tensor subclass, so no tracing and no functional wrapper in Python.
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
# What an argument must be to become an operand or attribute as it is. All else is torch's to convert or to refuse: here
# 2.7 would become the int 2, and an int of more than 64 bits another one.
_TYPES = {
    "Tensor": "__type({0}) in __tensors",
    "int": "__type({0}) is __int and -__past_int64 <= {0} < __past_int64",
    "float": "__type({0}) in __numbers",
    "bool": "__type({0}) is __bool",
    "str": "__type({0}) is __str",
    "int[]": "__type({0}) is __list and __all(__map(__is_int64, {0}))",
    "float[]": "__type({0}) is __list and __numbers.issuperset(__map(__type, {0}))",
}
_NUMBERS = frozenset({int, float})
_PAST_INT64 = 2**63

# What an argument adds to the key of a computation. 0.0 == -0.0, but they are different attributes; and a NaN is equal
# to none, so that each call would add a key.
_KEYS = {
    "Tensor": "{0}.shape, {0}.dtype",
    "Tensor?": "{0} is not None and ({0}.shape, {0}.dtype)",
    "float": "{0} if {0} and {0} == {0} else __repr({0})",
    "float?": "{0} if {0} and {0} == {0} else __repr({0})",
    "int[]": "__tuple({0})",
    "float[]": "__tuple(__map(__repr, {0}))",
}

_EMIT = """
def {name}({parameters}):
    __key = ({key})
    __known = __calls.get(__key)
    if __known is None:
        __known = __first_call(__key, ({arguments},))
    __user_computation, __computation, __uploads = __known
    __operands = {operands}
    if __uploads:
        __await_uploads(__operands)
    try:
        __results = __user_computation({label!r}, __operands, __computation)
    except __RuntimeError:
        # The key leaves devices out: it is XLA that refuses a CPU tensor in a call that it has seen before.
        __check_devices(({arguments},))
        raise
    return {results}
"""

_CALL = """
def {name}({keyset}{parameters}):
    if (
        {types}
        and {first}.is_xla
        and not (__is_grad_enabled() and ({gradients}))
        and not __dispatch_modes()
        and not __function_modes()
        and not __transforms()
    ):
        return __emit({arguments})
    return __otherwise({keyset}{arguments})
"""


def write_emit(name: str, label: str, schema: Schema, **names: Any) -> Callable:
    """The function from an op's arguments to the results of its custom call.

    Args:
        name: name of the op.
        label: what the node is called in torch_xla's graph.
        schema: schema of the op.
        names: `calls`, a dict from key to (user_computation, computation, uploads), `first_call` that fills it,
            `await_uploads`, `check_devices`, and `unused_operand` for an op without tensors.
    """
    operands = f"[{', '.join(a.name for a in schema.tensors)}]"
    if any(a.kind == "Tensor?" for a in schema.tensors):
        operands = f"[t for t in {operands} if t is not None]"
    if schema.device is not None:
        operands = f"{operands} or [__unused_operand({schema.device.name})]"
    return _define(
        _EMIT,
        schema,
        names,
        name=name,
        label=label,
        key="".join(_KEYS.get(a.kind, "{0}").format(a.name) + ", " for a in schema.arguments),
        operands=operands,
        results="__results[0]" if schema.result_count == 1 else "__tuple(__results)",
    )


def write_call(
    name: str, schema: Schema, emit: Callable, otherwise: Callable, *, with_keyset: bool = False
) -> Callable:
    """The function that emits a call at once where that is all there is to do: plain XLA tensors, no gradient, nobody
    who listens. Else it calls `otherwise`, as it always does for an op without a tensor to look at.

    Args:
        name: name of the op.
        schema: schema of the op.
        emit: takes all arguments in order.
        otherwise: takes the op's arguments.
        with_keyset: torch's dispatch keys come before the arguments and are handed to `otherwise`.
    """
    first = next((a for a in schema.tensors if a.kind == "Tensor"), None)
    if first is None:
        return otherwise
    return _define(
        _CALL,
        schema,
        {
            "emit": emit,
            "otherwise": otherwise,
            "tensors": _TENSORS,
            "numbers": _NUMBERS,
            "past_int64": _PAST_INT64,
            "is_int64": _is_int64,
            "is_grad_enabled": is_grad_enabled,
            "dispatch_modes": _len_torch_dispatch_stack,
            "function_modes": _len_torch_function_stack,
            "transforms": _are_functorch_transforms_active,
        },
        name=name,
        keyset="__keyset, " if with_keyset else "",
        first=first.name,
        types=" and ".join(map(_type_test, schema.arguments)),
        gradients=" or ".join(map(_gradient_test, schema.tensors)),
    )


def _type_test(argument: Argument) -> str:
    # None of these takes a Device: an op that has one is torch's to call.
    test = _TYPES.get(argument.kind.removesuffix("?"), "False").format(argument.name)
    return f"({argument.name} is None or {test})" if argument.kind.endswith("?") else test


def _is_int64(value: Any) -> bool:
    return type(value) is int and -_PAST_INT64 <= value < _PAST_INT64


def _gradient_test(argument: Argument) -> str:
    test = f"{argument.name}.requires_grad"
    return f"({argument.name} is not None and {test})" if argument.kind == "Tensor?" else test


def _define(template: str, schema: Schema, names: dict[str, Any], **texts: str) -> Callable:
    """The function of this template. What it uses beside the arguments has a name that no argument has: `__<name>`."""
    parameters = [f"{a.name}=__defaults[{a.name!r}]" if a.name in schema.defaults else a.name for a in schema.arguments]
    arguments = ", ".join(a.name for a in schema.arguments)
    text = template.format(parameters=", ".join(parameters), arguments=arguments, **texts)
    builtins = {f.__name__: f for f in (type, repr, tuple, map, all, int, bool, str, list, RuntimeError)}
    scope = {f"__{name}": value for name, value in ({"defaults": schema.defaults} | builtins | names).items()}
    exec(compile(text, f"<pyxla {texts['name']}>", "exec"), scope)
    return scope[texts["name"]]
