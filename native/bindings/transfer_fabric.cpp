// What libfabric has here, for `inlay doctor`.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../transfer/fabric.h"
#include "transfer.h"

namespace inlay::bindings {

void register_transfer_fabric(nb::module_& m) {
  m.def("find_fabric", [] {
    transfer::FabricFound found;
    {
      const nb::gil_scoped_release unlocked;  // loading takes a while
      found = transfer::find_fabric();
    }
    return nb::make_tuple(found.problem, found.ports);
  });
}

}  // namespace inlay::bindings
