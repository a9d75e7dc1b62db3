// A thread that submits, disturbs, waits and compares.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flight.h"

namespace random_test {

// What the workers of an episode share.
struct Episode {
  const World& world;
  Counts& counts;
  const Transports& transports;
  std::array<std::unique_ptr<Target>, kTargets>& targets;
  Roamer& roamer;
  std::atomic<uint32_t>& last_message;
  bool verifies;
};

class Worker {
 public:
  Worker(Episode& episode, int index, uint64_t seed)
      : episode_(episode), index_(index), dice_(seed), noise_(kMostBytes + kNoiseOffsets) {
    for (std::size_t i = 0; i + 8 <= noise_.size(); i += 8) {
      const uint64_t word = dice_.below(UINT64_MAX);
      std::memcpy(noise_.data() + i, &word, sizeof(word));
    }
    for (int i = 0; i < kSlots; ++i)
      slots_.push_back(std::make_unique<Slot>(
          "worker-" + std::to_string(index) + "-" + std::to_string(i), i % 2 == 0));
    for (const auto& target : episode.targets)
      for (const Kind kind : kKinds)
        if (kind != Kind::kDisk || target->has_disk())
          plots_.push_back(std::make_unique<Plot>(*target, kind, index));
  }

  void run(int64_t operations);
  // All that was written is there, and nothing else.
  void check_all();

 private:
  static constexpr int kSlots = 3;
  static constexpr uint64_t kNoiseOffsets = 1 << 16;

  std::shared_ptr<Initiator> initiator();
  // Null: what is done to the target is in the way.
  Link* link(Target& target, const std::shared_ptr<Initiator>& initiator);
  std::shared_ptr<RemoteSegment> find(const Plot& plot, Link& link);
  bool plan(Flight& flight, uint64_t& local, const std::byte* source);
  void submit(int slot, const std::shared_ptr<Initiator>& initiator);
  void land(Flight& flight);
  void land_all();
  Bytes body_of(const MessageHead& head, uint64_t more);
  void arrives(uint32_t number, const Link& way, const Target& target, const std::string& what,
               Clock::time_point tried_until);
  void count(const std::string& what) { episode_.counts.add(what); }

  void disturb();
  bool cancel();
  bool send_message();
  bool deregister_slot();
  bool hold_path();
  bool register_again();
  bool pause_target();
  bool kill_target();
  bool end_target();
  bool close_initiator();

  Episode& episode_;
  const int index_;
  Dice dice_;
  std::vector<std::byte> noise_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::unique_ptr<Plot>> plots_;
  std::array<Link, kTargets> links_;
  std::vector<Flight> flights_;
  int64_t left_ = 0;
};

}  // namespace random_test
