// Checksums of what moved and grants, as engines give and take them, over each transport, and
// shared files as segments of an engine.
#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "../core/crc32c.h"
#include "../core/errors.h"
#include "../transfer/engine.h"
#include "check.h"
#include "child.h"
#include "transport_target.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;
using transport_test::FirstHalf;
using transport_test::From;
using transport_test::kSize;

const net::Token kToken(32, std::byte{7});

EngineOptions options(const std::vector<std::string>& transports) {
  EngineOptions options{"127.0.0.1:0", kToken};
  options.transports = transports;
  return options;
}

// An engine with memory of one kind.
struct Owner {
  Owner(const std::vector<std::string>& transports, From from) : engine(options(transports)) {
    add("plain", from, nullptr);
    add("guarded", from, std::make_shared<FirstHalf>());
  }
  void add(const char* name, From from, std::shared_ptr<const Guard> guard) {
    if (from == From::kSharedFile)
      files.push_back(std::make_unique<transport_test::LockedFile>(kSize));
    const Allocation memory = from == From::kSharedFile
                                  ? map_shared_file(files.back()->descriptor(), Access::kWrite)
                                  : allocate_memory(kSize, Access::kWrite);
    const auto segment = std::make_shared<Segment>(memory.bytes.get(), kSize, true, Access::kWrite,
                                                   name, memory.bytes);
    if (from != From::kForeign) segment->memory = memory.memory;
    segment->guard = std::move(guard);
    engine.add(segment);
  }

  std::vector<std::unique_ptr<transport_test::LockedFile>> files;
  Engine engine;
};

uint32_t sum_of(const Segment& segment, const std::vector<Range>& ranges) {
  uint32_t sum = 0;
  for (const Range& range : ranges) sum = crc32c({segment.base + range.local, range.length}, sum);
  return sum;
}

class Case {
 public:
  Case(Engine& engine, const std::string& address)
      : engine_(engine), peer_(engine.connect(address, 10, [] {})) {
    const Allocation memory = allocate_memory(kSize, Access::kNone);
    local_ = std::make_shared<Segment>(memory.bytes.get(), kSize, true, Access::kNone, "local",
                                       memory.bytes);
    local_->memory = memory.memory;
    engine.add(local_);
  }

  void run(bool tcp) {
    checksums(false);
    if (tcp) checksums(true);
    grants();
  }

 private:
  // Pieces that touch neither end, and whose order is not that of their offsets.
  std::vector<Range> ragged(uint64_t most, std::size_t count) {
    std::vector<Range> ranges;
    for (uint64_t at = 0; ranges.size() < count;) {
      const uint64_t length = 1 + random_() % most;
      if (at + length > kSize) break;
      ranges.push_back({at, at, length});
      at += length + random_() % 3;
    }
    std::ranges::shuffle(ranges, random_);
    return ranges;
  }

  std::shared_ptr<Batch> move(std::vector<Request> requests) {
    const auto batch = engine_.submit(std::move(requests), 20);
    CHECK(batch->wait(Clock::now() + std::chrono::seconds(30)));
    return batch;
  }

  Request request(Op op, const char* name, std::vector<Range> ranges) {
    Request request{op, local_, peer_->segment(name, 10, [] {}), std::move(ranges)};
    request.checksum = true;
    return request;
  }

