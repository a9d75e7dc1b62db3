// The addresses of this machine, as the process's network has them.
#pragma once

#include <string>
#include <vector>

namespace inlay::net {

struct InterfaceAddress {
  std::string interface;
  std::string host;  // numeric, IPv6 link-local with its zone
  int prefix;        // bits of the network
};

// IPv4, then IPv6; none where the system does not tell. About 50 us.
std::vector<InterfaceAddress> interface_addresses();

}  // namespace inlay::net
