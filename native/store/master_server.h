// A master that listens: its thread, and the connections of clients and nodes.
#pragma once

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

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
  class Acceptor;

  static Millis now_ms();
  template <typename Result>
  Result run(std::function<Result()> work);
  bool accept_all();
  void drop(ServedClient& client);
  void deliver();
  Clock::time_point tick(Clock::time_point now);
  Clock::time_point after(Millis next) const;

  static constexpr std::size_t kMaxUnproven = 256;
  static constexpr std::size_t kMaxClients = 16384;
  static constexpr std::chrono::seconds kHandshakeTime{5};

  const MasterServerOptions options_;
  std::vector<Credential> credentials_;  // as options_.tenants
  net::EngineId id_;
  net::Listener listener_;
  std::string address_;
  Master master_;
  Counts counts_;
  std::deque<std::shared_ptr<ServedClient>> unproven_;
  std::unordered_map<PeerId, std::shared_ptr<ServedClient>> clients_;
  bool accepting_ = true;
  net::Loop::Id loop_id_ = 0;
  std::mutex stopping_;
  bool stopped_ = false;
  net::Loop loop_;
};

}  // namespace inlay::store
