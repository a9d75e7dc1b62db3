// Transport fabric: libfabric's connected endpoints with remote memory access, one path per pair of
// ports. Tested with its tcp provider; verbs (InfiniBand, RoCE, eRDMA) takes the same calls.
//
// Reads are the initiator's: closing its endpoint is their fence. Writes land without the target's
// doing, so closing the *target's* endpoint is theirs: the initiator asks for it over a lane, and
// where it cannot, the target closes by itself (fabric_target.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport.h"

namespace inlay::transfer {

// What libfabric has on this machine, wherever an engine listens. Loads it: 0.3 s once.
struct FabricFound {
  std::string problem;             // why an engine that asks for nothing does not use it, or empty
  std::vector<std::string> ports;  // those in software too: "verbs mlx5_0", "tcp lo"
};
FabricFound find_fabric();

// Providers in software count only for engines that ask for the transport by name: they are slower
// than tcp. An engine on loopback has no others. What it cannot do here, problem() says: built
// without libfabric's headers, no library, no port.
std::unique_ptr<Transport> make_fabric(const Site& site);
// The same with another provider in software, whose endpoints have no connections as those of EFA:
// reliable datagrams over UDP.
std::unique_ptr<Transport> make_unconnected_fabric(const Site& site);

}  // namespace inlay::transfer
