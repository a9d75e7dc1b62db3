// Device memory by the stand-in driver: streams, and engines of two processes whose threads read,
// write, cancel, deregister and die. Meant for the sanitizers, too.
//
// CUDA does not survive a fork, so the other process is this program again.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "../net/cuda/device.h"
#include "check.h"
#include "engines.h"

extern char** environ;

namespace {

using namespace inlay;
using namespace inlay::transfer;
using namespace engine_test;
namespace cuda = net::cuda;

constexpr uint64_t kSize = 3 << 20;

// What only tests call.
struct Standin {
  void (*fail)(const char* call, int calls, int result);
  void (*delay)(int us);
  void (*hold)(int on);
  int (*depth)();
  int (*contexts)();
  int (*imports)();
  int (*allocate)(cuda::Address* address, std::size_t size);
  int (*free)(cuda::Address address);
  int (*put)(cuda::Address to, const void* from, std::size_t bytes);
  int (*get)(void* to, cuda::Address from, std::size_t bytes);
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  CHECK(function != nullptr);
}

const Standin& standin() {
  static const Standin all = [] {
    Standin found{};
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != nullptr);
    find(library, "standin_fail", found.fail);
    find(library, "standin_delay", found.delay);
    find(library, "standin_hold", found.hold);
    find(library, "standin_depth", found.depth);
    find(library, "standin_contexts", found.contexts);
    find(library, "standin_imports", found.imports);
    find(library, "cuMemAlloc_v2", found.allocate);
    find(library, "cuMemFree_v2", found.free);
    find(library, "cuMemcpyHtoD_v2", found.put);
    find(library, "cuMemcpyDtoH_v2", found.get);
    return found;
  }();
  return all;
}

const cuda::Driver& driver() {
  std::string problem;
  const cuda::Driver* started = cuda::start_driver(problem);
  if (started == nullptr) std::fprintf(stderr, "%s\n", problem.c_str());
  CHECK(started != nullptr);
  return *started;
}

// Device memory of the first device, with its context where it is needed.
class Buffer {
 public:
  explicit Buffer(uint64_t size) : size(size) {
    (void)standin();
    CHECK(driver().retain_primary(&context_, 0) == 0);
    const cuda::Current current(driver(), context_);
    CHECK(standin().allocate(&address, size) == 0);
  }
  ~Buffer() {
    {
      const cuda::Current current(driver(), context_);
      CHECK(standin().free(address) == 0);
    }
    driver().release_primary(0);
  }
  void put(const std::vector<std::byte>& bytes) {
    const cuda::Current current(driver(), context_);
    CHECK(standin().put(address, bytes.data(), bytes.size()) == 0);
  }
  void fill(std::byte value) { put(std::vector<std::byte>(size, value)); }
  std::vector<std::byte> get() const {
    std::vector<std::byte> bytes(size);
    const cuda::Current current(driver(), context_);
    CHECK(standin().get(bytes.data(), address, size) == 0);
    return bytes;
  }
  bool is_all(std::byte value) const { return get() == std::vector<std::byte>(size, value); }

  const uint64_t size;
  cuda::Address address = 0;

 private:
  cuda::Context context_ = nullptr;
};

