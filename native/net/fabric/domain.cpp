#include "domain.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "../../core/status.h"
#include "signal_actions.h"

namespace inlay::net::fabric {

namespace {

// Cards of EFA read and write remote memory themselves only for who knows 1.18.
constexpr uint32_t kUnconnectedVersion = FI_VERSION(1, 18);

Info make_hints(const Library& library, const char* provider, fi_ep_type endpoints) {
  Info hints(library.dupinfo(nullptr), InfoDeleter{&library});
  if (hints == nullptr) fail(library, "fi_dupinfo", -FI_ENOMEM);
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = endpoints;
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

// As find_ports(), of one kind of endpoints, that confirm writes or do not.
std::vector<Info> ports_with(const Library& library, const char* provider, const std::string& host,
                             fi_ep_type endpoints, uint64_t confirm) {
  const bool connected = endpoints == FI_EP_MSG;
  const uint32_t version =
      connected ? kApiVersion : std::min<uint32_t>(library.version(), kUnconnectedVersion);
  const Info hints = make_hints(library, provider, endpoints);
  hints->tx_attr->op_flags = confirm;
  // Between processes of one host a provider without connections may have the initiator copy into
  // our memory, and closing an endpoint here would not stop it.
  if (!connected && host.empty()) hints->caps |= FI_REMOTE_COMM;
  const SignalActions kept;  // the first such call starts the providers
  fi_info* found = nullptr;
  const int error = library.getinfo(version, host.empty() ? nullptr : host.c_str(), nullptr,
                                    host.empty() ? 0 : FI_SOURCE, hints.get(), &found);
  if (error != 0 || found == nullptr) return {};
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
  return ports;
}

}  // namespace

std::vector<Info> find_ports(const Library& library, const char* provider,
                             const std::string& host) {
  // Those that do not confirm writes are read from afterwards, which proves something only where
  // reads keep behind writes: not without a connection.
  constexpr std::array kinds{std::pair{FI_EP_MSG, uint64_t{FI_DELIVERY_COMPLETE}},
                             std::pair{FI_EP_MSG, uint64_t{0}},
                             std::pair{FI_EP_RDM, uint64_t{FI_DELIVERY_COMPLETE}}};
  std::vector<Info> ports;
  for (const auto& [endpoints, confirm] : kinds)
    if (ports.empty()) ports = ports_with(library, provider, host, endpoints, confirm);
  return ports;
}

Domain::Domain(const Library& library, Info info) : library_(library), info_(std::move(info)) {
  fid_fabric* fabric = nullptr;
  require(library_, "fi_fabric", library_.fabric(info_->fabric_attr, &fabric, nullptr));
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  require(library_, "fi_domain", fi_domain(fabric, info_.get(), &domain, nullptr));
  domain_.reset(domain);
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

Descriptor wait_descriptor(const Library& library, fid& object) {
  int fd = -1;
  require(library, "fi_control(FI_GETWAIT)", fi_control(&object, FI_GETWAIT, &fd));
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) fail(library, "fcntl(F_DUPFD_CLOEXEC)", -errno);
  return Descriptor(copy);
}

}  // namespace inlay::net::fabric
