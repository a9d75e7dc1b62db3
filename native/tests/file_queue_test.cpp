// The same cases with a ring and with threads.
#include "../net/file_queue.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.h"

using inlay::net::FileForm;
using inlay::net::FileIo;
using inlay::net::FileIoOwner;
using inlay::net::FileQueue;
using inlay::net::kBounceBytes;
using inlay::net::kFileBlockBytes;

namespace {

constexpr std::size_t kFileBytes = 4 << 20;

class Owner : public FileIoOwner {
 public:
  bool begin(const FileIo& io, std::byte* bounce) override {
    begun.fetch_add(1);
    if (io.write && io.form == FileForm::kBounced) std::memcpy(bounce, io.memory, io.bytes);
    return wanted.load();
  }
  void done(FileIo&) override {
    const std::lock_guard lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
  void wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return done_ >= count; }));
    CHECK(done_ == count);
  }
  std::atomic<bool> wanted{true};
  std::atomic<std::size_t> begun{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t done_ = 0;
};

struct Files {
  int plain = -1;
  int direct = -1;  // or the plain one, where the file system takes no O_DIRECT
  std::vector<std::byte> bytes;

  Files() : bytes(kFileBytes) {
    std::mt19937_64 random(1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    char name[] = "file_queue_test.XXXXXX";
    plain = mkstemp(name);
    CHECK(plain >= 0);
    CHECK(write(plain, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    fsync(plain);
    direct = open(name, O_RDWR | O_DIRECT);
    if (direct < 0) direct = dup(plain);
    unlink(name);
  }
  ~Files() {
    close(plain);
    close(direct);
  }
};

struct Free {
  void operator()(std::byte* at) const { std::free(at); }
};
using Memory = std::unique_ptr<std::byte, Free>;
Memory aligned(std::size_t bytes) {
  return Memory(static_cast<std::byte*>(std::aligned_alloc(kFileBlockBytes, bytes)));
}

void link(std::vector<FileIo>& list) {
  for (std::size_t i = 0; i + 1 < list.size(); ++i) list[i].next = &list[i + 1];
}

// Reads of every form, more than fit at once.
void reads(FileQueue& queue, Files& files) {
  Owner owner;
  std::mt19937_64 random(2);
  const auto memory = aligned(kFileBytes);
  std::vector<FileIo> list(300);
  std::size_t at = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    FileIo& io = list[i];
    const bool direct = i % 3 == 1;
    const uint64_t offset = random() % (kFileBytes - 8192);
    const auto bytes = static_cast<uint32_t>(1 + random() % 8000);
    at = (at + 4095) / 4096 * 4096;
    io.owner = &owner;
    io.form = direct ? FileForm::kDirect : i % 3 == 2 ? FileForm::kBounced : FileForm::kPlain;
    io.file = i % 3 == 0 ? files.plain : files.direct;
    io.offset = direct ? offset / 4096 * 4096 : offset;
    io.bytes = direct ? 8192 : bytes;
    io.memory = memory.get() + at + (direct ? 0 : 3);
    at += io.bytes + 3;
  }
  CHECK(at <= kFileBytes);
  link(list);
  queue.post(list.data());
  owner.wait(list.size());
  for (const FileIo& io : list) {
    CHECK(io.error == 0);
    CHECK(std::memcmp(io.memory, &files.bytes[io.offset], io.bytes) == 0);
  }
}

void writes(FileQueue& queue, Files& files) {
  Owner owner;
  const auto memory = aligned(kFileBytes);
  std::memset(memory.get(), 0x5a, kFileBytes);
  std::vector<FileIo> list(3);
  list[0] = {&owner, files.plain, true, FileForm::kPlain, 17, memory.get() + 1, 1001};
  list[1] = {&owner, files.direct, true, FileForm::kDirect, 8192, memory.get(), 1 << 20};
  list[2] = {&owner,  files.direct,     true,        FileForm::kBounced,
             2 << 20, memory.get() + 5, kBounceBytes};
  link(list);
  queue.post(list.data());
  owner.wait(3);
  for (const FileIo& io : list) {
    CHECK(io.error == 0);
    std::memset(&files.bytes[io.offset], 0x5a, io.bytes);
  }
  std::vector<std::byte> now(kFileBytes);
  CHECK(pread(files.plain, now.data(), kFileBytes, 0) == static_cast<ssize_t>(kFileBytes));
  CHECK(now == files.bytes);
}

void tells_of_errors(FileQueue& queue, const Files& files) {
  Owner owner;
  const auto memory = aligned(5 * 8192);
  const int read_only = open("/proc/self/exe", O_RDONLY);
  std::vector<FileIo> list(5);
  list[0] = {&owner, files.plain, false, FileForm::kPlain, kFileBytes - 5, memory.get(), 6};
  list[1] = {&owner, files.direct, false, FileForm::kBounced, kFileBytes, memory.get() + 8192, 1};
  list[2] = {
      &owner, files.direct, false, FileForm::kDirect, kFileBytes - 4096, memory.get() + 16384,
      8192};
  list[3] = {&owner, -1, false, FileForm::kPlain, 0, memory.get() + 24576, 1};
  list[4] = {&owner, read_only, true, FileForm::kPlain, 0, memory.get() + 32768, 1};
  link(list);
  queue.post(list.data());
  owner.wait(5);
  CHECK(list[0].error == ENODATA && list[1].error == ENODATA && list[2].error == ENODATA);
  CHECK(list[3].error == EBADF && list[4].error == EBADF);
  close(read_only);
}

void is_refused_by_the_limit(FileQueue& queue, const Files& files) {
  // What a full disk looks like without a disk to fill: a write that lands in part, then fails.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = kFileBytes + 100;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  Owner owner;
  const auto memory = aligned(8192);
  std::memset(memory.get(), 1, 8192);
  FileIo io{&owner, files.plain, true, FileForm::kPlain, kFileBytes, memory.get(), 4096};
  queue.post(&io);
  owner.wait(1);
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK(io.error == EFBIG);
  CHECK(ftruncate(files.plain, kFileBytes) == 0);
}

void leaves_what_is_not_wanted(FileQueue& queue, const Files& files) {
  Owner owner;
  owner.wanted = false;
  std::byte memory[100] = {};
  std::vector<FileIo> list(200);
  for (FileIo& io : list) io = {&owner, files.plain, false, FileForm::kPlain, 0, memory, 100};
  link(list);
  queue.post(list.data());
  owner.wait(list.size());
  CHECK(owner.begun == list.size());
  for (const FileIo& io : list) CHECK(io.error == ECANCELED);
  for (const std::byte byte : memory) CHECK(byte == std::byte{0});
}

void many_post(FileQueue& queue, const Files& files) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Owner owner;
      std::byte byte{};
      FileIo io;
      for (std::size_t round = 1; round <= 200; ++round) {
        const uint64_t at = 1000 * round + static_cast<uint64_t>(t);
        io = {&owner, files.plain, false, FileForm::kPlain, at, &byte, 1};
        queue.post(&io);
        owner.wait(round);
        CHECK(io.error == 0 && byte == files.bytes[at]);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

void stops(FileQueue::Way way, const Files& files) {
  for (int round = 0; round < 20; ++round) {
    FileQueue queue(way);
    Owner owner;
    std::vector<FileIo> list(500);
    const auto memory = aligned(list.size() * 4096);
    for (std::size_t i = 0; i < list.size(); ++i)
      list[i] = {&owner, files.direct, false, FileForm::kDirect, 0, memory.get() + 4096 * i, 4096};
    link(list);
    queue.post(list.data());
    while (round % 2 == 1 && owner.begun == 0) std::this_thread::yield();
    queue.stop();
    owner.wait(list.size());
    FileIo late{&owner, files.plain, false, FileForm::kPlain, 0, memory.get(), 1};
    queue.post(&late);
    owner.wait(list.size() + 1);
    CHECK(late.error == ECANCELED);
    for (const FileIo& io : list) CHECK(io.error == 0 || io.error == ECANCELED);
  }
}

}  // namespace

int main() {
  for (const auto way : {FileQueue::Way::kBest, FileQueue::Way::kThreads}) {
    Files files;
    FileQueue queue(way);
    if (way == FileQueue::Way::kBest && queue.ring_problem() != 0)
      std::printf("no io_uring here: %s\n", std::strerror(queue.ring_problem()));
    reads(queue, files);
    writes(queue, files);
    tells_of_errors(queue, files);
    is_refused_by_the_limit(queue, files);
    leaves_what_is_not_wanted(queue, files);
    many_post(queue, files);
    stops(way, files);
  }
  return 0;
}
