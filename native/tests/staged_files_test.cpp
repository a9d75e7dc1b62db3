// Engines of one process whose files are the local side: threads that move, cancel, run out of
// time, deregister and close at once. Meant for the sanitizers, too.
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "check.h"
#include "engines.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;
using namespace engine_test;

constexpr uint64_t kBytes = 5 << 20;
const auto kNotInterrupted = [] {};

class Folder {
 public:
  Folder() { CHECK(mkdtemp(name_) != nullptr); }
  ~Folder() { std::filesystem::remove_all(name_); }
  std::string file(const std::string& name) const { return std::string(name_) + "/" + name; }

 private:
  char name_[32] = "staged_files_test.XXXXXX";
};

std::shared_ptr<Segment> add_file(Engine& engine, const std::string& path, uint64_t size,
                                  Access access, const std::string& name) {
  return engine.add_file({path, size, false}, name, access, kNotInterrupted);
}

void run(Engine& engine, Op op, const std::shared_ptr<Segment>& local,
         const std::shared_ptr<RemoteSegment>& remote, std::vector<Range> ranges) {
  const auto batch = submit(engine, op, local, remote, std::move(ranges));
  CHECK(batch->wait(in(30)) && batch->state() == State::kDone);
}

// Cancelled, late, or done; settled in the end.
void spoil(const std::shared_ptr<Batch>& batch, std::mt19937_64& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
  if (random() % 2 == 0) batch->stop(Status::kCancelled, std::chrono::seconds(20));
  CHECK(batch->wait(in(30)) && batch->state() != State::kFailed);
  const auto end = in(20);
  while (!batch->settled()) {  // given up after the deadline, and answered later
    CHECK(Clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void move_at_random(Engine& here, Engine& there, const Folder& folder, uint64_t thread) {
  std::mt19937_64 random(thread);
  const std::string number = std::to_string(thread);
  const auto peer = here.connect(there.address(), 5, kNotInterrupted);
  const auto memory = allocate(there, kBytes, Access::kWrite, "memory" + number);
  const auto disk =
      add_file(there, folder.file("there" + number), kBytes, Access::kWrite, "disk" + number);
  const auto remote_memory = peer->segment(memory->name, 5, kNotInterrupted);
  const auto remote_disk = peer->segment(disk->name, 5, kNotInterrupted);
  const auto host = allocate(here, kBytes, Access::kNone, "host" + number);
  const auto file =
      add_file(here, folder.file("here" + number), kBytes, Access::kNone, "file" + number);
  for (int round = 0; round < 12; ++round) {
    for (uint64_t i = 0; i + 8 <= kBytes; i += 8) {
      const uint64_t word = random();
      std::memcpy(host->base + i, &word, 8);
    }
    const uint64_t length = 1 + random() % (kBytes / 2);
    const uint64_t from = random() % (kBytes - length);
    const uint64_t to = random() % (kBytes - length);
    // Host memory, file, the peer's memory, file, the peer's file, file, host memory.
    run(here, Op::kWrite, host, file->as_remote, {{0, 0, kBytes}});
    run(here, Op::kWrite, file, remote_memory, {{from, to, length}});
    CHECK(std::memcmp(memory->base + to, host->base + from, length) == 0);
    spoil(submit(here, Op::kRead, file, remote_memory, {{0, 0, kBytes}}, 1e-3 * double(round)),
          random);
    run(here, Op::kRead, file, remote_memory, {{from, to, length}});
    spoil(submit(here, Op::kWrite, file, remote_disk, {{0, 0, kBytes}}, 1e-3 * double(round)),
          random);
    run(here, Op::kWrite, file, remote_disk, {{from, to, length}});
    run(here, Op::kRead, file, remote_disk, {{from, to, length}});
    const auto back = allocate(here, length, Access::kNone, "back" + number);
    run(here, Op::kRead, back, file->as_remote, {{0, from, length}});
    CHECK(std::memcmp(back->base, host->base + from, length) == 0);
    CHECK(here.remove(back, false, in(10)));
  }
  for (const auto& segment : {host, file}) CHECK(here.remove(segment, false, in(10)));
  for (const auto& segment : {memory, disk}) CHECK(there.remove(segment, false, in(10)));
}

void test_threads(const std::vector<std::string>& transports) {
  const Folder folder;
  Engine there({"127.0.0.1:0", kToken, 20, transports});
  Engine here({"127.0.0.1:0", kToken, 20, transports});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] { move_at_random(here, there, folder, t); });
  for (std::thread& thread : threads) thread.join();
}

// Of either side, with and without ending what uses it.
void test_deregistration(const std::vector<std::string>& transports) {
  const Folder folder;
  Engine there({"127.0.0.1:0", kToken, 20, transports});
  Engine here({"127.0.0.1:0", kToken, 20, transports});
  for (int round = 0; round < 16; ++round) {
    const auto memory = allocate(there, kBytes, Access::kWrite, "memory");
    const auto file = add_file(here, folder.file("file"), kBytes, Access::kNone, "file");
    const auto peer = here.connect(there.address(), 5, kNotInterrupted);
    const auto remote = peer->segment("memory", 5, kNotInterrupted);
    const auto batch =
        submit(here, round % 2 == 0 ? Op::kRead : Op::kWrite, file, remote, {{0, 0, kBytes}});
    const bool cancel = round % 4 < 2;
    if (round % 8 < 4) {
      CHECK(here.remove(file, cancel, in(20)));
      CHECK(there.remove(memory, true, in(20)));
    } else {
      CHECK(there.remove(memory, cancel, in(20)));
      CHECK(here.remove(file, true, in(20)));
    }
    file->take_keeper();
    CHECK(batch->wait(in(20)));
  }
}

void test_close(const std::vector<std::string>& transports) {
  const Folder folder;
  for (int round = 0; round < 8; ++round) {
    auto there = std::make_unique<Engine>(EngineOptions{"127.0.0.1:0", kToken, 20, transports});
    auto here = std::make_unique<Engine>(EngineOptions{"127.0.0.1:0", kToken, 20, transports});
    const auto memory = allocate(*there, kBytes, Access::kWrite, "memory");
    const auto file = add_file(*here, folder.file("file"), kBytes, Access::kNone, "file");
    const auto peer = here->connect(there->address(), 5, kNotInterrupted);
    const auto remote = peer->segment("memory", 5, kNotInterrupted);
    const auto batch =
        submit(*here, round % 2 == 0 ? Op::kRead : Op::kWrite, file, remote, {{0, 0, kBytes}});
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    (round % 4 < 2 ? here : there)->close();
    CHECK(batch->wait(in(20)));
    here->close();
    there->close();
    file->take_keeper();
  }
}

}  // namespace

int main() {
  const std::vector<std::vector<std::string>> all = {{"file", "tcp"}, {"file", "local", "tcp"}};
  for (const auto& transports : all) {
    test_threads(transports);
    test_deregistration(transports);
    test_close(transports);
  }
  return 0;
}
