// A port of this machine with what hangs on it: its events, its connections, its registrations.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../net/fabric/connection_manager.h"
#include "../net/loop.h"
#include "fabric_words.h"
#include "segment.h"

namespace inlay::transfer {

// An end of a connection, told on the loop's thread.
class FabricConnection {
 public:
  virtual ~FabricConnection() = default;
  virtual void on_connected(std::span<const std::byte> greeting) = 0;
  virtual void on_ended() = 0;
};

class FabricPort final : public net::Handler,
                         public std::enable_shared_from_this<FabricPort>,
                         private net::fabric::ConnectionSink {
 public:
  using Request = std::function<void(const std::shared_ptr<FabricPort>&, const fi_info&,
                                     std::span<const std::byte> greeting)>;

  // `drop_late` closes what must not move once its lease is over. Throws
  // TransferFailure(kTransportUnavailable).
  FabricPort(net::Loop& loop, uint8_t index, const net::fabric::Library& library,
             net::fabric::Info info, Request on_request, std::function<void()> drop_late);

  net::fabric::Domain domain;
  std::optional<net::fabric::ConnectionManager> manager;  // of a domain with connections
  const uint8_t index;                                    // in the offer
  const std::string interface;                            // its network card; empty: it has none
  // To be called before the provider is, for whatever end of this port, while its transport lives;
  // see fabric_target.h.
  const std::function<void()> drop_late;

  FabricPortOffer offer() const;
  // What an end without a connection tells the other.
  FabricWelcome welcome(const std::vector<std::byte>& address) const;
  // Registers with the loop, and the reverse.
  void start();
  void stop();

  // Of any thread.
  void add(const fid* endpoint, const std::shared_ptr<FabricConnection>& connection);
  void forget(const fid* endpoint);

  bool on_events(uint32_t events) override;

 private:
  void on_request(net::fabric::Info info, std::span<const std::byte> greeting) override;
  void on_connected(const fid* endpoint, std::span<const std::byte> greeting) override;
  void on_ended(const fid* endpoint) override;
  std::shared_ptr<FabricConnection> find(const fid* endpoint);

  net::Loop& loop_;
  net::Loop::Id loop_id_ = 0;
  const Request on_request_;
  FabricLandmark landmark_{};
  std::optional<net::fabric::MemoryRegion> landmark_region_;  // of a domain without connections
  std::mutex mutex_;
  std::unordered_map<const fid*, std::weak_ptr<FabricConnection>> connections_;
};

// The registrations of segments with the ports. Any thread. What peers reach and what local
// operations name are registered apart: the first ends when a segment is closed, the second when
// nobody uses it.
class FabricMemory {
 public:
  explicit FabricMemory(const std::vector<std::shared_ptr<FabricPort>>& ports) : ports_(ports) {}

  // Registers a segment for peers with all ports; the keys of those that took it.
  std::vector<FabricKey> share(const Segment& segment);
  // Peers begin nothing more with it; false when they never could.
  bool unshare(const Segment& segment);
  // What local operations on the segment name at that port; registered at the first call. Null
  // where the provider needs none. Throws TransferFailure(kTransportUnavailable).
  void* descriptor(const Segment& segment, const FabricPort& port);
  void forget(const Segment& segment);
  void clear();

 private:
  using Regions = std::map<uint8_t, net::fabric::MemoryRegion>;  // by port
  using Name = std::pair<uint32_t, uint32_t>;                    // slot and epoch

  bool remove(std::map<Name, Regions>& from, const Segment& segment);

  const std::vector<std::shared_ptr<FabricPort>>& ports_;
  std::mutex mutex_;
  std::map<Name, Regions> shared_;
  std::map<Name, Regions> local_;
};

}  // namespace inlay::transfer