  void checksums(bool verify) {
    const std::pair<uint64_t, std::size_t> shapes[] = {{1, 1},      {4096, 1},   {70, 1000},
                                                       {5000, 300}, {300000, 9}, {kSize, 1}};
    for (const Op op : {Op::kWrite, Op::kRead})
      for (const auto& [most, count] : shapes) {
        if (op == Op::kWrite)
          for (uint64_t i = 0; i < kSize; i += 8)
            std::memcpy(local_->base + i, std::array{random_()}.data(), 8);
        std::vector<std::vector<Range>> parts{ragged(most, count), {}};
        if (op == Op::kWrite && parts[0].size() > 1) {  // apart: threads write at the same time
          parts.push_back({parts[0].back()});
          parts[0].pop_back();
        }
        std::vector<Request> requests;
        for (const auto& ranges : parts) {
          requests.push_back(request(op, "plain", ranges));
          requests.back().verify = verify;
        }
        const auto batch = move(std::move(requests));
        CHECK(batch->state() == State::kDone);
        for (std::size_t i = 0; i < parts.size(); ++i)
          CHECK(batch->progress(i).checksum == sum_of(*local_, parts[i]));
      }
    std::vector<Request> silent{request(Op::kRead, "plain", {{0, 0, kSize}})};
    silent[0].checksum = false;
    CHECK(move(std::move(silent))->progress(0).checksum == 0);
  }

  void grants() {
    std::vector<Request> requests;
    for (const uint64_t grant : {FirstHalf::kGrant, uint64_t{0}, uint64_t{5}}) {
      requests.push_back(request(Op::kWrite, "guarded", {{0, 4096, 1 << 20}}));
      requests.back().grant = grant;
    }
    requests.push_back(request(Op::kWrite, "guarded", {{0, kSize / 2 - 10, 20}}));
    requests.back().grant = FirstHalf::kGrant;
    const auto batch = move(std::move(requests));
    CHECK(batch->state() == State::kFailed && batch->failure().status == Status::kGrant);
    CHECK(batch->progress(0).complete);
    CHECK(batch->progress(0).checksum == crc32c({local_->base, 1 << 20}));
    for (const std::size_t i : {1U, 2U, 3U}) CHECK(batch->progress(i).error == Status::kGrant);
  }

  Engine& engine_;
  const std::shared_ptr<Peer> peer_;
  std::shared_ptr<Segment> local_;
  std::mt19937_64 random_{3};
};

void test_here(const char* transport) {
  std::printf("%s, one process\n", transport);
  std::fflush(stdout);
  Owner owner({transport}, From::kEngine);
  Engine engine(options({transport}));
  Case(engine, owner.engine.address()).run(std::string(transport) == "tcp");
}

void test_processes(const char* transport, From from) {
  std::printf("%s, two processes, memory %d\n", transport, static_cast<int>(from));
  std::fflush(stdout);
  std::array<int, 2> ends;
  CHECK(pipe(ends.data()) == 0);
  Child child([&](Child& self) {
    Owner owner({transport}, from);
    const std::string& address = owner.engine.address();
    CHECK(write(ends[1], address.data(), address.size()) == static_cast<ssize_t>(address.size()));
    self.tell();
    self.hear();
  });
  child.hear();
  std::array<char, 100> address{};
  CHECK(read(ends[0], address.data(), address.size() - 1) > 0);
  {
    Engine engine(options({transport}));
    Case(engine, address.data()).run(std::string(transport) == "tcp");
    const auto peer = engine.connect(address.data(), 10, [] {});
    const auto plain = peer->segment("plain", 10, [] {});
    const bool maps = std::string(transport) == "shm" && from != From::kForeign;
    try {
      const auto mapped = peer->map(*plain, 10, [] {});
      CHECK(maps && mapped->bytes().size() == kSize && mapped->is_open());
      child.kill(SIGKILL);
      const auto end = Clock::now() + std::chrono::seconds(10);
      while (mapped->is_open()) CHECK(Clock::now() < end);
      CHECK(crc32c(mapped->bytes()) != 0);
    } catch (const TransferFailure& failure) {
      CHECK(!maps && failure.status == Status::kTransportUnavailable);
    }
  }
  close(ends[0]);
  close(ends[1]);
}

}  // namespace

int main() {
  // Children before threads.
  for (const From from : {From::kEngine, From::kForeign, From::kSharedFile})
    test_processes("shm", from);
  test_processes("tcp", From::kEngine);
  test_here("local");
  test_here("tcp");
}
