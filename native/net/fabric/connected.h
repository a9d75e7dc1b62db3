// An endpoint that the provider joins with another one: a connection.
#pragma once

#include <span>

#include "connection_manager.h"
#include "endpoint.h"

namespace inlay::net::fabric {

class ConnectedEndpoint final : public Endpoint {
 public:
  // By ConnectionManager::info_towards() of the initiator, by a request's info at the target.
  // Throws TransferFailure(kTransportUnavailable), as connect() and accept() do.
  ConnectedEndpoint(ConnectionManager& manager, const fi_info& info);

  // Every provider carries so much.
  static constexpr std::size_t kMaxGreeting = 48;
  // Each once, by one of the ends, which hear of the outcome by the manager's events. `greeting`
  // is what the other end is told, at most kMaxGreeting bytes.
  void connect(std::span<const std::byte> address, std::span<const std::byte> greeting);
  void accept(std::span<const std::byte> greeting);

  bool may_sleep() override;
  const fid* id() const { return id_; }

 private:
  const fid* id_;
};

}  // namespace inlay::net::fabric
