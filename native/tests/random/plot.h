// A worker's part of a segment, and what its bytes have to be.
#pragma once

#include <unistd.h>

#include <memory>
#include <optional>
#include <vector>

#include "target.h"

namespace random_test {

using inlay::transfer::Batch;
using inlay::transfer::Range;

// A lease of 2 s and what the peer's clock may differ, for batches whose engine is closed.
constexpr auto kNothingLandsAfter = std::chrono::milliseconds(3000);
// The kernel may still write what a killed process had asked a disk for.
constexpr auto kDiskGoesOnFor = std::chrono::milliseconds(1000);

// What local memory holds after the end of its batch.
constexpr std::byte kFill{0xa7};

class Plot {
 public:
  Plot(Target& target, Kind kind, int worker)
      : target(target),
        kind(kind),
        begin(static_cast<uint64_t>(worker) * kPlotBytes),
        known_(kPlotBytes) {
    if (kind == Kind::kDisk) {
      file_ = inlay::net::Descriptor(open(target.arena().file.c_str(), O_RDONLY | O_CLOEXEC));
      EXPECT(file_.valid(), target.arena().file);
      read_.resize(kPlotBytes);
    }
    std::memcpy(known_.data(), found(0, kPlotBytes), kPlotBytes);
  }

  Target& target;
  const Kind kind;
  const uint64_t begin;  // in its segment

  const std::byte* known(uint64_t at) const { return known_.data() + at; }

  // A write that took place.
  void written(uint64_t at, const std::vector<std::byte>& after) {
    expect_one_of(at, after.data(), after.data(), after.size(), "a write that is complete");
    std::memcpy(known_.data() + at, after.data(), after.size());
  }
  // One that failed: each byte is as before or as after.
  void half_written(uint64_t at, const std::vector<std::byte>& after) {
    expect_one_of(at, known(at), after.data(), after.size(), "a write that failed");
    std::memcpy(known_.data() + at, found(at, after.size()), after.size());
  }
  // One that may still land: the plot rests until it cannot.
  struct Doubt {
    std::shared_ptr<Initiator> initiator;
    std::shared_ptr<Batch> batch;
    uint64_t generation;  // of the target
    uint64_t at;
    std::vector<std::byte> after;
    Clock::time_point not_before;
  };
  void doubt(Doubt doubt) { doubt_ = std::move(doubt); }

  bool rests() {
    if (!doubt_) return false;
    const Clock::time_point now = Clock::now();
    const Clock::rep closed_at = doubt_->initiator->closed_at.load();
    const bool over = doubt_->batch->settled() || doubt_->generation != target.generation() ||
                      (closed_at != 0 &&
                       now > Clock::time_point(Clock::duration(closed_at)) + kNothingLandsAfter);
    if (!over || now < doubt_->not_before) {
      // Of this process a thread may be writing it: a race, though an allowed one.
      if (!target.is_home())
        expect_one_of(doubt_->at, known(doubt_->at), doubt_->after.data(), doubt_->after.size(),
                      "a write that is not settled");
      return true;
    }
    half_written(doubt_->at, doubt_->after);
    doubt_.reset();
    return false;
  }

  void check(uint64_t at, uint64_t bytes) {
    expect_one_of(at, known(at), known(at), bytes, "bytes that nobody writes");
  }

 private:
  const std::byte* found(uint64_t at, uint64_t bytes) {
    if (kind != Kind::kDisk) return target.arena().memory(kind) + begin + at;
    for (uint64_t have = 0; have < bytes;) {
      const ssize_t n = pread(file_.get(), read_.data() + have, bytes - have,
                              static_cast<off_t>(begin + at + have));
      EXPECT(n > 0, target.arena().file + ": " + std::strerror(errno));
      have += static_cast<uint64_t>(n);
    }
    return read_.data();
  }
  void expect_one_of(uint64_t at, const std::byte* one, const std::byte* other, uint64_t bytes,
                     const char* what) {
    const std::byte* now = found(at, bytes);
    const uint64_t wrong = first_of_neither(now, one, other, bytes);
    EXPECT(wrong == bytes,
           std::string(what) + ": byte " + std::to_string(begin + at + wrong) + " of segment " +
               name_of(kind) + " of target " + std::to_string(target.index()) + " is " +
               std::to_string(static_cast<int>(now[wrong])) + ", neither " +
               std::to_string(static_cast<int>(one[wrong])) + " nor " +
               std::to_string(static_cast<int>(other[wrong])) + " (window of " +
               std::to_string(bytes) + " bytes at " + std::to_string(begin + at) + ")");
  }

  std::vector<std::byte> known_;
  std::optional<Doubt> doubt_;
  inlay::net::Descriptor file_;
  std::vector<std::byte> read_;
};

// Local memory of one batch at a time. After the batch it is filled, and has to stay so.
class Slot {
 public:
  Slot(std::string name, bool shared) : name_(std::move(name)), shared_(shared) {
    memory_ = inlay::transfer::allocate_memory(kMostBytes, Access::kNone);
    refill(kMostBytes);
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  std::byte* base() const { return memory_.bytes.get(); }
  const std::shared_ptr<Segment>& segment() const { return segment_; }

  // Registered in that engine. Throws TransferFailure(kEngineClosed).
  void register_in(const std::shared_ptr<Initiator>& initiator) {
    if (initiator_ == initiator && segment_ != nullptr) return;
    segment_ = nullptr;
    auto segment =
        std::make_shared<Segment>(base(), kMostBytes, true, Access::kNone, name_, memory_.bytes);
    if (shared_) segment->memory = memory_.memory;
    initiator->engine.add(segment);
    initiator_ = initiator;
    segment_ = std::move(segment);
  }
  // What used it is over when this returns.
  void remove(bool cancel) {
    EXPECT(initiator_->engine.remove(segment_, cancel, in_s(60)), name_ + " stays in use");
    segment_->take_keeper();
    segment_ = nullptr;
  }

  void check_untouched(uint64_t bytes) const {
    const uint64_t wrong = first_of_neither(base(), filled().data(), filled().data(), bytes);
    EXPECT(wrong == bytes, name_ + ": byte " + std::to_string(wrong) +
                               " of local memory changed after the end of its batch");
    dirty_ = 0;
  }
  // What the last batch used, which is over.
  void refill(uint64_t bytes) {
    std::memset(base(), static_cast<int>(kFill), bytes);
    dirty_ = bytes;
  }
  uint64_t refilled() const { return dirty_; }

 private:
  static const std::vector<std::byte>& filled() {
    static const std::vector<std::byte> all(kMostBytes, kFill);
    return all;
  }

  const std::string name_;
  const bool shared_;
  inlay::transfer::Allocation memory_;
  std::shared_ptr<Initiator> initiator_;
  std::shared_ptr<Segment> segment_;
  mutable uint64_t dirty_ = 0;
};

}  // namespace random_test
