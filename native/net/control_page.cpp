#include "control_page.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <thread>

#include "../core/errors.h"

namespace inlay::net {

namespace {

constexpr uint64_t visit_of(uint32_t slot, uint32_t epoch) { return uint64_t{slot} << 32 | epoch; }

ControlLayout* map_shared(const Descriptor& descriptor) {
  void* memory =
      mmap(nullptr, sizeof(ControlLayout), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  return memory == MAP_FAILED ? nullptr : static_cast<ControlLayout*>(memory);
}

}  // namespace

ControlPage::ControlPage()
    : descriptor_(memfd_create("inlay-control", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (!descriptor_.valid() || ftruncate(descriptor_.get(), sizeof(ControlLayout)) != 0 ||
      fcntl(descriptor_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      (layout_ = map_shared(descriptor_)) == nullptr)
    throw ResourceError("the system gives no page of shared memory (memfd_create)");
  layout_->magic = ControlLayout::kMagic;
}

ControlPage::~ControlPage() { munmap(layout_, sizeof(ControlLayout)); }

void ControlPage::open(uint32_t slot, uint32_t epoch) { layout_->epochs[slot].store(epoch); }

void ControlPage::close(uint32_t slot, uint32_t epoch) {
  layout_->epochs[slot].compare_exchange_strong(epoch, 0);
}

bool ControlPage::wait_unvisited(uint32_t slot, uint32_t epoch, Clock::time_point until) {
  constexpr std::chrono::microseconds kFirstPause(5);
  constexpr std::chrono::microseconds kLongestPause(1000);
  auto pause = kFirstPause;
  while (is_visited(visit_of(slot, epoch), pause == kLongestPause)) {
    if (Clock::now() >= until) return !is_visited(visit_of(slot, epoch), true);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

bool ControlPage::close_all(Clock::time_point until) {
  bool all = true;
  for (uint32_t slot = 0; slot < ControlLayout::kSlots; ++slot)
    if (const uint32_t epoch = layout_->epochs[slot].exchange(0); epoch != 0)
      all &= wait_unvisited(slot, epoch, until);
  return all;
}

bool ControlPage::is_visited(uint64_t visit, bool look_for_dead) {
  for (ControlLayout::Line& line : layout_->lines)
    for (std::atomic<uint64_t>& cell : line.visits) {
      if (cell.load() != visit) continue;
      if (look_for_dead) reap(line);
      if (cell.load() == visit) return true;
    }
  return false;
}

void ControlPage::reap() {
  for (ControlLayout::Line& line : layout_->lines) reap(line);
}

void ControlPage::reap(ControlLayout::Line& line) {
  const std::lock_guard lock(reaping_);
  const int32_t pid = line.pid.load();
  if (pid == 0 || is_alive({pid, line.start_time.load()})) return;
  for (std::atomic<uint64_t>& cell : line.visits) cell.store(0);
  line.start_time.store(0);
  line.pid.store(0);
}

std::unique_ptr<VisitedPage> VisitedPage::map(const Descriptor& descriptor, std::string& problem) {
  struct stat status{};
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  // Without the seal its owner could cut it short under us.
  if (fstat(descriptor.get(), &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<std::size_t>(status.st_size) < sizeof(ControlLayout)) {
    problem = "what the peer sent is no control page";
    return nullptr;
  }
  std::unique_ptr<VisitedPage> page(new VisitedPage());
  page->layout_ = map_shared(descriptor);
  if (page->layout_ == nullptr) {
    problem = "the peer's control page cannot be mapped";
    return nullptr;
  }
  if (page->layout_->magic != ControlLayout::kMagic) {
    problem = "the peer's control page has another layout: use the same version in both processes";
    return nullptr;
  }
  if (page->take_line() == nullptr) {
    problem = "the peer's control page is full: " + std::to_string(ControlLayout::kLines) +
              " engines of this host use its memory already";
    return nullptr;
  }
  return page;
}

VisitedPage::~VisitedPage() {
  if (layout_ == nullptr) return;
  // In a forked child the lines are still the parent's.
  if (generation_ == fork_generation())
    for (std::size_t i = 0; i < num_lines_.load(); ++i) {
      lines_[i]->start_time.store(0);
      lines_[i]->pid.store(0);
    }
  munmap(layout_, sizeof(ControlLayout));
}

ControlLayout::Line* VisitedPage::take_line() {
  const std::lock_guard lock(mutex_);
  const std::size_t count = num_lines_.load();
  if (count == kMaxLines) return nullptr;
  const ProcessId self = this_process();
  for (ControlLayout::Line& line : layout_->lines) {
    int32_t free = 0;
    if (!line.pid.compare_exchange_strong(free, self.pid)) continue;
    line.start_time.store(self.start_time);
    lines_[count] = &line;
    num_lines_.store(count + 1);
    return &line;
  }
  return nullptr;
}

std::atomic<uint64_t>* VisitedPage::take_cell(uint64_t visit) {
  for (;;) {
    const std::size_t count = num_lines_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i)
      for (std::atomic<uint64_t>& cell : lines_[i]->visits) {
        uint64_t free = 0;
        if (cell.load(std::memory_order_relaxed) == 0 && cell.compare_exchange_strong(free, visit))
          return &cell;
      }
    // More threads copy at once than there are cells: another line, else a visit ends soon.
    if (take_line() == nullptr) sched_yield();
  }
}

VisitedPage::Visit VisitedPage::enter(uint32_t slot, uint32_t epoch) {
  if (slot >= ControlLayout::kSlots || epoch == 0) return Visit(nullptr);
  // Who asks again and again for a closed segment does not keep its owner waiting.
  if (!is_open(slot, epoch)) return Visit(nullptr);
  Visit visit(take_cell(visit_of(slot, epoch)));
  if (layout_->epochs[slot].load() == epoch) return visit;
  return Visit(nullptr);
}

bool VisitedPage::is_open(uint32_t slot, uint32_t epoch) const {
  return slot < ControlLayout::kSlots && layout_->epochs[slot].load() == epoch;
}

}  // namespace inlay::net
