#include "array.h"

#include <algorithm>
#include <cstdlib>

namespace inlay::bindings {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 60;
constexpr const char* kMisaligned = ": is not aligned to its element size";

Kind kind_of_format(const char* format) {
  if (format == nullptr) return Kind::kU8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return Kind::kOther;
  switch (format[0]) {
    case 'f':
      return Kind::kF32;
    case 'H':
      return Kind::kBf16;
    case 'i':
      return Kind::kI32;
    case 'I':
      return Kind::kU32;
    case 'l':
    case 'q':
      return Kind::kI64;
    case 'B':
    case '?':
      return Kind::kU8;
    case 'b':
      return Kind::kI8;
    default:
      return Kind::kOther;
  }
}

Kind kind_of_dlpack(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  const auto is = [&](Code code, int bits) {
    return type.lanes == 1 && type.bits == bits && type.code == static_cast<uint8_t>(code);
  };
  if (is(Code::Float, 32)) return Kind::kF32;
  if (is(Code::Bfloat, 16) || is(Code::UInt, 16)) return Kind::kBf16;
  if (is(Code::Int, 32)) return Kind::kI32;
  if (is(Code::UInt, 32)) return Kind::kU32;
  if (is(Code::Int, 64)) return Kind::kI64;
  if (is(Code::UInt, 8) || is(Code::Bool, 8)) return Kind::kU8;
  if (is(Code::Int, 8)) return Kind::kI8;
  return Kind::kOther;
}

int64_t item_bytes_of(Kind kind) {
  switch (kind) {
    case Kind::kF32:
    case Kind::kI32:
    case Kind::kU32:
      return 4;
    case Kind::kBf16:
      return 2;
    case Kind::kI64:
      return 8;
    default:
      return 1;
  }
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kF32:
      return "float32";
    case Kind::kBf16:
      return "bfloat16 (or its bits as uint16)";
    case Kind::kI32:
      return "int32";
    case Kind::kU32:
      return "uint32";
    case Kind::kI64:
      return "int64";
    case Kind::kU8:
      return "uint8";
    case Kind::kI8:
      return "int8";
    default:
      return "another dtype";
  }
}

Array::Array(nb::handle object, const char* name, int dims, Access access)
    : name_(name), dims_(dims) {
  try {
    if (PyObject_CheckBuffer(object.ptr()) != 0)
      take_buffer(object, dims, access);
    else
      take_dlpack(object, dims, access);
    finish();
  } catch (...) {
    release();  // the destructor does not run
    throw;
  }
}

Array::~Array() { release(); }

void Array::release() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

void Array::take_buffer(nb::handle object, int dims, Access access) {
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0 ||
      buffer_.itemsize < 1) {
    PyErr_Clear();
    fail(name_, ": its dtype or layout cannot be passed to a kernel");
  }
  if (buffer_.ndim != dims) fail(name_, ": must have ", dims, " dimensions, has ", buffer_.ndim);
  if (access == Access::kWrite && buffer_.readonly != 0) fail(name_, ": is read-only");
  kind_ = kind_of_format(buffer_.format);
  item_bytes_ = buffer_.itemsize;
  if (kind_ != Kind::kOther && item_bytes_ != item_bytes_of(kind_)) kind_ = Kind::kOther;
  data_ = buffer_.buf;
  for (int i = 0; i < dims; ++i) {
    const auto at = static_cast<std::size_t>(i);
    shape_[at] = buffer_.shape[i];
    if (buffer_.strides[i] % item_bytes_ != 0) fail(name_, kMisaligned);
    strides_[at] = buffer_.strides[i] / item_bytes_;
  }
}

void Array::take_dlpack(nb::handle object, int dims, Access access) {
  // Asked for as writable: only then does the exporter tell that it is not.
  nb::ndarray<> writable;
  if (access == Access::kWrite && nb::try_cast(object, writable, false) && writable.is_valid())
    dlpack_ = nb::ndarray<nb::ro>(writable);
  else if (!nb::try_cast(object, dlpack_, false) || !dlpack_.is_valid())
    fail(name_, ": must be a NumPy array or a torch CPU tensor, got ",
         Py_TYPE(object.ptr())->tp_name);
  else if (access == Access::kWrite)
    fail(name_, ": is read-only");
  if (dlpack_.device_type() != nb::device::cpu::value) fail(name_, ": must be in CPU memory");
  if (static_cast<int>(dlpack_.ndim()) != dims)
    fail(name_, ": must have ", dims, " dimensions, has ", dlpack_.ndim());
  kind_ = kind_of_dlpack(dlpack_.dtype());
  item_bytes_ = item_bytes_of(kind_);
  data_ = const_cast<void*>(dlpack_.data());
  for (int i = 0; i < dims; ++i) {
    const auto at = static_cast<std::size_t>(i);
    shape_[at] = static_cast<int64_t>(dlpack_.shape(at));
    strides_[at] = dlpack_.stride(at);
  }
}

