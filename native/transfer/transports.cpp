#include "transports.h"

#include <algorithm>
#include <array>

#include "../core/errors.h"
#include "../net/bytes.h"
#include "fabric.h"
#include "file.h"
#include "local.h"
#include "shm.h"

namespace inlay::transfer {

namespace {

constexpr std::size_t kMaxOfferBytes = 16384;
constexpr const char* kTaken = "another transport has its name";

template <typename One>
std::unique_ptr<Transport> make(const Site& site) {
  return std::make_unique<One>(site);
}

// One line for each, the preferred first among equals.
constexpr std::array kAll = {
    std::pair{"local", &make<LocalTransport>}, std::pair{"shm", &make<ShmTransport>},
    std::pair{"file", &make<FileTransport>},   std::pair{"tcp", &make<TcpTransport>},
    std::pair{"fabric", &make_fabric},         std::pair{"cuda", &make<CudaTransport>},
};

}  // namespace

Transports::Transports(const Site& site, const std::vector<std::string>& wanted,
                       const std::vector<Plugin>& plugins) {
  std::vector<std::string> names;
  for (const auto& one : kAll) names.emplace_back(one.first);
  std::vector<Plugin> others;
  for (const Plugin& plugin : plugins) {
    if (std::ranges::find(names, plugin.name) != names.end()) {
      problems_.push_back({plugin.name + " of " + plugin.library, kTaken});
      continue;
    }
    if (!plugin.name.empty()) names.push_back(plugin.name);
    others.push_back(plugin);
  }
  for (const std::string& name : wanted) {
    if (std::ranges::find(names, name) != names.end()) continue;
    std::string known;
    for (const std::string& one : names) known += (known.empty() ? "'" : ", '") + one + "'";
    throw ArgumentError("transports: must be of " + known + ", got '" + name + "'");
  }
  const auto is_wanted = [&](std::string_view name) {
    if (wanted.empty() || std::ranges::find(wanted, name) != wanted.end()) return true;
    problems_.push_back({std::string(name), "not among the transports that were asked for"});
    return false;
  };
  for (const auto& [name, make_one] : kAll)
    if (is_wanted(name)) add(make_one(site), !wanted.empty());
  for (const Plugin& plugin : others)
    if (plugin.name.empty() || is_wanted(plugin.name))
      add(make_plugin(site, plugin), plugin.name.empty() || !wanted.empty());
  tcp_ = static_cast<TcpTransport*>(find("tcp"));
  if (tcp_ != nullptr) return;
  unused_tcp_ = std::make_unique<TcpTransport>(site);
  tcp_ = unused_tcp_.get();
}

void Transports::add(std::unique_ptr<Transport> transport, bool required) {
  const std::string name(transport->name());
  std::string problem = transport->problem();
  if (problem.empty() && find(name) != nullptr) problem = kTaken;
  if (problem.empty() && used_.size() == net::kMaxTransports)
    problem = "there are " + std::to_string(net::kMaxTransports) + " transports already";
  if (problem.empty()) {
    used_.push_back(std::move(transport));
  } else if (required) {
    throw TransferFailure(Status::kTransportUnavailable,
                          "transport '" + name + "' does not work here: " + problem);
  } else {
    problems_.push_back({name, problem});
  }
}

void Transports::require(std::string_view name) const {
  if (find(name) != nullptr) return;
  const auto found = std::ranges::find(problems_, name, &Problem::transport);
  throw TransferFailure(Status::kTransportUnavailable,
                        "this needs transport " + std::string(name) + ": " +
                            (found == problems_.end() ? "there is none" : found->text));
}

CudaTransport& Transports::cuda() const {
  require(CudaTransport::kName);
  return static_cast<CudaTransport&>(*find(CudaTransport::kName));
}

Transport* Transports::find(std::string_view name) const {
  const auto found =
      std::ranges::find(used_, name, [](const auto& transport) { return transport->name(); });
  return found == used_.end() ? nullptr : found->get();
}

std::vector<Transports::Problem> Transports::problems() const {
  std::vector<Problem> all = problems_;
  for (const auto& transport : used_)
    all.push_back({std::string(transport->name()), transport->problem()});
  return all;
}

void Transports::attach(Segment& segment) {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    try {
      Bytes key = used_[i]->attach(segment);
      if (!key.empty()) segment.keys.push_back({std::string(used_[i]->name()), std::move(key)});
    } catch (...) {
      while (i-- > 0) used_[i]->detach(segment, Clock::time_point::max());
      throw;
    }
  }
}

bool Transports::detach(Segment& segment, Clock::time_point until) {
  bool all = true;
  for (const auto& transport : used_) all &= transport->detach(segment, until);
  return all;
}

// For each: {u8 name's bytes, u8 0, u16 offer's bytes, name, offer}.
Bytes Transports::offers() {
  Bytes all;
  for (const auto& transport : used_) {
    const Bytes offer = transport->offer();
    if (offer.size() > kMaxOfferBytes) continue;
    const auto name = std::as_bytes(std::span(transport->name()));
    std::byte sizes[4]{};
    net::store(sizes, static_cast<uint8_t>(name.size()));
    net::store(sizes + 2, static_cast<uint16_t>(offer.size()));
    all.insert(all.end(), sizes, sizes + 4);
    all.insert(all.end(), name.begin(), name.end());
    all.insert(all.end(), offer.begin(), offer.end());
  }
  return all;
}

void Transports::connect(const std::shared_ptr<Peer>& peer, std::span<const std::byte> offers,
                         Clock::time_point end) {
  while (offers.size() >= 4) {
    const std::size_t name_bytes = net::load<uint8_t>(offers.data());
    const std::size_t offer_bytes = net::load<uint16_t>(offers.data() + 2);
    offers = offers.subspan(4);
    if (offers.size() < name_bytes + offer_bytes) return;
    const std::string_view name(reinterpret_cast<const char*>(offers.data()), name_bytes);
    Transport* const transport = find(name);
    if (transport != nullptr) {
      Transport::Connected made =
          transport->connect(peer, offers.subspan(name_bytes, offer_bytes), end);
      for (auto& path : made.paths) peer->add(std::move(path));
      if (!made.problem.empty()) peer->note_problem(name, std::move(made.problem));
    }
    offers = offers.subspan(name_bytes + offer_bytes);
  }
}

Transport::Answer Transports::answer(const net::EngineId& from,
                                     std::span<const std::byte> question) {
  net::Question asked;
  if (!net::decode(question, asked)) return {Status::kProtocol, {}};
  if (asked.transport.empty()) return {Status::kOk, offers()};
  if (asked.transport == tcp_->name()) return tcp_->answer(from, asked.body);
  Transport* const transport = find(asked.transport);
  if (transport == nullptr) return {Status::kTransportUnavailable, {}};
  return transport->answer(from, asked.body);
}

Clock::time_point Transports::tick(Clock::time_point now) {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& transport : used_) next = std::min(next, transport->tick(now));
  return next;
}

void Transports::close() {
  for (const auto& transport : used_) transport->close();
}

}  // namespace inlay::transfer
