// A master that listens: its thread, and the connections of clients and nodes.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "../net/acceptor.h"
#include "../net/loop.h"
#include "frames.h"
#include "master.h"

namespace inlay::store {

using net::Clock;

struct MasterServerOptions {
  std::string listen = "127.0.0.1:0";
  struct Tenant {
    net::Token token;
    std::string name;
  };
  std::vector<Tenant> tenants;  // whoever proves a token sees this one's keys
  MasterOptions master;
  int spin_us = 50;
  double serve_until_s = std::numeric_limits<double>::infinity();  // see serve_until()
};

class ServedClient;

class MasterServer {
 public:
  // Throws what listen_at() and Master throw, and ArgumentError for tokens: none, or two alike.
  explicit MasterServer(MasterServerOptions options);
  ~MasterServer() { stop(); }
  MasterServer(const MasterServer&) = delete;
  MasterServer& operator=(const MasterServer&) = delete;

  const std::string& address() const { return address_; }
  // Closes all connections. Idempotent.
  void stop();

  // Answers until then, in seconds of CLOCK_BOOTTIME, and nothing later: the connections that ask
  // end. Looked at before each question and before each answer is sent, so that a process that was
  // stopped in between says nothing.
  void serve_until(double boot_s) { until_.store(boot_s, std::memory_order_relaxed); }
  // The greatest epoch that a client or node has told of; above the master's own, this one is to
  // end.
  uint32_t epoch_seen() const { return epoch_seen_.load(std::memory_order_relaxed); }

  // Asked of all tenants, on the master's thread.
  Survey::Answer survey();
  // As a client of that tenant would: an administrator's way. None: there is no such tenant.
  std::optional<Answer> ask(const std::string& tenant, const Question& question);

  struct Counts {
    uint64_t connections = 0;
    uint64_t refused_token = 0;
    uint64_t refused_version = 0;
    uint64_t garbage = 0;
    uint64_t crowded = 0;
  };

 private:
  friend class ServedClient;
  class Door;

  static Millis now_ms();
  template <typename Result>
  Result run(std::function<Result()> work);
  bool may_serve() const;
  // Of those that no run of masters comes to nothing is believed: it would use epochs up.
  void see_epoch(uint32_t epoch) {
    if (epoch - std::min(epoch, master_.terms().epoch) <= kMaxEpochJump)
      epoch_seen_ = std::max(epoch_seen_.load(), epoch);
  }
  void accept_all();
  void drop(ServedClient& client);
  void deliver();
  Clock::time_point tick(Clock::time_point now);
  Clock::time_point after(Millis next) const;

  static constexpr std::size_t kMaxUnproven = 256;
  static constexpr std::size_t kMaxClients = 16384;
  static constexpr uint32_t kMaxEpochJump = 4096;
  static constexpr std::chrono::seconds kHandshakeTime{5};

  const MasterServerOptions options_;
  std::vector<Credential> credentials_;  // as options_.tenants
  net::EngineId id_;
  std::optional<net::Acceptor> acceptor_;
  std::string address_;
  Master master_;
  Counts counts_;
  std::atomic<double> until_;
  std::atomic<uint32_t> epoch_seen_{0};
  std::deque<std::shared_ptr<ServedClient>> unproven_;
  std::unordered_map<PeerId, std::shared_ptr<ServedClient>> clients_;
  std::mutex stopping_;
  bool stopped_ = false;
  net::Loop loop_;
};

}  // namespace inlay::store
