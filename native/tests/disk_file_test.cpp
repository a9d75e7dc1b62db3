// Bytes at any offset, length and address, compared with a model; and files that cannot be had.
#include "../transfer/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../core/errors.h"
#include "check.h"
#include "child.h"

using inlay::ArgumentError;
using inlay::Status;
using inlay::TransferFailure;
using inlay::net::FileQueue;
using inlay::net::map_file_memory;
using inlay::transfer::DiskFile;
using inlay::transfer::FileMove;
using inlay::transfer::FileOptions;

namespace {

using Queue = std::shared_ptr<FileQueue>;

class Directory {
 public:
  explicit Directory(const std::string& parent) : path_(parent + "/disk_file_test.XXXXXX") {
    CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~Directory() { CHECK(system(("rm -r " + path_).c_str()) == 0); }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class Waiter {
 public:
  void done(Status status) {
    const std::lock_guard lock(mutex_);
    ++count_;
    if (status != Status::kOk) status_ = status;
    changed_.notify_all();
  }
  Status wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return count_ == count; }));
    return status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
  Status status_ = Status::kOk;
};

Status move(DiskFile& file, bool write, uint64_t offset, std::byte* memory, uint64_t bytes) {
  Waiter waiter;
  FileMove one(file, write, [&](Status status) { waiter.done(status); });
  one.add(offset, memory, bytes);
  one.start();
  return waiter.wait(1);
}

uint64_t draw_length(std::mt19937_64& random) {
  const uint64_t most = std::vector<uint64_t>{9, 5000, 70000, 1 << 20}[random() % 4];
  return 1 + random() % most;
}

// Random writes and reads, one after the other.
void equals_model(DiskFile& file, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> model(file.size());
  std::vector<std::byte> memory(file.size() + 8192);
  auto* const page = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(memory.data()) + 4095) / 4096 * 4096);
  for (int round = 0; round < 80; ++round) {
    uint64_t bytes = std::min(draw_length(random), file.size());
    uint64_t offset = random() % (file.size() - bytes + 1);
    std::byte* at = page;
    switch (random() % 4) {
      case 0:  // whole blocks
        offset = offset / 4096 * 4096;
        bytes = std::min((bytes + 4095) / 4096 * 4096, (file.size() - offset));
        break;
      case 1:  // aligned in the middle
        at += offset % 4096;
        break;
      case 2:
        at += random() % 4096;
        break;
      default:  // to the end
        offset = file.size() - bytes;
    }
    if (random() % 2 == 0) {
      for (uint64_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(random());
      std::memcpy(&model[offset], at, bytes);
      CHECK(move(file, true, offset, at, bytes) == Status::kOk);
    } else {
      std::memset(memory.data(), 0x77, memory.size());
      CHECK(move(file, false, offset, at, bytes) == Status::kOk);
      CHECK(std::memcmp(at, &model[offset], bytes) == 0);
      for (const std::byte* b = memory.data(); b < memory.data() + memory.size(); ++b)
        CHECK((b >= at && b < at + bytes) || *b == std::byte{0x77});
    }
  }
  std::vector<std::byte> now(file.size());
  CHECK(move(file, false, 0, now.data(), now.size()) == Status::kOk);
  CHECK(now == model);
}

// Many neighbours at once, which share blocks.
void neighbours_stay(DiskFile& file) {
  std::mt19937_64 random(3);
  std::vector<std::byte> model(file.size());
  for (std::byte& byte : model) byte = static_cast<std::byte>(random());
  Waiter waiter;
  std::vector<std::unique_ptr<FileMove>> moves;
  for (uint64_t at = 0; at < model.size();) {
    auto one = std::make_unique<FileMove>(file, true, [&](Status s) { waiter.done(s); });
    for (int run = 0; run < 3 && at < model.size(); ++run) {
      const uint64_t bytes = std::min<uint64_t>(1 + random() % 20000, model.size() - at);
      one->add(at, &model[at], bytes);
      at += bytes;
    }
    moves.push_back(std::move(one));
  }
  for (const auto& one : moves) one->start();
  CHECK(waiter.wait(moves.size()) == Status::kOk);
  std::vector<std::byte> now(file.size());
  CHECK(move(file, false, 0, now.data(), now.size()) == Status::kOk);
  CHECK(now == model);
}

void cancels(DiskFile& file) {
  std::vector<std::byte> memory(file.size());
  for (int round = 0; round < 20; ++round) {
    Waiter waiter;
    FileMove one(file, false, [&](Status status) { waiter.done(status); });
    one.add(1, memory.data(), memory.size() - 1);
    if (round == 0) one.cancel();
    one.start();
    one.cancel();
    const Status status = waiter.wait(1);
    CHECK(status == Status::kCancelled || (status == Status::kOk && round > 0));
  }
}

template <typename Make>
TransferFailure failure_of(Make&& make) {
  try {
    make();
  } catch (const TransferFailure& failure) {
    return failure;
  }
  CHECK(!"a failure");
  std::abort();
}

