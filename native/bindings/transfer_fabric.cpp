// What libfabric and CUDA have here, for `inlay doctor`.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../transfer/cuda.h"
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
  m.def("find_cuda", [] {
    transfer::CudaFound found;
    {
      const nb::gil_scoped_release unlocked;
      found = transfer::find_cuda();
    }
    return nb::make_tuple(found.problem, found.devices);
  });
}

}  // namespace inlay::bindings
