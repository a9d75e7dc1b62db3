#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "../core/errors.h"

namespace inlay::transfer {

bool Segment::enter() {
  const std::lock_guard lock(mutex_);
  users_ += open_;
  return open_;
}

void Segment::leave() {
  const std::lock_guard lock(mutex_);
  if (--users_ == 0) unused_.notify_all();
}

bool Segment::is_open() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

bool Segment::close() {
  const std::lock_guard lock(mutex_);
  return std::exchange(open_, false);
}

bool Segment::wait_unused(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  return unused_.wait_until(lock, until, [this] { return users_ == 0; });
}

std::shared_ptr<const void> Segment::take_keeper() {
  const std::lock_guard lock(mutex_);
  return std::exchange(keeper_, nullptr);
}

bool Segment::await_pieces(std::chrono::steady_clock::time_point until) const {
  std::unique_lock lock(landing_mutex_);
  // Another's turn would begin in the place of the one that is waited for.
  if (!landed_.wait_until(lock, until, [&] { return !awaiting_; })) return false;
  awaiting_ = true;
  const auto landed = [&](uint64_t turn) {
    return landed_.wait_until(lock, until, [&] { return landing_[turn % 2] == 0; });
  };
  // What counts there is of a turn whose waiter gave up.
  const bool over = landed(turn_ + 1) && landed(turn_++);
  awaiting_ = false;
  landed_.notify_all();
  return over;
}

GuardedPiece::GuardedPiece(const Segment& segment)
    : segment_(segment.guard == nullptr ? nullptr : &segment) {
  if (segment_ == nullptr) return;
  const std::lock_guard lock(segment_->landing_mutex_);
  turn_ = segment_->turn_ % 2;
  ++segment_->landing_[turn_];
}

GuardedPiece::~GuardedPiece() {
  if (segment_ == nullptr) return;
  const std::lock_guard lock(segment_->landing_mutex_);
  if (--segment_->landing_[turn_] == 0) segment_->landed_.notify_all();
}

namespace {

std::shared_ptr<const net::Descriptor> make_file(uint64_t size) {
  auto file = std::make_shared<net::Descriptor>(
      memfd_create("inlay-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file->valid() || ftruncate(file->get(), static_cast<off_t>(size)) != 0) return nullptr;
  return file;
}

bool seal(const net::Descriptor& file, Access access) {
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
  // The mapping that we have already stays writable.
  const int writing = access == Access::kWrite ? 0 : F_SEAL_FUTURE_WRITE;
  return fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | writing) == 0;
}

uint64_t memory_of_machine() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Allocation allocate_memory(uint64_t size, Access access) {
  std::shared_ptr<const net::Descriptor> file;
  void* memory = MAP_FAILED;
  // All of it is faulted in, which more than there is would not survive.
  if (size <= memory_of_machine()) {
    file = make_file(size);
    if (file != nullptr)
      memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
    if (memory != MAP_FAILED && !seal(*file, access)) {
      munmap(memory, size);
      memory = MAP_FAILED;
    }
    if (memory == MAP_FAILED) {
      file = nullptr;
      memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
  }
  if (memory == MAP_FAILED)
    throw ResourceError("the system gives no " + std::to_string(size) + " bytes of memory");
  madvise(memory, size, MADV_HUGEPAGE);
  // Where the kernel is too old for this, the first touch faults the pages in.
  madvise(memory, size, MADV_POPULATE_WRITE);
  return {{static_cast<std::byte*>(memory), [size](std::byte* at) { munmap(at, size); }},
          std::move(file)};
}

void SegmentRegistry::add(const std::shared_ptr<Segment>& segment) {
  if (segment->name.empty() || segment->name.size() > net::kMaxNameBytes)
    throw ArgumentError("name: must have 1.." + std::to_string(net::kMaxNameBytes) +
                        " bytes, got " + std::to_string(segment->name.size()));
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (slot.segment == nullptr) continue;
    const Segment& other = *slot.segment;
    if (other.name == segment->name)
      throw ArgumentError("name: '" + segment->name + "' is the name of another open segment");
    if (other.base == nullptr || segment->base == nullptr) continue;  // files lock themselves
    if (other.base < segment->base + segment->size && segment->base < other.base + other.size)
      throw TransferFailure(Status::kSegmentOverlap,
                            "segment '" + segment->name + "' would overlap the open segment '" +
                                other.name + "': deregister that one, or use a part of it",
                            segment->name);
  }
  auto free = std::ranges::find(slots_, nullptr, &Slot::segment);
  if (free == slots_.end()) {
    if (slots_.size() == kMaxSegments)
      throw ResourceError("an engine holds at most " + std::to_string(kMaxSegments) +
                          " segments: register larger ones, or deregister some");
    free = slots_.emplace(slots_.end());
  }
  segment->slot = static_cast<uint32_t>(free - slots_.begin());
  segment->epoch = ++free->epoch;
  free->published = false;
  free->segment = segment;
}

void SegmentRegistry::publish(const Segment& segment) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[segment.slot];
  if (slot.segment.get() == &segment) slot.published = true;
}

void SegmentRegistry::remove(const Segment& segment) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[segment.slot];
  if (slot.segment.get() == &segment) slot.segment = nullptr;
}

std::vector<std::shared_ptr<Segment>> SegmentRegistry::all() const {
  std::vector<std::shared_ptr<Segment>> segments;
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_)
    if (slot.segment != nullptr) segments.push_back(slot.segment);
  return segments;
}

Status SegmentRegistry::find(const std::string& name, net::SegmentDescriptor& descriptor) const {
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (!slot.published || slot.segment == nullptr || slot.segment->name != name) continue;
    const Segment& segment = *slot.segment;
    if (segment.access == Access::kNone || !segment.is_open()) break;
    descriptor = {segment.slot,
                  segment.epoch,
                  segment.size,
                  true,
                  segment.access == Access::kWrite,
                  segment.location,
                  segment.keys,
                  segment.guard != nullptr};
    return Status::kOk;
  }
  return Status::kSegmentNotFound;
}

std::string SegmentRegistry::names() const {
  constexpr std::size_t kMaxBytes = 4096;
  std::string names;
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (!slot.published || slot.segment == nullptr || slot.segment->access == Access::kNone)
      continue;
    if (names.size() + slot.segment->name.size() + 7 > kMaxBytes) return names + ", ...";
    names += (names.empty() ? "'" : ", '") + slot.segment->name + "'";
  }
  return names;
}

std::shared_ptr<SegmentUse> SegmentRegistry::use(uint32_t slot, uint32_t epoch) const {
  const std::lock_guard lock(mutex_);
  if (slot >= slots_.size()) return nullptr;
  const std::shared_ptr<Segment>& segment = slots_[slot].segment;
  if (segment == nullptr || !slots_[slot].published || segment->epoch != epoch || !segment->enter())
    return nullptr;
  return std::make_shared<SegmentUse>(segment);
}

}  // namespace inlay::transfer
