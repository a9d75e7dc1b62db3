#include "connected.h"

namespace inlay::net::fabric {

ConnectedEndpoint::ConnectedEndpoint(ConnectionManager& manager, const fi_info& info)
    : Endpoint(manager.domain(), info, FI_WAIT_FD), id_(&endpoint_->fid) {
  descriptor_ = wait_descriptor(domain_.library(), completions_->fid);
  bind("fi_ep_bind(eq)", manager.event_queue()->fid, 0);
  enable();
}

void ConnectedEndpoint::connect(std::span<const std::byte> address,
                                std::span<const std::byte> greeting) {
  require(domain_.library(), "fi_connect",
          fi_connect(endpoint_.get(), address.data(), greeting.data(), greeting.size()));
}

void ConnectedEndpoint::accept(std::span<const std::byte> greeting) {
  require(domain_.library(), "fi_accept",
          fi_accept(endpoint_.get(), greeting.data(), greeting.size()));
}

bool ConnectedEndpoint::may_sleep() {
  fid* waited = &completions_->fid;
  return fi_trywait(domain_.fabric(), &waited, 1) == FI_SUCCESS;
}

}  // namespace inlay::net::fabric
