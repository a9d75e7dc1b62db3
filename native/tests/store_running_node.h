// A scripted node that is at work. Nothing listens at its address.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../store/failure.h"
#include "../store/master_link.h"
#include "store_scripted_node.h"

namespace inlay::tests {

// Does what the master says, on a thread of its own.
class RunningNode {
 public:
  RunningNode(MasterLink& link, const std::string& name, uint64_t bytes) : link_(link) {
    node_.name = name;
    node_.bytes = bytes;
    node_.number = static_cast<uint64_t>(name[0]);
    node_.joined(link_.ask(node_.join(), Clock::now() + std::chrono::seconds(5)));
    thread_ = std::thread([this] { run(); });
  }
  ~RunningNode() {
    stopping_ = true;
    link_.close();
    thread_.join();
  }
  // As a client's write would.
  void write(const Extent& extent, uint64_t offset, const std::string& key, uint64_t generation) {
    const std::lock_guard lock(mutex_);
    CHECK(node_.grants.at(extent.offset) == extent.grant);
    node_.records[offset] = {key, generation, 4096, 100, true, false};
  }
  uint64_t opened() {
    const std::lock_guard lock(mutex_);
    return node_.opened;
  }

 private:
  void run() {
    std::vector<Done> done;
    while (!stopping_) {
      Beat beat;
      beat.done = std::move(done);
      beat.hold_ms = 100;
      done.clear();
      try {
        const Beat::Answer answer = link_.ask(beat, Clock::now() + std::chrono::seconds(10));
        CHECK(answer.known);
        const std::lock_guard lock(mutex_);
        for (const Command& command : answer.commands)
          done.push_back(node_.execute(command, {{node_.segment, &node_}}));
      } catch (const StoreFailure& failure) {
        CHECK(stopping_ && failure.status == StoreStatus::kClosed);
      }
    }
  }

  MasterLink& link_;
  std::mutex mutex_;
  ScriptedNode node_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace inlay::tests
