// Transport fabric: libfabric's connected endpoints with remote memory access, one path per pair of
// ports. Tested with its tcp provider; verbs (InfiniBand, RoCE, eRDMA) takes the same calls.
//
// Reads are the initiator's: closing its endpoint is their fence. Writes land without the target's
// doing, so closing the *target's* endpoint is theirs: the initiator asks for it over a lane, and
// where it cannot, the target closes by itself (fabric_target.h).
#pragma once

#include <memory>
#include <string>

#include "transport.h"

namespace inlay::transfer {

struct FabricOptions {
  // Where the engine listens: on a loopback address only providers in software do, and only there.
  // Empty: on every port.
  std::string host;
  // Somebody asked for this transport: providers in software count too. They are slower than tcp.
  bool by_name = false;
};

// What it cannot do here, problem() says: built without libfabric's headers, no library, no port.
std::unique_ptr<Transport> make_fabric(const Site& site, const FabricOptions& options);

}  // namespace inlay::transfer