void Array::finish() {
  if (reinterpret_cast<std::uintptr_t>(data_) % static_cast<uint64_t>(item_bytes_) != 0)
    fail(name_, kMisaligned);
  // Of the dimensions that are not empty: sizes and their products stay far from overflow.
  int64_t elements = 1;
  bool empty = false;
  for (int i = 0; i < dims_; ++i) {
    empty = empty || size(i) == 0;
    if (__builtin_mul_overflow(elements, std::max<int64_t>(size(i), 1), &elements) ||
        elements >= kMaxElements)
      fail(name_, ": has shape ", shape_text(), ", which is 2^60 elements or more");
  }
  int64_t contiguous = 1;
  for (int i = dims_ - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (shape_[at] <= 1 || empty) strides_[at] = contiguous;
    contiguous *= shape_[at];
  }
}

Extent Array::extent() const {
  const char* low = static_cast<const char*>(data_);
  const char* high = low + item_bytes_;
  for (int i = 0; i < dims_; ++i) {
    if (size(i) == 0) return {name_, nullptr, nullptr};
    const int64_t span = (size(i) - 1) * stride(i) * item_bytes_;
    (span < 0 ? low : high) += span;
  }
  return {name_, low, high};
}

std::string Array::shape_text() const {
  std::ostringstream text;
  text << "(";
  for (int i = 0; i < dims_; ++i) text << (i > 0 ? ", " : "") << size(i);
  text << ")";
  return text.str();
}

void Array::require_kind(Kind kind) const {
  if (kind_ != kind) fail(name_, ": must be ", kind_name(kind), ", is ", kind_name(kind_));
}

void Array::require_size(int dim, int64_t expected, const char* meaning) const {
  if (size(dim) != expected)
    fail(name_, ": has shape ", shape_text(), ", but dimension ", dim, " must be ", expected, " (",
         meaning, ")");
}

void Array::require_contiguous() const {
  int64_t expected = 1;
  for (int i = dims_ - 1; i >= 0; --i) {
    if (stride(i) != expected) fail(name_, ": must be contiguous");
    expected *= size(i);
  }
}

nb::object with_own_storage(nb::handle array) {
  if (PyObject_CheckBuffer(array.ptr()) != 0 || !nb::hasattr(array, "detach"))
    return nb::borrow(array);
  return array.attr("detach")();
}

kernels::ConstRows const_rows(const Array& array) {
  if (array.stride(1) != 1) fail(array.name(), ": the last dimension must be contiguous");
  return {array.as<const float>(Kind::kF32), array.size(0), array.size(1), array.stride(0)};
}

kernels::Rows rows(const Array& array) {
  if (array.stride(1) != 1) fail(array.name(), ": the last dimension must be contiguous");
  if (std::abs(array.stride(0)) < array.size(1)) fail(array.name(), ": its rows overlap");
  return {array.as<float>(Kind::kF32), array.size(0), array.size(1), array.stride(0)};
}

void require_heads_apart(const Array& out) {
  if (out.stride(2) != 1) fail(out.name(), ": the last dimension must be contiguous");
  const bool heads_meet = out.size(1) > 1 && out.stride(1) < out.size(2);
  const bool tokens_meet =
      out.size(0) > 1 && out.stride(0) < (out.size(1) - 1) * out.stride(1) + out.size(2);
  if (heads_meet || tokens_meet) fail(out.name(), ": its heads or tokens overlap");
}

kernels::SourceMatrix source_matrix(const Array& array) {
  if (array.kind() != Kind::kF32 && array.kind() != Kind::kBf16)
    fail(array.name(), ": must be float32 or bfloat16 (or its bits as uint16)");
  if (array.stride(1) != 1) fail(array.name(), ": the last dimension must be contiguous");
  return {array.name(),
          array.data(),
          array.kind() == Kind::kF32 ? kernels::DType::kF32 : kernels::DType::kBf16,
          array.size(0),
          array.size(1),
          array.stride(0)};
}

OptionalVector::OptionalVector(nb::handle object, const char* name, int64_t size) : name_(name) {
  if (object.is_none()) return;
  array_.emplace(object, name, 1);
  array_->require_size(0, size, "one value per column");
  array_->require_contiguous();
  data_ = array_->as<const float>(Kind::kF32);
}

kernels::DType parse_dtype(const std::string& dtype) {
  if (dtype == "float32") return kernels::DType::kF32;
  if (dtype == "bfloat16") return kernels::DType::kBf16;
  fail("dtype: must be 'float32' or 'bfloat16', got '", dtype, "'");
}

const char* dtype_name(kernels::DType dtype) {
  return dtype == kernels::DType::kF32 ? "float32" : "bfloat16";
}

void require_apart(const Extent& out, std::initializer_list<Extent> inputs) {
  for (const Extent& in : inputs)
    if (out.low < in.high && in.low < out.high) fail(out.name, ": shares memory with ", in.name);
}

}  // namespace inlay::bindings
