// Grants of pages: what they allow, and that nothing lands once they are taken back, with engines
// over each transport that carries them.
#include "../transfer/page_guard.h"

#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "../core/errors.h"
#include "check.h"
#include "engines.h"

using namespace inlay;
using namespace inlay::transfer;
using namespace engine_test;

namespace {

constexpr uint64_t kPage = 4096;
constexpr int32_t kPages = 256;
constexpr uint64_t kSize = kPage * kPages;

std::shared_ptr<Segment> guarded(std::byte* memory, const std::shared_ptr<PageGuard>& guard) {
  auto segment = std::make_shared<Segment>(memory, kSize, true, Access::kWrite, "kv", nullptr);
  segment->guard = guard;
  return segment;
}

bool refuses(PageGuard& guard, std::vector<int32_t> pages) {
  try {
    guard.give(pages);
    return false;
  } catch (const ArgumentError&) {
    return true;
  }
}

void test_pages() {
  PageGuard guard(kSize, kPage);
  Segment segment(nullptr, kSize, true, Access::kWrite, "kv", nullptr);
  const uint64_t grant = guard.give(std::array{5, 6, 200});
  CHECK(guard.allows(5 * kPage, 2 * kPage, grant) && guard.allows(200 * kPage + 7, 1, grant));
  CHECK(!guard.allows(5 * kPage - 1, 2, grant) && !guard.allows(6 * kPage, kPage + 1, grant));
  CHECK(!guard.allows(kSize - kPage, kPage, grant) && !guard.allows(5 * kPage, 0, grant));
  for (const uint64_t wrong : {uint64_t{0}, uint64_t{1}, grant + 1})
    CHECK(!guard.allows(5 * kPage, 1, wrong) && !guard.allows(0, 1, wrong));
  CHECK(refuses(guard, {}) && refuses(guard, {0, kPages}) && refuses(guard, {1, -1}));
  CHECK(refuses(guard, {0, 1, 0}) && refuses(guard, {0, 6}));
  const uint64_t other = guard.give(std::array{0, 1});  // of the refused ones nothing stays
  CHECK(other != grant && !guard.allows(0, 1, grant) && guard.allows(0, 2 * kPage, other));
  {
    segment.guard = std::make_shared<PageGuard>(kSize, kPage);
    const GuardedPiece landing(segment);
    CHECK(!guard.revoke(segment, grant, in(0.01)));
    CHECK(!guard.revoke(segment, grant, in(0.01)));  // nor for who asks again
    CHECK(!guard.allows(5 * kPage, 1, grant) && refuses(guard, {5}));
    CHECK(guard.allows(0, 1, other));
  }
  CHECK(guard.revoke(segment, grant, in(1)) && guard.revoke(segment, grant, in(1)));
  CHECK(guard.allows(5 * kPage, 1, guard.give(std::array{5})) && !guard.allows(6 * kPage, 1, 0));
  for (const uint64_t page_bytes : {uint64_t{0}, kPage - 1, 2 * kSize}) {
    bool refused = false;
    try {
      PageGuard(kSize, page_bytes);
    } catch (const ArgumentError&) {
      refused = true;
    }
    CHECK(refused);
  }
}

// Two threads write all pages without a pause, while their grant is taken back again and again.
void test_nothing_lands(const std::vector<std::string>& transports, uint64_t piece) {
  std::vector<std::byte> memory(kSize);
  const auto guard = std::make_shared<PageGuard>(kSize, kPage);
  Engine owner({.listen = "127.0.0.1:0", .token = kToken, .transports = transports});
  Engine writer({.listen = "127.0.0.1:0", .token = kToken, .transports = transports});
  const auto segment = guarded(memory.data(), guard);
  owner.add(segment);
  const auto remote = writer.connect(owner.address(), 10, [] {})->segment("kv", 10, [] {});
  const auto local = allocate(writer, kSize, Access::kNone, "local");
  std::memset(local->base, 1, kSize);
  std::vector<Range> ranges;
  for (uint64_t at = 0; at < kSize; at += piece) ranges.push_back({at, at, piece});

  std::vector<int32_t> all(kPages);
  std::iota(all.begin(), all.end(), 0);
  std::atomic<uint64_t> grant{guard->give(all)};
  std::atomic<bool> over{false};
  std::atomic<int> landed{0};
  const auto write = [&] {
    while (!over.load()) {
      std::vector<Request> requests;
      requests.push_back({Op::kWrite, local, remote, ranges});
      requests.back().grant = grant.load();
      const auto batch = writer.submit(std::move(requests), 20);
      CHECK(batch->wait(in(20)));
      landed += batch->state() == State::kDone;
      CHECK(batch->state() == State::kDone || batch->failure().status == Status::kGrant);
    }
  };
  std::thread one(write);
  std::thread two(write);
  const std::vector<std::byte> zeros(kSize);
  for (int round = 0; round < 100; ++round) {
    CHECK(guard->revoke(*segment, grant.load(), in(20)));
    std::memset(memory.data(), 0, kSize);
    for (int look = 0; look < 3; ++look)
      CHECK(std::memcmp(memory.data(), zeros.data(), kSize) == 0);
    grant.store(guard->give(all));
    const int before = landed.load();
    const auto end = in(20);
    while (landed.load() == before) CHECK(Clock::now() < end);
  }
  over.store(true);
  one.join();
  two.join();
}

}  // namespace

int main() {
  test_pages();
  for (const char* transport : {"local", "tcp"})
    for (const uint64_t piece : {kPage / 2, kSize / 4}) test_nothing_lands({transport}, piece);
  return 0;
}
