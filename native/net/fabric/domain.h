// One network port as libfabric gives it, and memory that is registered there.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <cstddef>
#include <cstdint>
#include <memory>
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

// The ports that a provider ("verbs", "tcp") has here for remote memory access: by endpoints that
// it connects in pairs (FI_EP_MSG); where it has none, by those that reach whomever they know the
// address of (FI_EP_RDM) and confirm writes. `host`: only the port with this address; empty: all
// that lead to other hosts. None when there are none.
std::vector<Info> find_ports(const Library& library, const char* provider, const std::string& host);

// For people: "verbs mlx5_0".
std::string port_name(const fi_info& info);

// Bytes of an address of any provider, and more.
constexpr std::size_t kMaxAddress = 64;

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

class Domain {
 public:
  // Opens the port. Throws TransferFailure(kTransportUnavailable).
  Domain(const Library& library, Info info);

  const fi_info& info() const { return *info_; }
  std::string provider() const { return info_->fabric_attr->prov_name; }
  std::string name() const { return port_name(*info_); }
  // Bytes per second of the link; 0 where the provider does not say.
  double bandwidth() const;
  std::string device() const { return info_->domain_attr->name; }
  // The network that the port is on; those of one network reach each other.
  std::string network() const { return info_->fabric_attr->name; }
  // Its endpoints have connections.
  bool connected() const { return info_->ep_attr->type == FI_EP_MSG; }
  // A provider without a card of its own, which moves bytes by threads and sockets of this process.
  bool in_software() const { return info_->nic == nullptr; }
  // Once a region is closed nobody touches its memory. Else who had begun may go on until its
  // endpoint here is closed: so in software, and where endpoints have no connections, whose
  // providers may carry reads and writes out themselves where a card cannot.
  bool regions_fence() const { return connected() && !in_software(); }
  // Endpoints serve their peers by themselves, else only while somebody calls progress().
  bool serves_by_itself() const { return info_->domain_attr->data_progress == FI_PROGRESS_AUTO; }
  // A write completes when its bytes are in the remote memory; else a read has to follow it.
  bool confirms_writes() const { return (info_->tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0; }
  // Regions are addressed by the owner's pointers, else by offsets.
  bool addresses_are_virtual() const {
    return (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  }

  // Throws TransferFailure(kTransportUnavailable), e.g. where memory cannot be locked.
  MemoryRegion register_memory(std::byte* base, uint64_t size, RegionAccess access);

  const Library& library() const { return library_; }
  fid_fabric* fabric() const { return fabric_.get(); }
  fid_domain* domain() const { return domain_.get(); }

 private:
  const Library& library_;
  const Info info_;
  // In the order of making; closed the other way round.
  Handle<fid_fabric> fabric_;
  Handle<fid_domain> domain_;
};

// A copy of the descriptor that an object waits with. Throws TransferFailure.
Descriptor wait_descriptor(const Library& library, fid& object);

}  // namespace inlay::net::fabric
