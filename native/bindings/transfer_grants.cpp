// Grants of a segment's pages.
#include "array.h"
#include "module.h"
#include "transfer.h"

namespace inlay::bindings {

using transfer::Clock;

namespace {

transfer::PageGuard& guard_of(const SegmentHandle& handle) {
  (void)handle.engine->get();
  if (handle.pages == nullptr)
    fail("segment '", handle.segment->name,
         "' takes no grants: allocate or register it with page_bytes");
  return *handle.pages;
}

}  // namespace

std::shared_ptr<transfer::PageGuard> guard_pages(transfer::Segment& segment,
                                                 std::optional<int64_t> page_bytes) {
  if (!page_bytes) return nullptr;
  if (segment.access != transfer::Access::kWrite)
    fail("page_bytes: is of segments that peers write (remote=Access.WRITE)");
  auto guard = std::make_shared<transfer::PageGuard>(
      segment.size, static_cast<uint64_t>(std::max<int64_t>(*page_bytes, 0)));
  segment.guard = guard;
  return guard;
}

uint64_t grant_pages(const SegmentHandle& handle, nb::handle page_ids) {
  const Array pages(page_ids, "page_ids", 1);
  pages.require_contiguous();
  const auto* ids = pages.as<const int32_t>(Kind::kI32);
  return guard_of(handle).give({ids, static_cast<std::size_t>(pages.size(0))});
}

bool revoke_grant(const SegmentHandle& handle, uint64_t grant, double timeout_s) {
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(checked_seconds("timeout_s", timeout_s)));
  transfer::PageGuard& guard = guard_of(handle);
  const WithoutGil unlocked;
  while (!guard.revoke(*handle.segment, grant, std::min(end, Clock::now() + kSignalCheck))) {
    check_signals();
    if (Clock::now() >= end) return false;
  }
  return true;
}

}  // namespace inlay::bindings
