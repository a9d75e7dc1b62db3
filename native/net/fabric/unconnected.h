// An endpoint that reaches whomever it is given the address of, and is reached by whoever knows its
// own (FI_EP_RDM). Two that know each other's are our substitute for a connection: one of either
// side for each other engine, so that closing it fences that engine and nobody else.
//
// Its provider moves nothing while nobody calls progress() and has no descriptor to wait with (that
// of EFA had none for long). So it is waited for with a clock: the descriptor becomes readable when
// it is time to look again, and never while nothing is under way.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "endpoint.h"

namespace inlay::net::fabric {

class UnconnectedEndpoint final : public Endpoint {
 public:
  // Throws TransferFailure(kTransportUnavailable).
  explicit UnconnectedEndpoint(Domain& domain);

  // For the other end.
  const std::vector<std::byte>& address() const { return address_; }
  // The other end, once. False: that is no address of this provider.
  [[nodiscard]] bool join(std::span<const std::byte> address);

  // The other end may be at work, and cannot go on without our progress().
  void attend(bool attending);
  bool may_sleep() override;

 private:
  void on_progress(int taken) override;
  void wake_in(std::chrono::nanoseconds pause);

  std::vector<std::byte> address_;
  bool attending_ = false;
  bool armed_ = false;
  std::size_t fruitless_ = 0;  // looks without a completion
};

}  // namespace inlay::net::fabric