std::vector<std::byte> random_bytes(uint64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

cuda::Address address_of(const void* memory) { return reinterpret_cast<cuda::Address>(memory); }

void test_streams() {
  CHECK(standin().contexts() == 0);
  Buffer buffer(1 << 20);
  {
    const auto device = std::make_shared<cuda::Device>(driver(), 0, 20);
    CHECK(device->name().starts_with("cuda:0 (Stand-in 0"));
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const uint64_t part = buffer.size / 4;
        for (int i = 0; i < 30; ++i) {
          const auto source = random_bytes(part, t * 100 + i);
          std::vector<std::byte> back(part);
          std::atomic<cuda::Result> in{-2};
          std::atomic<cuda::Result> out{-2};
          const auto to = std::make_shared<cuda::Copies>([&](cuda::Result r) { in.store(r); });
          for (uint64_t at = 0; at < part; at += 10000)
            to->add(buffer.address + t * part + at, address_of(source.data() + at),
                    std::min<uint64_t>(10000, part - at));
          device->copy(cuda::Device::Way::kIn, to);
          if (i % 5 == 0) to->cancel();
          while (in.load() == -2) std::this_thread::yield();
          CHECK(in.load() == 0 || (i % 5 == 0 && in.load() == cuda::Copies::kCancelled));
          const auto from = std::make_shared<cuda::Copies>([&](cuda::Result r) { out.store(r); });
          from->add(address_of(back.data()), buffer.address + t * part, part);
          device->copy(cuda::Device::Way::kOut, from);
          while (out.load() == -2) std::this_thread::yield();
          CHECK(out.load() == 0);
          CHECK(in.load() != 0 || back == source);
          ++ended;
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(ended.load() == 120);
    CHECK(standin().depth() == 0);

    // Stopped with copies under way and others waiting: each ends once.
    std::vector<std::byte> source(buffer.size);
    std::atomic<int> done{0};
    std::atomic<int> cancelled{0};
    standin().hold(1);
    for (int i = 0; i < 100; ++i) {
      const auto copies = std::make_shared<cuda::Copies>([&](cuda::Result result) {
        ++done;
        cancelled += result == cuda::Copies::kCancelled;
      });
      copies->add(buffer.address, address_of(source.data()), buffer.size);
      device->copy(cuda::Device::Way::kIn, copies);
    }
    std::thread release([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      standin().hold(0);
    });
    device->stop();
    CHECK(done.load() == 100 && cancelled.load() >= 80);
    release.join();
    const auto late = std::make_shared<cuda::Copies>([&](cuda::Result) { ++done; });
    late->add(buffer.address, address_of(source.data()), 1);
    device->copy(cuda::Device::Way::kIn, late);
    CHECK(done.load() == 101);
  }
  CHECK(standin().contexts() == 1);  // the buffer's
}

std::shared_ptr<Segment> add(Engine& engine, const Buffer& buffer, const std::string& name,
                             Access access) {
  return engine.add_device(buffer.address, buffer.size, true, nullptr, name, access, [] {});
}

EngineOptions options() { return {"127.0.0.1:0", kToken, 20}; }

// This program in another part, which hears lines and says lines.
class Other {
 public:
  explicit Other(const char* part, const std::string& argument = "") {
    std::array<int, 2> down;
    std::array<int, 2> up;
    CHECK(pipe2(down.data(), O_CLOEXEC) == 0 && pipe2(up.data(), O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], 0);
    posix_spawn_file_actions_adddup2(&actions, up[1], 1);
    std::string path = "/proc/self/exe";
    std::string name = part;
    std::string more = argument;
    char* arguments[] = {path.data(), name.data(), more.data(), nullptr};
    CHECK(posix_spawn(&pid_, path.c_str(), &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(down[0]);
    close(up[1]);
    write_ = fdopen(down[1], "w");
    read_ = fdopen(up[0], "r");
  }
  ~Other() {
    kill();
    fclose(write_);
    fclose(read_);
  }
  std::string hear() {
    std::array<char, 256> line{};
    CHECK(fgets(line.data(), line.size(), read_) != nullptr);
    std::string text = line.data();
    text.pop_back();
    return text;
  }
  void tell(const char* line) {
    std::fprintf(write_, "%s\n", line);
    std::fflush(write_);
  }
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
  FILE* write_ = nullptr;
  FILE* read_ = nullptr;
};

// Offers memory. On each line it takes the segment back, sees whether its bytes stay as they are
// then, and offers it again.
void run_owner() {
  alarm(120);
  Engine engine(options());
  Buffer buffer(kSize);
  buffer.fill(std::byte{1});
  auto segment = add(engine, buffer, "shared", Access::kWrite);
  std::printf("%s\n", engine.address().c_str());
  std::fflush(stdout);
  std::array<char, 16> line{};
  for (int i = 0; fgets(line.data(), line.size(), stdin) != nullptr; ++i) {
    CHECK(engine.remove(segment, i % 2 == 0, in(20)));
    (void)segment->take_keeper();
    buffer.fill(std::byte{2});
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK(buffer.is_all(std::byte{2}));
    segment = add(engine, buffer, "shared", Access::kWrite);
    std::puts("again");
    std::fflush(stdout);
  }
  engine.close();
}

// Writes and reads as long as it lives.
void run_initiator(const std::string& address) {
  alarm(120);
  standin().delay(300);
  Engine engine(options());
  Buffer buffer(kSize);
  const auto local = add(engine, buffer, "local", Access::kNone);
  const auto peer = engine.connect(address, 5, [] {});
  const auto remote = peer->segment("shared", 5, [] {});
  for (int i = 0;; ++i) {
    const auto batch =
        submit(engine, i % 2 == 0 ? Op::kWrite : Op::kRead, local, remote, {{0, 0, kSize}});
    if (i == 0) {
      std::puts("begun");
      std::fflush(stdout);
    }
    if (!batch->wait(in(20)) || batch->state() != State::kDone) return;
  }
}

void test_owner() {
  Engine engine(options());
  Buffer buffer(kSize);
  const auto device = add(engine, buffer, "device", Access::kNone);
  const auto host = allocate(engine, kSize, Access::kNone, "host");
  Other owner("owner");
  const std::string address = owner.hear();
  const auto peer = engine.connect(address, 5, [] {});
  {
    // Alone, the bytes are exact.
    const auto shared = peer->segment("shared", 5, [] {});
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const auto source = random_bytes(kSize, seed);
      buffer.put(source);
      const auto to = submit(engine, Op::kWrite, device, shared, {{5, 9, kSize - 9}});
      CHECK(to->wait(in(20)) && to->state() == State::kDone);
      const auto back = submit(engine, Op::kRead, host, shared, {{3, 9, kSize - 9}});
      CHECK(back->wait(in(20)) && back->state() == State::kDone);
      CHECK(std::memcmp(host->base + 3, source.data() + 5, kSize - 9) == 0);
    }
  }
  CHECK(standin().imports() == 1);
  standin().delay(20);
  std::atomic<bool> over{false};
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      while (!over.load()) {
        std::shared_ptr<RemoteSegment> shared;
        try {
          shared = peer->segment("shared", 5, [] {});
        } catch (const TransferFailure& failure) {
          CHECK(failure.status == Status::kSegmentNotFound || over.load());
          continue;
        }
        // A part of the local memory and of the remote one for each thread.
        const uint64_t part = kSize / 4;
        const uint64_t length = 1 + random() % part;
        const Range range{t * part, t * part + random() % (part - length + 1), length};
        const Op op = random() % 2 == 0 ? Op::kRead : Op::kWrite;
        const auto batch = submit(engine, op, t % 2 == 0 ? device : host, shared, {range});
        if (random() % 4 == 0) batch->stop(Status::kCancelled, std::chrono::milliseconds(1));
        CHECK(batch->wait(in(30)));
        done += batch->state() == State::kDone;
      }
    });
  for (int i = 0; i < 20; ++i) {
    const int before = done.load();
    for (const auto end = in(5); done.load() < before + 3 && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(done.load() >= before + 3);
    owner.tell("again");
    CHECK(owner.hear() == "again");
  }
  over.store(true);
  owner.kill();
  for (std::thread& thread : threads) thread.join();
  for (const auto end = in(5); standin().imports() > 0 && Clock::now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(standin().imports() == 0);
  standin().delay(0);
  CHECK(engine.remove(device, false, in(5)));
  (void)device->take_keeper();
  engine.close();
  CHECK(standin().depth() == 0);
}

void test_killed_initiator() {
  Engine engine(options());
  Buffer buffer(kSize);
  for (int i = 0; i < 5; ++i) {
    const auto segment = add(engine, buffer, "shared", Access::kWrite);
    Other initiator("initiator", engine.address());
    CHECK(initiator.hear() == "begun");
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * i));
    if (i % 2 == 0) initiator.kill();
    CHECK(engine.remove(segment, false, in(20)));
    (void)segment->take_keeper();
    buffer.fill(std::byte{3});
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(buffer.is_all(std::byte{3}));
  }
  engine.close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "owner") {
    run_owner();
    return 0;
  }
  if (argc > 1 && std::string(argv[1]) == "initiator") {
    run_initiator(argv[2]);
    return 0;
  }
  test_streams();
  std::puts("streams");
  test_owner();
  std::puts("owner");
  test_killed_initiator();
  std::puts("killed initiator");
}
