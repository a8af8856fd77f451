// Checks of a handler's arguments, all with one form of message: `op: argument: expected X, got Y`.
//
// Python's fake function checks the same before XLA sees the graph; these guard the kernel against a caller that
// built the custom call some other way.
#pragma once

#include <cmath>
#include <initializer_list>
#include <sstream>
#include <string>

#include "pyxla/ffi/ffi.h"

/** Returns from the handler with the error of a failed check: `PYXLA_RETURN_IF_ERROR(CheckRank(...));` */
#define PYXLA_RETURN_IF_ERROR(check) \
  if (::xla::ffi::Error pyxla_error = (check); pyxla_error.failure()) return pyxla_error

namespace pyxla {

/** The error in the one form, for a check that is not below; `expected` and `got` are what an ostream prints. */
template <typename Expected, typename Got>
ffi::Error Mismatch(const char* op, const char* argument, const Expected& expected, const Got& got) {
  std::ostringstream message;
  message << op << ": " << argument << ": expected " << expected << ", got " << got;
  return ffi::Error::InvalidArgument(message.str());
}

/** Dimensions as Python writes a tuple: `(3, 5)`, `(7,)`. */
template <typename Dims>
std::string ShapeText(const Dims& dims) {
  std::string text = "(";
  size_t count = 0;
  for (int64_t dim : dims) text += (count++ ? ", " : "") + std::to_string(dim);
  return text + (count == 1 ? ",)" : ")");
}

/** torch's name of the dtype, so that C++ and Python say the same. */
inline const char* DtypeName(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::PRED: return "bool";
    case ffi::S8: return "int8";
    case ffi::S16: return "int16";
    case ffi::S32: return "int32";
    case ffi::S64: return "int64";
    case ffi::U8: return "uint8";
    case ffi::F16: return "float16";
    case ffi::BF16: return "bfloat16";
    case ffi::F32: return "float32";
    case ffi::F64: return "float64";
    case ffi::F8E4M3FN: return "float8_e4m3fn";
    case ffi::F8E5M2: return "float8_e5m2";
    default: return "another dtype";
  }
}

/** The buffer's dtype is one of `expected`. */
inline ffi::Error CheckDtype(const char* op, const char* argument, const ffi::AnyBuffer& buffer,
                             std::initializer_list<ffi::DataType> expected) {
  std::string names;
  for (ffi::DataType dtype : expected) {
    if (buffer.element_type() == dtype) return ffi::Error::Success();
    names += (names.empty() ? "" : " or ") + std::string(DtypeName(dtype));
  }
  return Mismatch(op, argument, "dtype " + names, DtypeName(buffer.element_type()));
}

/** The buffer has `expected` dimensions. */
inline ffi::Error CheckRank(const char* op, const char* argument, const ffi::AnyBuffer& buffer, size_t expected) {
  if (buffer.dimensions().size() == expected) return ffi::Error::Success();
  return Mismatch(op, argument, "rank " + std::to_string(expected), "shape " + ShapeText(buffer.dimensions()));
}

/** The buffer's dimensions are `expected`, a range of int64_t such as another buffer's. */
template <typename Dims>
ffi::Error CheckShape(const char* op, const char* argument, const ffi::AnyBuffer& buffer, const Dims& expected) {
  const auto dims = buffer.dimensions();
  if (std::equal(dims.begin(), dims.end(), expected.begin(), expected.end())) return ffi::Error::Success();
  return Mismatch(op, argument, "shape " + ShapeText(expected), ShapeText(dims));
}

/** The buffer's dimensions are these: `CheckShape(kOp, "weight", weight, {hidden})`. */
inline ffi::Error CheckShape(const char* op, const char* argument, const ffi::AnyBuffer& buffer,
                             std::initializer_list<int64_t> expected) {
  return CheckShape<std::initializer_list<int64_t>>(op, argument, buffer, expected);
}

/** A number that is finite and not negative, such as the eps of a norm. */
inline ffi::Error CheckNotNegative(const char* op, const char* argument, double value) {
  if (!std::isfinite(value)) return Mismatch(op, argument, "a finite number", value);
  if (value < 0) return Mismatch(op, argument, "a number that is not negative", value);
  return ffi::Error::Success();
}

/** An argument that the op updates in place is an operand and a result, in one buffer. */
inline ffi::Error CheckInPlace(const char* op, const char* argument, const ffi::AnyBuffer& operand,
                               const ffi::AnyBuffer& result) {
  PYXLA_RETURN_IF_ERROR(CheckDtype(op, argument, result, {operand.element_type()}));
  PYXLA_RETURN_IF_ERROR(CheckShape(op, argument, result, operand.dimensions()));
  if (operand.element_count() == 0 || operand.untyped_data() == result.untyped_data()) return ffi::Error::Success();
  return Mismatch(op, argument, "a result in the operand's buffer", "one in another buffer");
}

}  // namespace pyxla
