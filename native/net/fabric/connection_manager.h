// The connection manager of a port whose endpoints are connected: who asks to connect, and how
// connections begin and end.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <cstddef>
#include <span>
#include <vector>

#include "domain.h"

namespace inlay::net::fabric {

// Told on the thread that calls ConnectionManager::read_events(), without locks.
class ConnectionSink {
 public:
  // Somebody asks to connect and says `greeting`. Answered by ConnectedEndpoint::accept() with this
  // info, or by ConnectionManager::refuse().
  virtual void on_request(Info info, std::span<const std::byte> greeting) = 0;
  // The endpoint is connected. `greeting` is the acceptor's, empty at the acceptor.
  virtual void on_connected(const fid* endpoint, std::span<const std::byte> greeting) = 0;
  // It is refused or unreachable, or its connection ended. The endpoint may be closed already.
  virtual void on_ended(const fid* endpoint) = 0;

 protected:
  ~ConnectionSink() = default;
};

class ConnectionManager {
 public:
  // Listens at a port with connected endpoints. Throws TransferFailure(kTransportUnavailable).
  explicit ConnectionManager(Domain& domain);

  // Where peers connect to.
  const std::vector<std::byte>& address() const { return address_; }

  // Readable when read_events() has something to do.
  const Descriptor& events() const { return events_; }
  // One thread at a time.
  void read_events(ConnectionSink& sink);
  void refuse(const fi_info& request);

  // The info of an endpoint that is to connect there.
  Info info_towards(std::span<const std::byte> address) const;
  Domain& domain() const { return domain_; }
  fid_eq* event_queue() const { return event_queue_.get(); }

 private:
  bool read_event(ConnectionSink& sink);

  Domain& domain_;
  // Closed the other way round.
  Handle<fid_eq> event_queue_;
  Handle<fid_pep> listener_;
  Descriptor events_;
  std::vector<std::byte> address_;
  std::vector<std::byte> event_;  // the one that is read
};

}  // namespace inlay::net::fabric