template <typename Make>
std::string argument_error_of(Make&& make) {
  try {
    make();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  CHECK(!"an argument error");
  std::abort();
}

void opens(const Queue& queue, const Directory& directory) {
  const std::string path = directory / "opens";
  struct stat found{};
  {
    const DiskFile file({path, 10000, true}, queue);
    CHECK(file.size() == 10000 && file.writable());
    CHECK(stat(path.c_str(), &found) == 0);
    CHECK((found.st_mode & 07777) == 0600 && found.st_size == 10000);
    CHECK(found.st_blocks * 512 >= 10000);
    const auto taken = failure_of([&] { DiskFile({path, 10000, true}, queue); });
    CHECK(taken.status == Status::kSegmentOverlap);
    CHECK(std::string(taken.what()).find(path) != std::string::npos);
    CHECK(stat(path.c_str(), &found) == 0);  // which did not remove it
  }
  CHECK(DiskFile({path, {}, true}, queue).size() == 10000);
  CHECK(DiskFile({path, 4096, true}, queue).size() == 4096);
  CHECK(stat(path.c_str(), &found) == 0 && found.st_size == 10000);
  CHECK(DiskFile({path, 20000, false}, queue).size() == 20000);
  CHECK(stat(path.c_str(), &found) == 0 && found.st_size == 20000);

  const std::string sparse = directory / "sparse";
  const DiskFile holes({sparse, uint64_t{1} << 40, false}, queue);
  CHECK(stat(sparse.c_str(), &found) == 0 && found.st_blocks == 0);
}

void is_read_only(const Queue& queue, const Directory& directory) {
  const std::string path = directory / "read-only";
  (void)DiskFile({path, 8192, false}, queue);
  CHECK(chmod(path.c_str(), 0400) == 0);
  DiskFile file({path, {}, true}, queue);
  CHECK(!file.writable());
  (void)DiskFile({path, 8192, true}, queue);  // who only reads disturbs nobody
  CHECK(failure_of([&] { DiskFile({path, 8193, true}, queue); }).status == Status::kSegmentAccess);
  std::byte memory[100];
  CHECK(move(file, false, 5, memory, 100) == Status::kOk);
}

void refuses(const Queue& queue, const Directory& directory) {
  const std::string none = directory / "none";
  const auto missing = failure_of([&] { DiskFile({none, {}, true}, queue); });
  CHECK(missing.status == Status::kFile && missing.system_error == ENOENT);
  CHECK(failure_of([&] { DiskFile({none + "/x", 1, true}, queue); }).system_error == ENOENT);
  const auto full = failure_of([&] { DiskFile({none, uint64_t{1} << 50, true}, queue); });
  CHECK(full.status == Status::kStorageFull);
  CHECK(std::string(full.what()).find("1125899906842624") != std::string::npos);
  CHECK(access(none.c_str(), F_OK) != 0);
  CHECK(argument_error_of([&] { DiskFile({"", 1, true}, queue); }).find("path") == 0);
  CHECK(argument_error_of([&] { DiskFile({none, 0, true}, queue); }).find("size") == 0);
  CHECK(argument_error_of([&] { DiskFile({"/", 1, true}, queue); }).find("directory") !=
        std::string::npos);
  CHECK(argument_error_of([&] { DiskFile({"/dev/null", 1, true}, queue); }).find("regular") !=
        std::string::npos);
  const std::string pipe = directory / "pipe";
  CHECK(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(argument_error_of([&] { DiskFile({pipe, 1, true}, queue); }).find("regular") !=
        std::string::npos);
}

void notices_a_shorter_file(const Queue& queue, const Directory& directory) {
  const std::string path = directory / "shorter";
  DiskFile file({path, 1 << 20, true}, queue);
  CHECK(truncate(path.c_str(), 5000) == 0);
  std::vector<std::byte> memory(1 << 20);
  CHECK(move(file, false, 0, memory.data(), memory.size()) == Status::kFile);
  CHECK(file.problem().text.find("shorter") != std::string::npos);
  CHECK(file.problem().text.find(path) != std::string::npos);
  CHECK(unlink(path.c_str()) == 0);  // the bytes stay as long as it is open
  CHECK(move(file, false, 0, memory.data(), 5000) == Status::kOk);
}

// What a killed process has given to the disk may be written after its end. Whoever opens the file
// next sees all of it, or nothing.
void waits_for_the_writes_of_the_killed(const Directory& directory) {
  constexpr uint64_t kBytes = 32 << 20;
  const std::string path = directory / "killed";
  // Reserving blocks would wait, too, on most file systems.
  const FileOptions options{path, kBytes, false};
  const std::shared_ptr<std::byte> before = map_file_memory(kBytes);
  const std::shared_ptr<std::byte> after = map_file_memory(kBytes);
  for (int round = 1; round <= 10; ++round) {
    Child child([&](const Child& self) {
      DiskFile file(options, std::make_shared<FileQueue>());
      const std::shared_ptr<std::byte> memory = map_file_memory(kBytes);
      std::memset(memory.get(), round, kBytes);
      FileMove all(file, true, [](Status) {});
      all.add(0, memory.get(), kBytes);
      self.tell();
      all.start();
      pause();
    });
    child.hear();
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    child.kill(SIGKILL);
    // Gone before the next child: a process with threads is no good parent.
    DiskFile file(options, std::make_shared<FileQueue>());
    CHECK(move(file, false, 0, before.get(), kBytes) == Status::kOk);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(move(file, false, 0, after.get(), kBytes) == Status::kOk);
    CHECK(std::memcmp(before.get(), after.get(), kBytes) == 0);
    CHECK(unlink(path.c_str()) == 0);  // a new file has no bytes that are read from the disk
  }
}

}  // namespace

int main() {
  waits_for_the_writes_of_the_killed(Directory("."));
  for (const auto way : {FileQueue::Way::kBest, FileQueue::Way::kThreads}) {
    const Queue queue = std::make_shared<FileQueue>(way);
    for (const char* parent : {".", "/dev/shm"}) {
      const Directory directory(parent);
      DiskFile file({directory / "model", (2 << 20) + 1234, false}, queue);
      equals_model(file, 1);
      neighbours_stay(file);
      cancels(file);
      opens(queue, directory);
      is_read_only(queue, directory);
      refuses(queue, directory);
      notices_a_shorter_file(queue, directory);
    }
  }
  return 0;
}
