// What calls of the store raise.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace inlay::store {

enum class [[nodiscard]] StoreStatus : uint8_t {
#define INLAY_STORE_STATUS(code, constant, python_class) constant = code,
#include "status.def"
#undef INLAY_STORE_STATUS
};

// The class of inlay.core.errors; empty for kOk.
inline const char* python_class(StoreStatus status) {
  switch (status) {
#define INLAY_STORE_STATUS(code, constant, python_class) \
  case StoreStatus::constant:                            \
    return python_class;
#include "status.def"
#undef INLAY_STORE_STATUS
  }
  return "StoreError";
}

// The bindings raise it as the status's class of inlay.core.errors.
class StoreFailure : public std::runtime_error {
 public:
  StoreFailure(StoreStatus status, const std::string& text)
      : std::runtime_error(text), status(status) {}

  StoreStatus status;
};

}  // namespace inlay::store
