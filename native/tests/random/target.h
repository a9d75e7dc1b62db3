// The test's side of a target: what is done to it, and when.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "processes.h"

namespace random_test {

// Begun so often. A failure is explained by what began after its cause could last be excluded.
struct Events {
  std::atomic<uint64_t> ends{0};
  std::atomic<uint64_t> evictions{0};  // deregistrations that cut connections
  std::array<std::atomic<uint64_t>, kKinds.size()> deregistrations{};
};

class Target {
 public:
  Target(const World& world, Zygote& zygote, int index, uint32_t transports_id,
         const Transports& transports)
      : world_(world),
        zygote_(zygote),
        index_(index),
        transports_id_(transports_id),
        transports_(transports) {
    start();
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  // One at a time does something to it.
  std::mutex busy;
  Events events;
  Events over;  // that many of them are behind it

  int index() const { return index_; }
  bool is_home() const { return index_ == kHome; }
  bool has_disk() const { return has_disk_.load(); }
  const Arena& arena() const { return world_.arena(index_); }

  struct Where {
    std::string address;
    inlay::net::EngineId engine;
    uint64_t generation;  // counts its processes
    std::shared_ptr<Host> host;
  };
  Where where() const {
    const std::lock_guard lock(mutex_);
    return {address_, engine_, generation_, host_};
  }
  uint64_t generation() const {
    const std::lock_guard lock(mutex_);
    return generation_;
  }

  // All below with `busy` locked.

  void end() {
    ++events.ends;
    if (is_home()) {
      where().host->close();
      return;
    }
    (void)ask({Order::kEnd, {}, false});
    const int status = zygote_.reap(pid_);
    EXPECT(status == 0, name() + " ended with status " + std::to_string(status));
  }
  void kill() {
    ++events.ends;
    EXPECT(::kill(pid_, SIGKILL) == 0, name());
    const int status = zygote_.reap(pid_);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
           name() + " had ended with status " + std::to_string(status));
  }
  void start() {
    std::string address;
    inlay::net::EngineId engine;
    std::shared_ptr<Host> host;
    if (is_home()) {
      host = std::make_shared<Host>(world_, index_, transports_);
      address = host->engine().address();
      engine = host->engine().id();
      has_disk_ = host->has(Kind::kDisk);
    } else {
      pid_ = zygote_.fork_target(index_, transports_id_, channel_);
      FromTarget hello;
      EXPECT(channel_.get(hello, kAnswer_ms), name() + " does not start");
      address = hello.address;
      engine = hello.engine;
      has_disk_ = hello.has_disk;
    }
    const std::lock_guard lock(mutex_);
    address_ = std::move(address);
    engine_ = engine;
    host_ = std::move(host);
    ++generation_;
    over.ends = events.ends.load();
  }
  void pause(std::chrono::milliseconds time) const {
    EXPECT(::kill(pid_, SIGSTOP) == 0, name());
    std::this_thread::sleep_for(time);
    EXPECT(::kill(pid_, SIGCONT) == 0, name());
  }
  // What is deregistered does not change, until it is registered again.
  void register_again(Kind kind, bool cancel, std::chrono::milliseconds rest) {
    const auto at = static_cast<std::size_t>(kind);
    ++events.deregistrations[at];
    if (cancel) ++events.evictions;
    EXPECT(ask({Order::kRemove, kind, cancel}), name() + ": somebody still uses " + name_of(kind));
    if (kind != Kind::kDisk) {
      const std::span<const std::byte> memory(arena().memory(kind), kSegmentBytes);
      const uint32_t sum = inlay::crc32c(memory);
      std::this_thread::sleep_for(rest);
      EXPECT(inlay::crc32c(memory) == sum,
             name() + ": bytes landed in a deregistered segment, " + name_of(kind));
    }
    (void)ask({Order::kAdd, kind, false});
    over.deregistrations[at] = events.deregistrations[at].load();
    over.evictions = events.evictions.load();
  }

 private:
  std::string name() const {
    return "target " + std::to_string(index_) + " (process " + std::to_string(pid_) + ")";
  }
  bool ask(const ToTarget& order) {
    if (is_home()) {
      const auto host = where().host;
      if (order.order == Order::kRemove) return host->remove(order.kind, order.cancel);
      host->add(order.kind);
      return true;
    }
    FromTarget answer;
    if (channel_.put(order) && channel_.get(answer, kAnswer_ms)) return answer.done;
    int status = 0;
    if (::kill(pid_, 0) == 0) status = zygote_.reap(pid_);
    EXPECT(false, name() + " went away with status " + std::to_string(status));
  }

  const World& world_;
  Zygote& zygote_;
  const int index_;
  const uint32_t transports_id_;
  const Transports transports_;
  std::atomic<bool> has_disk_{false};
  pid_t pid_ = 0;
  Channel channel_;
  mutable std::mutex mutex_;
  std::string address_;
  inlay::net::EngineId engine_{};
  uint64_t generation_ = 0;
  std::shared_ptr<Host> host_;
};

}  // namespace random_test
