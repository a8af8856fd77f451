// The table by which a library says what it holds. pyxla reads it through the one exported C symbol,
// `pyxla_op_table`, and mirrors this layout in pyxla/library/op_table.py: change both, and kOpTableVersion, together.
// Libraries outlive a release of pyxla: a new field is the last one, and no field changes (docs/concept/versions.md).
//
// The build sets PYXLA_WITH_CUDA, 1 with nvcc and else 0, PYXLA_IMPLEMENTATION_SUFFIX and PYXLA_NAMESPACE.
#pragma once

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <typeinfo>

#include "pyxla/ffi/triton_launch.h"
#include "pyxla/version.h"
#include "xla/ffi/api/c_api.h"

#ifndef PYXLA_WITH_CUDA
#define PYXLA_WITH_CUDA 0
#endif

// In the library of an implementation ("_triton"), so that the op's own source makes a target of its own there.
#ifndef PYXLA_IMPLEMENTATION_SUFFIX
#define PYXLA_IMPLEMENTATION_SUFFIX ""
#endif

// The namespace of the op in torch.ops.
#ifndef PYXLA_NAMESPACE
#define PYXLA_NAMESPACE "xla_gpu"
#endif

namespace pyxla {

/** Before the op's name in each target. */
inline constexpr char kTargetPrefix[] = PYXLA_NAMESPACE "_";

/** Of the layout below. */
inline constexpr int32_t kOpTableVersion = 4;

/** One target on one platform. A stage that is not used is null; `execute` never is. */
struct Handler {
  /** The custom_call_target in the HLO: `<namespace>_<op>`, of an implementation `<namespace>_<op>_<name>`. */
  const char* target;
  /** "Host" or "CUDA". */
  const char* platform;
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* prepare;
  XLA_FFI_Handler* initialize;
  XLA_FFI_Handler* execute;
};

/** What a library says of itself. */
struct OpTable {
  size_t struct_size;
  int32_t version;
  int32_t ffi_api_major;  // of the XLA FFI headers that the library was compiled with
  int32_t ffi_api_minor;
  const char* op;                  // or the folder of an implementation: "rms_norm_triton"
  const char* cuda_architectures;  // "80-real,90a-real,100-real,100-virtual", empty without CUDA code
  const char* source_digest;       // SHA-256 over the sources; pyxla/library/source_digest.py computes the same
  const char* flags_digest;        // SHA-256 over the text of the flags, which is in the manifest lib<op>.json
  const char* compiler;            // "GNU 12.2.0" or "GNU 12.2.0, NVIDIA 13.0.88"
  size_t handler_count;
  const Handler* handlers;
  TritonLaunch* triton_launch;  // for tests: see triton_launch.h
  const char* op_namespace;     // "xla_gpu"
};

// Written by the build into a file of its own (cmake/source_digest.cmake).
extern const char kSourceDigest[];

/** The error of XLA's for an exception that left a handler; `target` names the op. */
inline XLA_FFI_Error* ExceptionError(const XLA_FFI_CallFrame* frame, const char* target, const std::string& what) {
  const std::string message =
      std::string(target + sizeof(kTargetPrefix) - 1) + ": handler: expected no C++ exception, got " + what;
  XLA_FFI_Error_Create_Args arguments = {};
  arguments.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  arguments.message = message.c_str();
  arguments.errc = XLA_FFI_Error_Code_INTERNAL;
  return frame->api->XLA_FFI_Error_Create(&arguments);
}

/** Calls a handler and makes an error of an exception, which would end the process in XLA's C code. */
inline XLA_FFI_Error* CallHandler(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame, const char* target) {
  try {
    return handler(frame);
  } catch (const std::exception& exception) {
    char* name = abi::__cxa_demangle(typeid(exception).name(), nullptr, nullptr, nullptr);
    const std::string type = name ? name : typeid(exception).name();
    std::free(name);
    return ExceptionError(frame, target, type + ": " + exception.what());
  } catch (...) {
    return ExceptionError(frame, target, "one that is not a std::exception");
  }
}

}  // namespace pyxla

// Lines of the table, each with the op's own target. A host-only build leaves the CUDA lines out.

/** A stage of a handler, which returns an error for an exception; null stays null. */
#define PYXLA_STAGE(target, handler)                                                 \
  [] {                                                                               \
    constexpr XLA_FFI_Handler* stage = handler;                                      \
    XLA_FFI_Handler* const guarded = [](XLA_FFI_CallFrame* frame) {                  \
      return ::pyxla::CallHandler(stage, frame, target PYXLA_IMPLEMENTATION_SUFFIX); \
    };                                                                               \
    return stage == nullptr ? nullptr : guarded;                                     \
  }()

/** The line of a handler for XLA's CPU. */
#define PYXLA_HOST_HANDLER(target, execute) \
  {target PYXLA_IMPLEMENTATION_SUFFIX, "Host", nullptr, nullptr, nullptr, PYXLA_STAGE(target, execute)},
#if PYXLA_WITH_CUDA
/** The line of a handler for CUDA; nothing in a build without it. */
#define PYXLA_CUDA_HANDLER(target, execute) \
  {target PYXLA_IMPLEMENTATION_SUFFIX, "CUDA", nullptr, nullptr, nullptr, PYXLA_STAGE(target, execute)},
/** The same with the stages that XLA runs before; null is none. */
#define PYXLA_CUDA_HANDLER_STAGES(target, instantiate, prepare, initialize, execute) \
  {target PYXLA_IMPLEMENTATION_SUFFIX, "CUDA",                                       \
   PYXLA_STAGE(target, instantiate),   PYXLA_STAGE(target, prepare),                 \
   PYXLA_STAGE(target, initialize),    PYXLA_STAGE(target, execute)},
#else
#define PYXLA_CUDA_HANDLER(target, execute)
#define PYXLA_CUDA_HANDLER_STAGES(target, instantiate, prepare, initialize, execute)
#endif

/**
 * Defines the table of the library. Once per op, at file scope, no comma between the lines::
 *
 *   PYXLA_OP_TABLE(rms_norm, PYXLA_HOST_HANDLER("xla_gpu_rms_norm", kHost)
 *                            PYXLA_CUDA_HANDLER("xla_gpu_rms_norm", kCuda))
 */
#define PYXLA_OP_TABLE(op, handler_lines)                                                        \
  extern "C" __attribute__((visibility("default"))) const pyxla::OpTable* pyxla_op_table() {     \
    static const pyxla::Handler handlers[] = {handler_lines};                                    \
    static_assert(sizeof(handlers) > 0, "op table: expected a line for each handler, got none"); \
    static const pyxla::OpTable table = {sizeof(pyxla::OpTable),                                 \
                                         pyxla::kOpTableVersion,                                 \
                                         XLA_FFI_API_MAJOR,                                      \
                                         XLA_FFI_API_MINOR,                                      \
                                         #op PYXLA_IMPLEMENTATION_SUFFIX,                        \
                                         PYXLA_CUDA_ARCHITECTURES,                               \
                                         pyxla::kSourceDigest,                                   \
                                         PYXLA_FLAGS_DIGEST,                                     \
                                         PYXLA_COMPILER,                                         \
                                         sizeof(handlers) / sizeof(handlers[0]),                 \
                                         handlers,                                               \
                                         &pyxla::triton_launch,                                  \
                                         PYXLA_NAMESPACE};                                       \
    return &table;                                                                               \
  }
