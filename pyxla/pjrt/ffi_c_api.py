"""XLA's FFI C API (xla/ffi/api/c_api.h) as ctypes structures, to register handlers and to call them."""

from __future__ import annotations

import ctypes

# XLA_FFI_AttrType.
ARRAY, SCALAR, STRING = 1, 3, 4
# XLA_FFI_ArgType, XLA_FFI_RetType.
BUFFER = 1
# XLA_FFI_ExecutionStage.
EXECUTE = 3

HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_HEAD = (("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p))


class Struct(ctypes.Structure):
    """A structure of the API. It begins with its size, up to and including the field `counted`, and its extensions."""

    _fields_ = _HEAD

    @classmethod
    def of(cls, *fields: object) -> Struct:
        """The structure with these fields after its head."""
        last = getattr(cls, cls._counted)
        return cls(last.offset + last.size, None, *fields)

    def __init_subclass__(cls, counted: str | None = None):
        cls._counted = counted or cls._fields_[-1][0]


class Version(Struct):
    """XLA_FFI_Api_Version."""

    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


FUNCTIONS = (
    *("error_create", "error_get_message", "error_destroy", "handler_register", "stream_get", "type_id_register"),
    *("execution_context_get", "state_set", "state_get", "device_memory_allocate", "device_memory_free"),
    *("thread_pool_schedule", "thread_pool_num_threads", "future_create", "future_set_available", "future_set_error"),
    *("run_id_get", "device_ordinal_get"),
)


class Api(Struct):
    """XLA_FFI_Api."""

    _fields_ = (
        ("version", Version),
        ("internal_api", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in FUNCTIONS),
    )


class ByteSpan(ctypes.Structure):
    """XLA_FFI_ByteSpan."""

    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))

    @classmethod
    def of(cls, text: str) -> ByteSpan:
        """The span of a text's bytes."""
        data = text.encode()
        return cls(data, len(data))


class RegisterArgs(Struct):
    """XLA_FFI_Handler_Register_Args."""

    _fields_ = (
        ("name", ByteSpan),
        ("platform", ByteSpan),
        ("instantiate", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
        ("initialize", ctypes.c_void_p),
        ("execute", ctypes.c_void_p),
        ("traits", ctypes.c_uint32),
    )


class MessageArgs(Struct):
    """XLA_FFI_Error_GetMessage_Args; XLA_FFI_Error_Destroy_Args is its beginning."""

    _fields_ = (("error", ctypes.c_void_p), ("message", ctypes.c_char_p))


class ErrorCreateArgs(Struct):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int))


class ContextArgs(Struct):
    """Arguments of the functions that ask the execution context for one value, such as XLA_FFI_Stream_Get_Args."""

    _fields_ = (("context", ctypes.c_void_p), ("value", ctypes.c_void_p))


class DeviceOrdinalArgs(Struct):
    """XLA_FFI_DeviceOrdinal_Get_Args."""

    _fields_ = (("context", ctypes.c_void_p), ("device_ordinal", ctypes.c_int32))


class ScheduleArgs(Struct):
    """XLA_FFI_ThreadPool_Schedule_Args."""

    _fields_ = (("context", ctypes.c_void_p), ("task", ctypes.c_void_p), ("data", ctypes.c_void_p))


class Buffer(Struct):
    """XLA_FFI_Buffer."""

    _fields_ = (
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class Scalar(ctypes.Structure):
    """XLA_FFI_Scalar."""

    _fields_ = (("dtype", ctypes.c_int), ("value", ctypes.c_void_p))


class Array(ctypes.Structure):
    """XLA_FFI_Array."""

    _fields_ = (("dtype", ctypes.c_int), ("size", ctypes.c_size_t), ("data", ctypes.c_void_p))


class Buffers(Struct):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    )


class Attributes(Struct):
    """XLA_FFI_Attrs."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(ctypes.c_void_p)),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )


class CallFrame(Struct, counted="attributes"):
    """XLA_FFI_CallFrame."""

    _fields_ = (
        ("api", ctypes.POINTER(Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("operands", Buffers),
        ("results", Buffers),
        ("attributes", Attributes),
        ("future", ctypes.c_void_p),
    )
