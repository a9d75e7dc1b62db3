// Transports from shared libraries: inlay/transport.h behind transport.h.
#pragma once

#include <memory>
#include <string>

#include "transport.h"

namespace inlay::transfer {

struct Plugin {
  std::string name;          // of its transport; empty: as the library says
  std::string library;       // its file
  std::string problem = {};  // why there is no library
};

// Never null, and throws nothing: problem() says why it cannot be used. A library that was loaded
// once stays.
std::unique_ptr<Transport> make_plugin(const Site& site, const Plugin& plugin);

}  // namespace inlay::transfer
