// A disk log in a folder of its own, and records whose bytes follow from their key and generation.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "../store/disk_log.h"
#include "../transfer/disk_file.h"
#include "check.h"

namespace inlay::store {

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "inlay-log-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const char* name = "log") const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Its first 8 bytes say its length, so that it can be checked alone.
inline std::vector<std::byte> record_of(const std::string& key, uint64_t generation,
                                        std::size_t bytes) {
  std::vector<std::byte> record(bytes);
  std::minstd_rand random(static_cast<unsigned>(std::hash<std::string>{}(key) + generation * 31));
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(record.data() + i, &word, 4);
  }
  return record;
}

struct OpenLog {
  explicit OpenLog(const DiskLogOptions& options, bool with_ring = true)
      : queue(std::make_shared<net::FileQueue>(with_ring ? net::FileQueue::Way::kBest
                                                         : net::FileQueue::Way::kThreads)),
        file(file_of(options), queue),
        log(file, options) {}
  ~OpenLog() { queue->stop(); }

  LogStatus put(const std::string& key, uint64_t generation, std::size_t bytes) {
    const std::vector<std::byte> record = record_of(key, generation, bytes);
    const LogItem item{key, generation, record};
    return log.append({&item, 1}).status;
  }
  LogStatus remove(const std::string& key, uint64_t generation) {
    const DiskLog::Removal removal{key, generation};
    return log.remove({&removal, 1});
  }
  // The generation that is found; its bytes are checked.
  std::optional<uint64_t> get(const std::string& key) {
    const auto found = log.find(key);
    if (!found) return {};
    std::vector<std::byte> into(found->bytes);
    DiskLog::Read read{key, found->generation, 0, into};
    log.read({&read, 1});
    CHECK(read.status == LogStatus::kOk);
    CHECK(into == record_of(key, found->generation, into.size()));
    return found->generation;
  }

  std::shared_ptr<net::FileQueue> queue;
  transfer::DiskFile file;
  DiskLog log;
};

}  // namespace inlay::store
