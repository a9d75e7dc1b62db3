// What comes from a disk to a memory that is full, without any time passing: nobody who asks for it
// waits for the master's next tick, or until others have had time to read.
#include <cstdio>
#include <string>

#include "../store/master.h"
#include "store_scripted_node.h"

using namespace inlay;
using namespace inlay::tests;

namespace {

constexpr uint64_t kBytes = 4096;
constexpr std::size_t kPlaces = 64;  // in memory
constexpr std::size_t kObjects = 4 * kPlaces;

std::string key_of(std::size_t i) { return "key " + std::to_string(i); }
uint64_t generation_of(std::size_t i) { return first_generation_of(1) + 1 + i; }

// All objects lie on a node's disk, the first ones in its memory, too, up to where nothing has to
// be evicted.
class World {
 public:
  explicit World(const std::string& policy) : master_(options(policy), 0) {
    node_.number = 1;
    node_.name = "a";
    node_.bytes = kPlaces * kBytes;
    node_.has_disk = true;
    Join join = node_.join();
    for (auto& segment : join.segments) segment.advertises = true;
    node_.joined(ask<Join>(node_peer_, join));
    const auto in_memory = static_cast<std::size_t>(kPlaces * options(policy).high_watermark);
    advertise(node_.segment, in_memory);
    advertise(node_.disk, kObjects);
    for (std::size_t i = 0; i < kObjects; ++i)
      node_.disk_records[key_of(i)] = {key_of(i), generation_of(i), kBytes, 100, true, false};
    for (std::size_t i = 0; i < in_memory; ++i)
      node_.records[i * kBytes] = node_.disk_records[key_of(i)];
  }

  // Whether the answer comes with the node's work alone.
  bool get(std::size_t i) {
    const std::string key = key_of(i);
    const uint64_t ticket = ++ticket_;
    auto now = master_.handle(client_, ticket, Question(Locate{.keys = {key}}), 0);
    for (int turns = 0; turns < 16 && !now; ++turns) now = turn(ticket);
    if (!now) return false;
    const Locate::Answer& answer = std::get<Locate::Answer>(*now);
    if (answer.found[0].presence != Presence::kPresent) return false;
    const auto record = node_.records.find(answer.places[0].offset);
    return record != node_.records.end() && record->second.live && record->second.key == key;
  }

 private:
  static MasterOptions options(const std::string& policy) {
    MasterOptions options;
    options.terms.epoch = 2;
    options.eviction = policy;
    return options;
  }
  template <typename Q>
  typename Q::Answer ask(PeerId peer, const Q& question) {
    auto answer = master_.handle(peer, ++ticket_, Question(question), 0);
    CHECK(answer);
    return std::get<typename Q::Answer>(*answer);
  }
  void advertise(SegmentId segment, std::size_t count) {
    Advertise question;
    question.segment = segment;
    question.last = true;
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(key_of(i));
    for (std::size_t i = 0; i < count; ++i)
      question.records.push_back({.key = keys[i],
                                  .offset = segment == node_.segment ? i * kBytes : 0,
                                  .record_bytes = kBytes,
                                  .payload_bytes = 100,
                                  .generation = generation_of(i),
                                  .group = 0,
                                  .flags = 0});
    CHECK(ask<Advertise>(node_peer_, question).known);
  }
  // The node does what it is told. The answer, if it has come.
  std::optional<Answer> turn(uint64_t ticket) {
    std::optional<Answer> answer;
    Beat beat;
    beat.done = std::move(done_);
    beat.hold_ms = 100;
    done_.clear();
    (void)master_.handle(node_peer_, ++ticket_, Question(beat), 0);
    for (const Master::Late& late : master_.take_answers())
      if (late.ticket == ticket)
        answer = late.answer;
      else
        for (const Command& command : std::get<Beat::Answer>(late.answer).commands)
          done_.push_back(node_.execute(command, {}));
    return answer;
  }

  Master master_;
  const PeerId client_ = master_.connect("t", uuid_of(1), 0);
  const PeerId node_peer_ = master_.connect("t", uuid_of(2), 0);
  ScriptedNode node_;
  std::vector<Done> done_;
  uint64_t ticket_ = 0;
};

}  // namespace

int main() {
  for (const std::string policy : {"lru", "s3fifo", "cost"}) {
    World world(policy);
    for (std::size_t i = 0; i < 3 * kObjects; ++i) CHECK(world.get(i * 7 % kObjects));
  }
  return 0;
}
