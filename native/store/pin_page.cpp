#include "pin_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../core/errors.h"
#include "../net/process_memory.h"

namespace inlay::store {

namespace {

PinLayout* map_page(const net::Descriptor& file) {
  void* at = mmap(nullptr, sizeof(PinLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return at == MAP_FAILED ? nullptr : static_cast<PinLayout*>(at);
}

[[noreturn]] void refuse_pins(const std::string& file, const std::string& why) {
  throw ResourceError("the pins of a store segment, " + file + ", " + why);
}

}  // namespace

uint64_t this_pid_namespace() {
  struct stat about{};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

PinPage::PinPage(const std::string& file) {
  const net::Descriptor opened(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct stat about{};
  if (!opened.valid() || fstat(opened.get(), &about) != 0 ||
      posix_fallocate(opened.get(), 0, sizeof(PinLayout)) != 0)
    refuse_pins(file, "cannot be made: " + std::string(std::strerror(errno)));
  layout_ = map_page(opened);
  if (layout_ == nullptr) refuse_pins(file, "cannot be mapped");
  layout_->pid_namespace = this_pid_namespace();
  layout_->magic = PinLayout::kMagic;
}

PinPage::~PinPage() { munmap(layout_, sizeof(PinLayout)); }

std::vector<uint64_t> PinPage::pinned(const std::vector<uint64_t>& offsets) {
  std::vector<uint64_t> found;
  const auto look = [&](const std::atomic<uint64_t>& pin) {
    const uint64_t value = pin.load();
    return value != 0 && std::ranges::binary_search(offsets, value - 1) ? value : 0;
  };
  for (PinLayout::Block& block : layout_->blocks) {
    if (block.pid.load() == 0) continue;
    bool looked_for_dead = false;
    for (const std::atomic<uint64_t>& pin : block.pins) {
      if (look(pin) == 0) continue;
      if (!looked_for_dead) reap(block);
      looked_for_dead = true;
      if (const uint64_t value = look(pin); value != 0) found.push_back(value - 1);
    }
  }
  std::ranges::sort(found);
  const auto repeated = std::ranges::unique(found);
  found.erase(repeated.begin(), repeated.end());
  return found;
}

void PinPage::reap() {
  for (PinLayout::Block& block : layout_->blocks) reap(block);
}

void PinPage::reap(PinLayout::Block& block) {
  if (block.pid.load() == 0) return;
  const std::lock_guard lock(reaping_);
  const int32_t pid = block.pid.load();
  if (pid == 0 || net::is_alive({pid, block.start_time.load()})) return;
  for (std::atomic<uint64_t>& pin : block.pins) pin.store(0);
  block.start_time.store(0);
  block.pid.store(0);
}

PinBoard::PinBoard(const std::string& file) {
  const net::Descriptor opened(open(file.c_str(), O_RDWR | O_CLOEXEC));
  struct stat about{};
  if (!opened.valid() || fstat(opened.get(), &about) != 0)
    refuse_pins(file, "cannot be opened: " + std::string(std::strerror(errno)));
  if (static_cast<std::size_t>(about.st_size) < sizeof(PinLayout))
    refuse_pins(file, "is cut short");
  layout_ = map_page(opened);
  if (layout_ == nullptr) refuse_pins(file, "cannot be mapped");
  std::string why;
  if (layout_->magic != PinLayout::kMagic)
    why = "has another layout: use the same version in both processes";
  else if (layout_->pid_namespace != this_pid_namespace())
    why = "belongs to a process of another PID namespace";
  else if (!take_block())
    why = "is full";
  if (why.empty()) return;
  munmap(layout_, sizeof(PinLayout));
  refuse_pins(file, why);
}

PinBoard::~PinBoard() {
  // In a forked child the blocks are still the parent's.
  if (generation_ == net::fork_generation())
    for (std::size_t i = 0; i < num_blocks_.load(); ++i) {
      blocks_[i]->start_time.store(0);
      blocks_[i]->pid.store(0);
    }
  munmap(layout_, sizeof(PinLayout));
}

bool PinBoard::take_block() {
  const std::lock_guard lock(taking_);
  const std::size_t count = num_blocks_.load();
  const net::ProcessId self = net::this_process();
  for (PinLayout::Block& block : layout_->blocks) {
    int32_t free = 0;
    if (!block.pid.compare_exchange_strong(free, self.pid)) continue;
    block.start_time.store(self.start_time);
    blocks_[count] = &block;
    num_blocks_.store(count + 1, std::memory_order_release);
    return true;
  }
  return false;
}

PinBoard::Pin PinBoard::pin(uint64_t offset) {
  if (generation_ != net::fork_generation()) return {};
  do {
    const std::size_t slots = num_blocks_.load(std::memory_order_acquire) * PinLayout::kSlots;
    const std::size_t start = hint_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < slots; ++i) {
      const std::size_t at = start + i < slots ? start + i : start + i - slots;
      auto& slot = blocks_[at / PinLayout::kSlots]->pins[at % PinLayout::kSlots];
      uint64_t free = 0;
      if (slot.load(std::memory_order_relaxed) != 0 ||
          !slot.compare_exchange_strong(free, offset + 1))
        continue;
      hint_.store(at, std::memory_order_relaxed);
      return Pin(&slot);
    }
  } while (take_block());
  return {};
}

}  // namespace inlay::store
