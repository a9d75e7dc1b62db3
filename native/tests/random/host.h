// An engine with the segments of one target, in a process of its own or in that of the test.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../core/crc32c.h"
#include "../../transfer/engine.h"
#include "world.h"

namespace random_test {

using inlay::Status;
using inlay::TransferFailure;
using inlay::transfer::Bytes;
using inlay::transfer::Engine;
using inlay::transfer::Segment;

// An engine that threads submit to until one of them closes it.
struct Initiator {
  explicit Initiator(const std::vector<std::string>& transports)
      : engine({"127.0.0.1:0", inlay::net::Token(32, std::byte{7}), 20, transports}) {}

  void close() {
    closing.store(true);
    for (const auto& segment : engine.close()) {
      EXPECT(segment->wait_unused(in_s(20)), "segment '" + segment->name + "' of a closed engine");
      segment->take_keeper();
    }
    closed_at.store(Clock::now().time_since_epoch().count());
  }

  Engine engine;
  std::atomic<bool> closing{false};
  std::atomic<Clock::rep> closed_at{0};
};

// What a message says: its place in the table and a sum; of a notification also which bytes of
// which segment are complete, and the sum is theirs.
struct MessageHead {
  uint32_t number;
  uint32_t crc;
  uint64_t bytes;  // 0: the sum is of what follows
  uint64_t offset;
  uint64_t kind;
};

class Host {
 public:
  Host(const World& world, int target, const std::vector<std::string>& transports)
      : world_(world),
        target_(target),
        initiator_(std::make_shared<Initiator>(transports)),
        receiver_([this, &arrivals = engine().arrivals()] { receive(arrivals); }) {
    for (const Kind kind : kKinds)
      if (has(kind)) add(kind);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() { close(); }

  const std::shared_ptr<Initiator>& initiator() const { return initiator_; }
  Engine& engine() const { return initiator_->engine; }
  std::shared_ptr<Segment> segment(Kind kind) const {
    return segments_[static_cast<std::size_t>(kind)];
  }
  bool has(Kind kind) const {
    if (kind != Kind::kDisk) return true;
    for (const auto& transport : engine().transports())
      if (transport.transport == "file") return transport.text.empty();
    return false;
  }

  void add(Kind kind) {
    auto& segment = segments_[static_cast<std::size_t>(kind)];
    const Arena& arena = world_.arena(target_);
    if (kind == Kind::kDisk) {
      segment = add_file();
      return;
    }
    segment = std::make_shared<Segment>(arena.memory(kind), kSegmentBytes, true, Access::kWrite,
                                        name_of(kind), nullptr);
    if (kind == Kind::kShared)
      segment->memory =
          std::make_shared<inlay::net::Descriptor>(fcntl(arena.shared_file, F_DUPFD_CLOEXEC, 0));
    engine().add(segment);
  }
  // Nobody touches it any more; false: somebody does after 20 s.
  bool remove(Kind kind, bool cancel) {
    const auto& segment = segments_[static_cast<std::size_t>(kind)];
    if (!engine().remove(segment, cancel, in_s(20))) return false;
    segment->take_keeper();
    return true;
  }

  void close() {
    if (!receiver_.joinable()) return;
    initiator_->close();
    receiver_.join();
    segments_ = {};
  }

 private:
  // The kernel lets go of the file of a killed process when its last requests are over.
  std::shared_ptr<Segment> add_file() {
    const auto end = in_s(20);
    for (;;) {
      try {
        return engine().add_file({world_.arena(target_).file, kSegmentBytes, true},
                                 name_of(Kind::kDisk), Access::kWrite, [] {});
      } catch (const TransferFailure& failure) {
        EXPECT(failure.status == Status::kSegmentOverlap && Clock::now() < end, failure.what());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void receive(inlay::transfer::Arrivals& arrivals) {
    inlay::transfer::Message message;
    while (!initiator_->closing.load())
      if (arrivals.receive(message, in_s(0.1))) take(message);
  }

  void take(const inlay::transfer::Message& message) {
    EXPECT(message.body.size() >= sizeof(MessageHead), "a message too short to be one of ours");
    MessageHead head{};
    std::memcpy(&head, message.body.data(), sizeof(head));
    std::span<const std::byte> bytes = std::span(message.body).subspan(sizeof(head));
    std::vector<std::byte> written;
    if (message.notification)
      bytes = written =
          world_.arena(target_).read(static_cast<Kind>(head.kind), head.offset, head.bytes);
    const bool whole = message.notification == (head.bytes > 0) && inlay::crc32c(bytes) == head.crc;
    std::atomic<Arrived>& arrived = world_.arrived(head.number);
    Arrived before = Arrived::kNothing;
    if (arrived.compare_exchange_strong(before, whole ? Arrived::kWhole : Arrived::kDamaged))
      return;
    EXPECT(before != Arrived::kUnwanted, "a notification of a batch that is not done");
    if (before != Arrived::kForgotten) arrived.store(Arrived::kTwice);
  }

  const World& world_;
  const int target_;
  const std::shared_ptr<Initiator> initiator_;
  std::array<std::shared_ptr<Segment>, kKinds.size()> segments_;
  std::thread receiver_;
};

}  // namespace random_test
