// Array arguments: NumPy arrays (buffer protocol) and torch CPU tensors (DLPack), checked, borrowed
// for the duration of a call.
//
// The buffer protocol is read directly because it costs about 0.1 us per array; DLPack costs
// several times that, most of it inside torch.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string>

#include "../core/errors.h"
#include "../kernels/operators.h"

namespace inlay::bindings {

namespace nb = nanobind;

template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw ArgumentError(joined(parts...));
}

enum class Kind { kF32, kBf16, kI32, kU32, kI64, kU8, kI8, kOther };  // kU8: bool too

const char* kind_name(Kind kind);

enum class Access { kRead, kWrite };

// Where the elements of an argument lie: [low, high), null when it has none.
struct Extent {
  const char* name;
  const char* low;
  const char* high;
};

// Throws when writing `out` could change one of `inputs` after it was checked or while it is read.
void require_apart(const Extent& out, std::initializer_list<Extent> inputs);

class Array {
 public:
  static constexpr int kMaxDims = 4;

  // Throws ArgumentError naming `name` unless `object` is an array of `dims` dimensions that is
  // aligned and, for kWrite, writable, with fewer than 2^60 elements. uint16 arrays count as bf16.
  Array(nb::handle object, const char* name, int dims, Access access = Access::kRead);
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const char* name() const { return name_; }
  Kind kind() const { return kind_; }
  int dims() const { return dims_; }
  int64_t size(int dim) const { return shape_[static_cast<std::size_t>(dim)]; }
  // In elements. Dimensions of size 0 or 1 have the stride of a contiguous array.
  int64_t stride(int dim) const { return strides_[static_cast<std::size_t>(dim)]; }
  std::string shape_text() const;
  Extent extent() const;

  void require_kind(Kind kind) const;
  void require_size(int dim, int64_t size, const char* meaning) const;
  void require_contiguous() const;

  template <typename T>
  T* as(Kind kind) const {
    require_kind(kind);
    return static_cast<T*>(data_);
  }
  void* data() const { return data_; }

 private:
  void take_buffer(nb::handle object, int dims, Access access);
  void take_dlpack(nb::handle object, int dims, Access access);
  void finish();
  void release();

  const char* name_;
  int dims_ = 0;
  int64_t item_bytes_ = 1;
  void* data_ = nullptr;
  Kind kind_ = Kind::kOther;
  std::array<int64_t, kMaxDims> shape_{};
  std::array<int64_t, kMaxDims> strides_{};
  Py_buffer buffer_{};
  nb::ndarray<nb::ro> dlpack_;
};

// For a call that goes on after it returns: DLPack keeps a torch tensor alone, which lets go of its
// storage at `tensor.data = other`. This gives one of the same storage, and other objects as they
// are.
nb::object with_own_storage(nb::handle array);

// A matrix of fp32 rows with contiguous columns.
kernels::ConstRows const_rows(const Array& array);
kernels::Rows rows(const Array& array);

// Throws unless no two of the heads that are written, `[tokens][heads][elements]`, share memory and
// each is contiguous.
void require_heads_apart(const Array& out);

// A weight matrix, fp32 or bf16, with contiguous columns.
kernels::SourceMatrix source_matrix(const Array& array);

// A contiguous fp32 vector of the given size, or null for None.
class OptionalVector {
 public:
  OptionalVector(nb::handle object, const char* name, int64_t size);
  const char* name() const { return name_; }
  const float* data() const { return data_; }
  Extent extent() const { return array_ ? array_->extent() : Extent{name_, nullptr, nullptr}; }

 private:
  const char* name_;
  std::optional<Array> array_;
  const float* data_ = nullptr;
};

kernels::DType parse_dtype(const std::string& dtype);
const char* dtype_name(kernels::DType dtype);

}  // namespace inlay::bindings
