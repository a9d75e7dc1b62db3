#include "page_guard.h"

#include <algorithm>
#include <string>

#include "../core/errors.h"
#include "../net/socket.h"

namespace inlay::transfer {

namespace {

// Of pages; no grants.
constexpr uint64_t kFree = 0;
constexpr uint64_t kLeaving = 1;  // taken back, but something may still land

uint64_t new_grant() {
  uint64_t grant = kFree;
  while (grant <= kLeaving) net::fill_random(std::as_writable_bytes(std::span(&grant, 1)));
  return grant;
}

uint64_t checked_pages(uint64_t size, uint64_t page_bytes) {
  if (page_bytes == 0 || size % page_bytes != 0)
    throw ArgumentError("page_bytes: must divide the segment's " + std::to_string(size) +
                        " bytes, got " + std::to_string(page_bytes));
  return size / page_bytes;
}

}  // namespace

PageGuard::PageGuard(uint64_t size, uint64_t page_bytes)
    : page_bytes_(page_bytes), grants_(checked_pages(size, page_bytes)) {}

bool PageGuard::allows(uint64_t offset, uint64_t length, uint64_t grant) const {
  if (grant <= kLeaving || length == 0) return false;
  const auto first = grants_.begin() + static_cast<std::ptrdiff_t>(offset / page_bytes_);
  const auto last =
      grants_.begin() + static_cast<std::ptrdiff_t>((offset + length - 1) / page_bytes_);
  return std::all_of(first, last + 1, [grant](const auto& page) { return page.load() == grant; });
}

void PageGuard::mark(const std::vector<int32_t>& pages, uint64_t grant) {
  for (const int32_t page : pages) grants_[static_cast<std::size_t>(page)].store(grant);
}

uint64_t PageGuard::give(std::span<const int32_t> pages) {
  if (pages.empty()) throw ArgumentError("page_ids: must name at least one page");
  const uint64_t grant = new_grant();
  std::vector<int32_t> marked;
  marked.reserve(pages.size());
  const std::lock_guard lock(mutex_);
  std::string problem;
  for (const int32_t page : pages) {
    if (page < 0 || static_cast<uint64_t>(page) >= grants_.size())
      problem = " is none of the segment's " + std::to_string(grants_.size());
    else if (const uint64_t now = grants_[static_cast<std::size_t>(page)].load(); now == grant)
      problem = " is named twice";
    else if (now != kFree)
      problem = now == kLeaving ? " may still be written: revoke() of its last grant said False"
                                : " is granted: revoke() that first";
    if (!problem.empty()) {
      mark(marked, kFree);
      throw ArgumentError("page_ids: page " + std::to_string(page) + problem);
    }
    marked.push_back(page);
    grants_[static_cast<std::size_t>(page)].store(grant);
  }
  given_.emplace(grant, std::move(marked));
  return grant;
}

bool PageGuard::revoke(const Segment& segment, uint64_t grant,
                       std::chrono::steady_clock::time_point until) {
  {
    const std::lock_guard lock(mutex_);
    const auto given = given_.find(grant);
    if (given == given_.end()) return true;
    mark(given->second, kLeaving);
  }
  if (!segment.await_pieces(until)) return false;
  const std::lock_guard lock(mutex_);
  if (const auto given = given_.find(grant); given != given_.end()) {  // nobody else was faster
    mark(given->second, kFree);
    given_.erase(given);
  }
  return true;
}

}  // namespace inlay::transfer
