// Transport local: between two engines of one process, and from an engine to itself.
#pragma once

#include <memory>
#include <string>

#include "../net/copy_crew.h"
#include "door.h"
#include "transport.h"

namespace inlay::transfer {

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(Site site);
  ~LocalTransport() override;

  std::string_view name() const override { return "local"; }
  Bytes attach(Segment& segment) override;
  // Copies are users of the segment, which its owner waits for.
  bool detach(Segment&, Clock::time_point) override { return true; }
  Bytes offer() override;
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override;
  void close() override;

 private:
  const Site site_;
  net::CopyCrew crew_;
  const std::shared_ptr<Door> door_;
};

}  // namespace inlay::transfer
