// A master in this process, and links to it without a port.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "master.h"
#include "master_link.h"

namespace inlay::store {

// A master behind a mutex, with a thread for what has to be done in time.
class LocalMaster {
 public:
  explicit LocalMaster(MasterOptions options);
  ~LocalMaster();
  LocalMaster(const LocalMaster&) = delete;
  LocalMaster& operator=(const LocalMaster&) = delete;

  Survey::Answer survey();

 private:
  friend class LocalLink;
  using Then = std::function<void(StoreStatus, Answer)>;
  struct Pending {
    PeerId peer;
    Clock::time_point until;
    Then then;
  };
  struct Told {
    Then then;
    StoreStatus status;
    Answer answer;
  };

  PeerId connect(const std::string& tenant);
  void disconnect(PeerId peer);
  void ask(PeerId peer, const Question& question, Clock::time_point until, Then then);
  void run();
  // With the lock held: what late answers and passed times leave to be told without it.
  void collect(std::vector<Told>& told, Clock::time_point now);
  static void tell(std::vector<Told>& told);

  std::mutex mutex_;
  std::condition_variable wake_;
  Master master_;
  uint64_t last_ticket_ = 0;
  std::unordered_map<uint64_t, Pending> pending_;
  std::multimap<Clock::time_point, uint64_t> times_;
  Clock::time_point next_{};
  bool stopping_ = false;
  std::thread thread_;
};

class LocalLink final : public MasterLink {
 public:
  LocalLink(std::shared_ptr<LocalMaster> master, const std::string& tenant);
  ~LocalLink() override { close(); }

  void tell(const Touch& touch) override;
  Terms terms() const override;
  bool connected() const override { return true; }
  std::string address() const override { return "this process"; }
  void close() override;

 private:
  Answer wait(const Question& question, Clock::time_point until, bool while_connected) override;
  void start(const Question& question, Clock::time_point until, Then then) override;

  const std::shared_ptr<LocalMaster> master_;
  const PeerId peer_;
  std::atomic<bool> closed_{false};
};

}  // namespace inlay::store
