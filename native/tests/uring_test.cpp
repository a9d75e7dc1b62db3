// The ring by itself: reads, writes, errors, and completions out of order.
#include "../net/uring.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "check.h"

using inlay::net::Uring;
using inlay::net::WakeUp;

namespace {

int temporary_file() {
  char name[] = "uring_test.XXXXXX";
  const int file = mkstemp(name);
  CHECK(file >= 0);
  unlink(name);
  return file;
}

std::map<uint64_t, int32_t> wait_for(Uring& ring, unsigned count) {
  std::map<uint64_t, int32_t> results;
  while (results.size() < count) {
    CHECK(ring.submit(1) == 0);
    ring.reap([&](uint64_t tag, int32_t result) { results[tag] = result; });
  }
  return results;
}

void moves_bytes(Uring& ring) {
  const int file = temporary_file();
  std::vector<char> out(10000);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 7);
  CHECK(ring.move(IORING_OP_WRITE, file, 3, out.data(), 10000, 1));
  CHECK(wait_for(ring, 1).at(1) == 10000);
  std::vector<char> in(20000);
  CHECK(ring.move(IORING_OP_READ, file, 3, in.data(), 20000, 2));          // more than is there
  CHECK(ring.move(IORING_OP_READ, file, 50000, in.data() + 10000, 5, 3));  // beyond the end
  CHECK(ring.move(IORING_OP_READ, -1, 0, in.data(), 5, 4));
  const auto results = wait_for(ring, 3);
  CHECK(results.at(2) == 10000 && results.at(3) == 0 && results.at(4) == -EBADF);
  CHECK(std::memcmp(in.data(), out.data(), 10000) == 0 && in[10000] == 0);
  close(file);
}

void is_full_and_goes_on(Uring& ring, unsigned entries) {
  const int file = temporary_file();
  char byte = 'x';
  for (int round = 0; round < 100; ++round) {
    for (unsigned i = 0; i < entries; ++i) CHECK(ring.move(IORING_OP_WRITE, file, i, &byte, 1, i));
    CHECK(!ring.move(IORING_OP_WRITE, file, 0, &byte, 1, 99));
    for (const auto& [tag, result] : wait_for(ring, entries)) CHECK(tag < entries && result == 1);
  }
  close(file);
}

void wakes_up(Uring& ring) {
  const WakeUp wake;
  for (int round = 0; round < 3; ++round) {
    CHECK(ring.poll_in(wake.fd(), 7));
    CHECK(ring.submit(0) == 0);
    CHECK(ring.reap([](uint64_t, int32_t) {}) == 0);
    wake.signal();
    CHECK(wait_for(ring, 1).contains(7));
    wake.reset();
  }
}

}  // namespace

int main() {
  int error = 0;
  const auto ring = Uring::make(8, error);
  if (ring == nullptr) {
    std::printf("skipped: no io_uring here (%s)\n", std::strerror(error));
    return 0;
  }
  moves_bytes(*ring);
  is_full_and_goes_on(*ring, 8);
  wakes_up(*ring);
  CHECK(Uring::make(1u << 30, error) == nullptr && error == EINVAL);
  return 0;
}
