// Outcomes of transfers: a status on data paths, TransferFailure where a call raises.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace inlay {

enum class [[nodiscard]] Status : uint16_t {
#define INLAY_STATUS(code, constant, python_class) constant = code,
#include "status.def"
#undef INLAY_STATUS
};

// The class of inlay.core.errors; empty for kOk; null for a code that this version does not know.
const char* python_class(Status status);

// What the bindings raise as the status's class.
class TransferFailure : public std::runtime_error {
 public:
  // Empty: the error is not about a segment, not about a peer.
  TransferFailure(Status status, const std::string& text, std::string segment = {},
                  std::string peer = {})
      : std::runtime_error(text),
        status(status),
        segment(std::move(segment)),
        peer(std::move(peer)) {}

  Status status;
  std::string segment;
  std::string peer;
  // Whether nothing can land in remote memory any more, for kTimeout and kCancelled.
  std::optional<bool> remote_settled;
  // The system's errno, for kStorageFull and kFile; 0: not known.
  int system_error = 0;
};

}  // namespace inlay
