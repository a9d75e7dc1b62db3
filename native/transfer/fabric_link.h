// How the initiator's end of a fabric connection comes to be joined with the target's.
//
//   connected:    the provider's connection manager carries proofs of both ends (greeting.h)
//   unconnected:  addresses are exchanged over a lane, whose ends have proved themselves; then the
//                 target's landmark is read, since a lane says nothing of the fabric
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "../net/fabric/endpoint.h"
#include "../net/fabric/greeting.h"
#include "fabric_port.h"
#include "fabric_words.h"
#include "transport.h"

namespace inlay::transfer {

// One pair of ports, local and remote, of which the transport keeps a path alive.
struct FabricRail {
  std::shared_ptr<FabricPort> port;
  uint8_t remote_port = 0;  // in the offer
  FabricPortOffer remote;
  net::fabric::Meeting meeting;  // without the connection's number
  net::fabric::Info info;        // of endpoints with connections towards the remote port
  std::weak_ptr<PathOwner> peer;
};

// Its path locks.
class FabricLink {
 public:
  enum class Stage : uint8_t { kJoining, kJoined, kRefused };

  virtual ~FabricLink() = default;
  virtual net::fabric::Endpoint& endpoint() = 0;
  // What the target is to be asked. Nothing: `path` hears of the outcome. Throws TransferFailure.
  virtual std::optional<FabricQuestion> begin(const std::shared_ptr<FabricConnection>& path) = 0;
  // The target's words.
  virtual void hear(std::span<const std::byte> words) = 0;
  // The end of an operation whose owner is this link.
  virtual void on_completion(int error) = 0;
  // Where it has come to. After each turn of progress.
  virtual Stage look() = 0;
  virtual void close() = 0;
};

// `meeting`: with the connection's number. Throws TransferFailure(kTransportUnavailable).
std::unique_ptr<FabricLink> make_fabric_link(const std::shared_ptr<const FabricRail>& rail,
                                             const net::fabric::Meeting& meeting,
                                             const net::Token& token);

}  // namespace inlay::transfer
