// One network port as libfabric gives it: memory that is registered there, who asks to connect, and
// how connections begin and end.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "../socket.h"
#include "library.h"

namespace inlay::net::fabric {

struct Closer {
  template <typename Object>
  void operator()(Object* object) const {
    fi_close(&object->fid);
  }
};
template <typename Object>
using Handle = std::unique_ptr<Object, Closer>;

// The ports that a provider ("verbs", "tcp") has here for connected endpoints with remote memory
// access. `host`: only the port with this address; empty: all that lead to other hosts. None when
// there are none.
std::vector<Info> find_ports(const Library& library, const char* provider, const std::string& host);

// For people: "verbs mlx5_0".
std::string port_name(const fi_info& info);

// Memory of one domain. Once it is destroyed the hardware touches the memory no more; providers in
// software (see Domain::in_software()) may finish an access that had begun.
class MemoryRegion {
 public:
  explicit MemoryRegion(Handle<fid_mr> region) : region_(std::move(region)) {}
  void* descriptor() const { return fi_mr_desc(region_.get()); }
  uint64_t key() const { return fi_mr_key(region_.get()); }

 private:
  Handle<fid_mr> region_;
};

// What peers may do with a region.
struct RegionAccess {
  bool writable_here;
  bool remote_read;
  bool remote_write;
};

// Told on the thread that calls Domain::read_events(), without locks.
class DomainSink {
 public:
  // Somebody asks to connect and says `greeting`. Answered by Endpoint::accept() with this info, or
  // by Domain::refuse().
  virtual void on_request(Info info, std::span<const std::byte> greeting) = 0;
  // The endpoint is connected. `greeting` is the acceptor's, empty at the acceptor.
  virtual void on_connected(const fid* endpoint, std::span<const std::byte> greeting) = 0;
  // It is refused or unreachable, or its connection ended. The endpoint may be closed already.
  virtual void on_ended(const fid* endpoint) = 0;

 protected:
  ~DomainSink() = default;
};

class Domain {
 public:
  // Opens the port and listens there. Throws TransferFailure(kTransportUnavailable).
  Domain(const Library& library, Info info);

  const fi_info& info() const { return *info_; }
  std::string provider() const { return info_->fabric_attr->prov_name; }
  std::string name() const { return port_name(*info_); }
  // Bytes per second of the link; 0 where the provider does not say.
  double bandwidth() const;
  std::string device() const { return info_->domain_attr->name; }
  // The network that the port is on; those of one network reach each other.
  std::string network() const { return info_->fabric_attr->name; }
  // Where peers connect to.
  const std::vector<std::byte>& address() const { return address_; }
  // A provider that moves bytes by threads and sockets of this process.
  bool in_software() const;
  // A write completes when its bytes are in the remote memory; else a read has to follow it.
  bool confirms_writes() const { return (info_->tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0; }
  // Regions are addressed by the owner's pointers, else by offsets.
  bool addresses_are_virtual() const {
    return (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  }

  // Throws TransferFailure(kTransportUnavailable), e.g. where memory cannot be locked.
  MemoryRegion register_memory(std::byte* base, uint64_t size, RegionAccess access);

  // Readable when read_events() has something to do.
  const Descriptor& events() const { return events_; }
  // One thread at a time.
  void read_events(DomainSink& sink);
  void refuse(const fi_info& request);

  // The info of an endpoint that is to connect there.
  Info info_towards(std::span<const std::byte> address) const;
  const Library& library() const { return library_; }
  fid_fabric* fabric() const { return fabric_.get(); }
  fid_domain* domain() const { return domain_.get(); }
  fid_eq* event_queue() const { return event_queue_.get(); }

 private:
  bool read_event(DomainSink& sink);

  const Library& library_;
  const Info info_;
  // In the order of making; closed the other way round.
  Handle<fid_fabric> fabric_;
  Handle<fid_eq> event_queue_;
  Handle<fid_domain> domain_;
  Handle<fid_pep> listener_;
  Descriptor events_;
  std::vector<std::byte> address_;
  std::vector<std::byte> event_;  // the one that is read
};

// A copy of the descriptor that an object waits with. Throws TransferFailure.
Descriptor wait_descriptor(const Library& library, fid& object);

}  // namespace inlay::net::fabric
