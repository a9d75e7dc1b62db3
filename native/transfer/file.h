// Transport file: between memory and file segments of this engine. What peers ask of them, the
// Server stages.
#pragma once

#include <memory>
#include <string_view>

#include "transport.h"

namespace inlay::transfer {

class FileTransport final : public Transport {
 public:
  explicit FileTransport(const Site& site) : site_(site) {}

  std::string_view name() const override { return "file"; }
  Bytes attach(Segment&) override { return {}; }
  // Moves are users of the segment, which its owner waits for.
  bool detach(Segment&, Clock::time_point) override { return true; }
  Bytes offer() override { return {}; }
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override;
  void close() override {}

 private:
  const Site site_;
};

}  // namespace inlay::transfer
