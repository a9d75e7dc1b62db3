// Grants of pages: whoever was told one writes these pages of a segment, and nobody else does.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "segment.h"

namespace inlay::transfer {

// A piece of a write costs a division or two and a load for each page that it touches, without a
// lock. 8 bytes per page.
class PageGuard final : public Guard {
 public:
  // Of a segment of `size` bytes. Throws ArgumentError: page_bytes does not divide that.
  PageGuard(uint64_t size, uint64_t page_bytes);

  bool allows(uint64_t offset, uint64_t length, uint64_t grant) const override;

  // A number that nobody guesses. Throws ArgumentError for no pages, for one that there is not, and
  // for one that is granted, or named twice: then nothing is granted.
  uint64_t give(std::span<const int32_t> pages);
  // Takes it back. True: nothing lands under it any more, and its pages may be granted again.
  // False: at `until` a piece of some write to the segment still landed that had begun before; no
  // other one begins. Then call it again. True for what was never given, too.
  bool revoke(const Segment& segment, uint64_t grant, std::chrono::steady_clock::time_point until);

 private:
  void mark(const std::vector<int32_t>& pages, uint64_t grant);

  const uint64_t page_bytes_;
  std::vector<std::atomic<uint64_t>> grants_;  // of each page
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::vector<int32_t>> given_;  // and not yet taken back for certain
};

}  // namespace inlay::transfer
