#include "domain.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "../../core/status.h"

namespace inlay::net::fabric {

namespace {

constexpr std::size_t kMaxAddress = 64;
constexpr std::size_t kMaxEvent = sizeof(fi_eq_cm_entry) + 1024;

Info make_hints(const Library& library, const char* provider) {
  Info hints(library.dupinfo(nullptr), InfoDeleter{&library});
  if (hints == nullptr) fail(library, "fi_dupinfo", -FI_ENOMEM);
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_MSG;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup(provider);  // freed with the hints
  return hints;
}

// Of the same host, or of one link that addresses have to name.
bool leads_nowhere(const fi_info& info) {
  const std::string network = info.fabric_attr->name;
  return network.starts_with("127.") || network.starts_with("::1/") || network.starts_with("fe80:");
}

}  // namespace

std::vector<Info> find_ports(const Library& library, const char* provider,
                             const std::string& host) {
  // First those that confirm writes, which is the better way; then those that do not.
  for (const uint64_t confirm : {uint64_t{FI_DELIVERY_COMPLETE}, uint64_t{0}}) {
    const Info hints = make_hints(library, provider);
    hints->tx_attr->op_flags = confirm;
    fi_info* found = nullptr;
    const int error = library.getinfo(kApiVersion, host.empty() ? nullptr : host.c_str(), nullptr,
                                      host.empty() ? 0 : FI_SOURCE, hints.get(), &found);
    if (error != 0 || found == nullptr) continue;
    const Info list(found, InfoDeleter{&library});
    std::vector<Info> ports;
    for (const fi_info* info = found; info != nullptr; info = info->next) {
      // Providers also list what they are layered under, and a port once for each of its addresses.
      const auto same = [&](const Info& known) {
        return std::strcmp(known->domain_attr->name, info->domain_attr->name) == 0;
      };
      if (std::strcmp(info->fabric_attr->prov_name, provider) != 0 ||
          std::ranges::any_of(ports, same) || (host.empty() && leads_nowhere(*info)))
        continue;
      ports.emplace_back(library.dupinfo(info), InfoDeleter{&library});
    }
    if (!ports.empty()) return ports;
  }
  return {};
}

Domain::Domain(const Library& library, Info info)
    : library_(library), info_(std::move(info)), event_(kMaxEvent) {
  fid_fabric* fabric = nullptr;
  require(library_, "fi_fabric", library_.fabric(info_->fabric_attr, &fabric, nullptr));
  fabric_.reset(fabric);
  fi_eq_attr attributes{};
  attributes.wait_obj = FI_WAIT_FD;
  fid_eq* event_queue = nullptr;
  require(library_, "fi_eq_open", fi_eq_open(fabric, &attributes, &event_queue, nullptr));
  event_queue_.reset(event_queue);
  events_ = wait_descriptor(library_, event_queue->fid);
  fid_domain* domain = nullptr;
  require(library_, "fi_domain", fi_domain(fabric, info_.get(), &domain, nullptr));
  domain_.reset(domain);
  fid_pep* listener = nullptr;
  require(library_, "fi_passive_ep", fi_passive_ep(fabric, info_.get(), &listener, nullptr));
  listener_.reset(listener);
  require(library_, "fi_pep_bind", fi_pep_bind(listener, &event_queue->fid, 0));
  require(library_, "fi_listen", fi_listen(listener));
  address_.resize(kMaxAddress);
  std::size_t size = address_.size();
  require(library_, "fi_getname", fi_getname(&listener->fid, address_.data(), &size));
  address_.resize(size);
}

std::string port_name(const fi_info& info) {
  return std::string(info.fabric_attr->prov_name) + " " + info.domain_attr->name;
}

double Domain::bandwidth() const {
  const fid_nic* nic = info_->nic;
  return nic == nullptr || nic->link_attr == nullptr
             ? 0
             : static_cast<double>(nic->link_attr->speed) / 8;
}

bool Domain::in_software() const { return provider() != "verbs"; }

MemoryRegion Domain::register_memory(std::byte* base, uint64_t size, RegionAccess access) {
  uint64_t flags = FI_WRITE;
  if (access.writable_here) flags |= FI_READ;
  if (access.remote_read) flags |= FI_REMOTE_READ;
  if (access.remote_write) flags |= FI_REMOTE_WRITE;
  // Where keys are ours to choose they are hard to guess, and none is used twice.
  constexpr int kTries = 8;
  for (int i = 0;; ++i) {
    std::array<std::byte, sizeof(uint64_t)> random;
    fill_random(random);
    uint64_t key;
    std::memcpy(&key, random.data(), sizeof(key));
    const std::size_t key_bytes = info_->domain_attr->mr_key_size;
    if (key_bytes < sizeof(key)) key &= (uint64_t{1} << (8 * key_bytes)) - 1;
    fid_mr* region = nullptr;
    const int error = fi_mr_reg(domain_.get(), base, size, flags, 0, key, 0, &region, nullptr);
    if (error == 0) return MemoryRegion(Handle<fid_mr>(region));
    if (error != -FI_ENOKEY || i == kTries)
      throw TransferFailure(
          Status::kTransportUnavailable,
          "fabric: " + std::to_string(size) + " bytes cannot be registered with " + name() + ": " +
              error_text(library_, "fi_mr_reg", error) +
              (error == -FI_ENOMEM ? "; raise the limit of locked memory (ulimit -l)" : ""));
  }
}

void Domain::read_events(DomainSink& sink) {
  // The descriptor stays readable until the library was asked whether one may wait for it.
  fid* waited = &event_queue_->fid;
  constexpr int kMaxTurns = 16;  // the descriptor tells of what is left
  for (int i = 0; i < kMaxTurns; ++i) {
    while (read_event(sink)) {
    }
    if (fi_trywait(fabric_.get(), &waited, 1) == FI_SUCCESS) return;
  }
}

bool Domain::read_event(DomainSink& sink) {
  uint32_t kind = 0;
  const ssize_t size = fi_eq_read(event_queue_.get(), &kind, event_.data(), event_.size(), 0);
  if (size == -FI_EAVAIL) {
    fi_eq_err_entry error{};
    if (fi_eq_readerr(event_queue_.get(), &error, 0) < 0) return false;
    if (error.fid != nullptr) sink.on_ended(error.fid);
    return true;
  }
  if (size < static_cast<ssize_t>(sizeof(fi_eq_cm_entry))) return size > 0;
  const auto* entry = reinterpret_cast<const fi_eq_cm_entry*>(event_.data());
  const std::span greeting =
      std::span(event_).first(static_cast<std::size_t>(size)).subspan(sizeof(fi_eq_cm_entry));
  if (kind == FI_CONNREQ)
    sink.on_request(Info(entry->info, InfoDeleter{&library_}), greeting);
  else if (kind == FI_CONNECTED)
    sink.on_connected(entry->fid, greeting);
  else if (kind == FI_SHUTDOWN)
    sink.on_ended(entry->fid);
  return true;
}

void Domain::refuse(const fi_info& request) {
  fi_reject(listener_.get(), request.handle, nullptr, 0);
}

Info Domain::info_towards(std::span<const std::byte> address) const {
  Info hints(library_.dupinfo(info_.get()), InfoDeleter{&library_});
  if (hints == nullptr) fail(library_, "fi_dupinfo", -FI_ENOMEM);
  hints->handle = nullptr;
  hints->dest_addr = std::malloc(address.size());  // freed with the hints
  if (hints->dest_addr == nullptr) fail(library_, "fi_dupinfo", -FI_ENOMEM);
  std::memcpy(hints->dest_addr, address.data(), address.size());
  hints->dest_addrlen = address.size();
  fi_info* found = nullptr;
  require(library_, "fi_getinfo",
          library_.getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found));
  return {found, InfoDeleter{&library_}};
}

Descriptor wait_descriptor(const Library& library, fid& object) {
  int fd = -1;
  require(library, "fi_control(FI_GETWAIT)", fi_control(&object, FI_GETWAIT, &fd));
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) fail(library, "fcntl(F_DUPFD_CLOEXEC)", -errno);
  return Descriptor(copy);
}

}  // namespace inlay::net::fabric
