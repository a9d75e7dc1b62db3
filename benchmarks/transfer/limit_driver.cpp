// What the machine allows, asked call by call: copies between shared mappings and plain sockets.
//
//     limit_driver ARENA_BYTES
//
// Says `ready`, then answers each line `WHAT BLOCK_BYTES THREADS CALLS` with `TOTAL_S P50_S`: the
// time from the first thread's start to the last one's end, and the median call. Every thread makes
// CALLS calls, and walks through its part of two arenas of ARENA_BYTES, so that no figure is a
// cache's.
//
//     copy        memfd to memfd in one process; from 128 KiB on streaming stores, in one place or
//     in
//                 four in turn, whichever is faster on this processor; memcpy below
//     read, write a block over TCP, one connection per thread, depth 1, cubic: until all bytes are
//                 here / until the other process has acknowledged them. Both ends look for bytes
//                 for 20 us before they sleep: waking takes 40 us, or nothing, in long phases of
//                 either, which gives no limit to compare with.
//
// Build: c++ -O3 -march=native -std=c++20 -pthread limit_driver.cpp
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <barrier>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kStreamingBytes = 128 << 10;
// Places that are copied in turn, where that is faster.
constexpr std::size_t kLanes = 4;
constexpr std::size_t kLaneBytes = 16 << 10;
constexpr std::size_t kRunBytes = 256;
constexpr int kMaxThreads = 8;
constexpr int kWarmCalls = 2;
constexpr double kPollS = 20e-6;

std::size_t arena_bytes;
std::size_t walked[kMaxThreads];
bool in_lanes;

[[noreturn]] void fail(const char* what) {
  perror(what);
  std::exit(1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

char* shared_arena() {
  const int fd = memfd_create("limit", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, arena_bytes)) fail("memfd");
  void* at = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (at == MAP_FAILED) fail("mmap");
  std::memset(at, 7, arena_bytes);
  return static_cast<char*>(at);
}

#ifdef __x86_64__
// A multiple of 256 bytes.
void stream(char* to, const char* from, std::size_t bytes) {
#ifdef __AVX512F__
  for (std::size_t i = 0; i < bytes; i += 256)
    for (int j = 0; j < 256; j += 64)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + j), _mm512_load_si512(from + i + j));
#else
  for (std::size_t i = 0; i < bytes; i += 64)
    for (int j = 0; j < 64; j += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + j),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + i + j)));
#endif
}

void stream_in_lanes(char* to, const char* from, std::size_t bytes) {
  constexpr std::size_t kTogether = kLanes * kLaneBytes;
  std::size_t done = 0;
  for (; bytes - done >= kTogether; done += kTogether)
    for (std::size_t run = 0; run < kLaneBytes; run += kRunBytes)
      for (std::size_t at = done + run; at < done + kTogether; at += kLaneBytes)
        stream(to + at, from + at, kRunBytes);
  stream(to + done, from + done, bytes - done);
}
#endif

void copy(char* to, const char* from, std::size_t bytes) {
#ifdef __x86_64__
  if (bytes >= kStreamingBytes) {
    (in_lanes ? stream_in_lanes : stream)(to, from, bytes);
    _mm_sfence();
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

// In one place or in several in turn, whichever copies all of the arenas sooner, of three times.
void choose_copy(char* to, const char* from) {
  double best[2] = {1e9, 1e9};
  for (int round = 0; round < 6; round++) {
    in_lanes = round % 2;
    const double begin = now();
    copy(to, from, arena_bytes);
    best[in_lanes] = std::min(best[in_lanes], now() - begin);
  }
  in_lanes = best[1] < best[0];
}

bool receive_all(int fd, void* to, std::size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    ssize_t got = -1;
    for (double end = now() + kPollS; got < 0;)
      got = recv(fd, at, bytes, now() < end ? MSG_DONTWAIT : MSG_WAITALL);
    if (got == 0) return false;
    at += got;
    bytes -= got;
  }
  return true;
}

void send_all(int fd, const void* from, std::size_t bytes, int flags = 0) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL | flags);
    if (sent < 0) fail("send");
    at += sent;
    bytes -= sent;
  }
}

void tune(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

struct Request {
  std::uint64_t write, offset, bytes;
};

void answer(int fd, char* arena) {
  Request request;
  while (receive_all(fd, &request, sizeof request)) {
    if (request.write) {
      if (!receive_all(fd, arena + request.offset, request.bytes)) return;
      send_all(fd, &request.bytes, sizeof request.bytes);
    } else {
      send_all(fd, arena + request.offset, request.bytes);
    }
  }
}

// One connection per thread to a process that answers.
std::vector<int> connect_all() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  tune(listener);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, length) || listen(listener, kMaxThreads)) fail("listen");
  getsockname(listener, generic, &length);
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char* arena = shared_arena();
    std::vector<std::thread> threads;
    for (int i = 0; i < kMaxThreads; i++) {
      const int fd = accept(listener, nullptr, nullptr);
      tune(fd);
      threads.emplace_back(answer, fd, arena);
    }
    for (std::thread& thread : threads) thread.join();
    std::exit(0);
  }
  std::vector<int> connections;
  for (int i = 0; i < kMaxThreads; i++) {
    connections.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    tune(connections.back());
    if (connect(connections.back(), generic, length)) fail("connect");
  }
  close(listener);
  return connections;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  arena_bytes = std::strtoull(argv[1], nullptr, 10);
  const std::vector<int> connections = connect_all();
  char* from = shared_arena();
  char* to = shared_arena();
  choose_copy(to, from);

  const auto call = [&](const std::string& what, int thread, std::size_t at, std::size_t bytes) {
    if (what == "copy") return copy(to + at, from + at, bytes);
    const Request request{what == "write", at, bytes};
    const int fd = connections[thread];
    std::uint64_t acknowledged = 0;
    send_all(fd, &request, sizeof request, request.write ? MSG_MORE : 0);
    if (request.write) send_all(fd, from + at, bytes);
    void* const answer_to = request.write ? static_cast<void*>(&acknowledged) : to + at;
    if (!receive_all(fd, answer_to, request.write ? sizeof acknowledged : bytes)) fail("recv");
  };

  std::puts("ready");
  std::fflush(stdout);
  char what[16];
  std::size_t block;
  int threads, calls;
  while (std::scanf("%15s %zu %d %d", what, &block, &threads, &calls) == 4) {
    if (threads < 1 || threads > kMaxThreads || block > arena_bytes / threads) return 2;
    const std::size_t span = arena_bytes / threads;
    std::vector<double> taken(static_cast<std::size_t>(threads) * calls);
    std::vector<double> ends(threads);
    double start = 0;
    std::barrier ready(threads, [&]() noexcept { start = now(); });
    const auto work = [&](int thread) {
      const auto next = [&] {
        const std::size_t at = walked[thread] + block > span ? 0 : walked[thread];
        walked[thread] = at + block;
        call(what, thread, thread * span + at, block);
      };
      for (int i = 0; i < kWarmCalls; i++) next();
      ready.arrive_and_wait();
      double before = now();
      for (int i = 0; i < calls; i++) {
        next();
        const double after = now();
        taken[static_cast<std::size_t>(thread) * calls + i] = after - before;
        before = after;
      }
      ends[thread] = before;
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; i++) others.emplace_back(work, i);
    work(0);
    for (std::thread& other : others) other.join();
    std::nth_element(taken.begin(), taken.begin() + taken.size() / 2, taken.end());
    std::printf("%.9f %.9f\n", *std::max_element(ends.begin(), ends.end()) - start,
                taken[taken.size() / 2]);
    std::fflush(stdout);
  }
}
