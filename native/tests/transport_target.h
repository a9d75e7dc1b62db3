// A target for tests of transports: one engine's segments behind one transport, in this process or
// in a child that can be asked, stopped and killed.
#pragma once

#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/crc32c.h"
#include "../transfer/shared_file.h"
#include "../transfer/transport.h"
#include "check.h"
#include "child.h"

#if defined(__SANITIZE_THREAD__)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace transport_test {

// What a target does with its memory when it is asked comes after the copies that the initiator
// waited for: an order by way of another process, which the thread sanitizer does not see.
struct Ordered {
#if defined(__SANITIZE_THREAD__)
  Ordered() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Ordered() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Ordered() {}
  ~Ordered() {}
#endif
};

using inlay::Status;
using inlay::transfer::Access;
using inlay::transfer::Allocation;
using inlay::transfer::Bytes;
using inlay::transfer::Clock;
using inlay::transfer::Segment;
using inlay::transfer::SegmentRegistry;
using inlay::transfer::Site;
using inlay::transfer::Transport;

constexpr uint64_t kSize = 4 << 20;
constexpr std::byte kUntouched{0x55};

// Where the memory of segments comes from.
enum class From : uint8_t { kEngine, kForeign, kSharedFile };

// A named file in tmpfs, held as map_shared_file() wants it; its name is gone at once.
class LockedFile {
 public:
  explicit LockedFile(uint64_t size) {
    char name[] = "/dev/shm/inlay-test-XXXXXX";
    file_ = inlay::net::Descriptor(mkostemp(name, O_CLOEXEC));
    CHECK(file_.valid() && unlink(name) == 0);
    CHECK(ftruncate(file_.get(), static_cast<off_t>(size)) == 0);
    CHECK(flock(file_.get(), LOCK_EX | LOCK_NB) == 0);
  }
  const inlay::net::Descriptor& descriptor() const { return file_; }

 private:
  inlay::net::Descriptor file_;
};

using MakeTransport = std::function<std::unique_ptr<Transport>(Site)>;

inline std::byte pattern(uint64_t offset) {
  return std::byte((offset * 7 + (offset >> 8) * 13 + (offset >> 16)) & 0xff);
}

// Made once and compared as a whole: byte by byte the sanitizers take a second for it.
inline const std::vector<std::byte>& patterns() {
  static const std::vector<std::byte> all = [] {
    std::vector<std::byte> bytes(kSize);
    for (uint64_t i = 0; i < kSize; ++i) bytes[i] = pattern(i);
    return bytes;
  }();
  return all;
}
inline const std::vector<std::byte>& untouched() {
  static const std::vector<std::byte> all(kSize, kUntouched);
  return all;
}
inline bool is_untouched(const std::byte* bytes) {
  return std::memcmp(bytes, untouched().data(), kSize) == 0;
}

inline Clock::time_point in_ms(int ms) { return Clock::now() + std::chrono::milliseconds(ms); }

// One engine, as far as a transport sees it.
class Node {
 public:
  explicit Node(const MakeTransport& make)
      : loop_(20, [](auto) { return Clock::time_point::max(); }) {
    inlay::net::fill_random(engine);
    Site site{loop_, segments, engine, inlay::net::Token(32, std::byte{7}), "", 20, "127.0.0.1"};
    site.by_name = true;
    transport = make(site);
    CHECK(transport->problem().empty());
    loop_.start();
  }
  ~Node() {
    loop_.stop();
    transport->close();
  }

  std::shared_ptr<Segment> add(const std::string& name, Access access, From from,
                               std::shared_ptr<const inlay::transfer::Guard> guard = nullptr) {
    const bool shared = from == From::kSharedFile;
    if (shared) files_.push_back(std::make_unique<LockedFile>(kSize));
    Allocation memory = shared
                            ? inlay::transfer::map_shared_file(files_.back()->descriptor(), access)
                            : inlay::transfer::allocate_memory(kSize, access);
    auto segment =
        std::make_shared<Segment>(memory.bytes.get(), kSize, true, access, name, memory.bytes);
    if (from != From::kForeign) segment->memory = memory.memory;
    segment->guard = std::move(guard);
    segments.add(segment);
    segment->keys.push_back({std::string(transport->name()), transport->attach(*segment)});
    segments.publish(*segment);
    std::memcpy(segment->base, (access == Access::kRead ? patterns() : untouched()).data(), kSize);
    return segment;
  }

  // False: somebody still uses it.
  bool remove(const std::shared_ptr<Segment>& segment, int ms) {
    segment->close();
    segments.remove(*segment);
    return transport->detach(*segment, in_ms(ms)) && segment->wait_unused(in_ms(ms));
  }

  // As over a lane.
  Transport::Answer answer(const inlay::net::EngineId& from, const Bytes& question) {
    Transport::Answer answered;
    on_loop([&] { answered = transport->answer(from, question); });
    return answered;
  }
  void post(std::function<void()> work) { loop_.post(std::move(work)); }
  // Done when this returns. Also tells the thread sanitizer of an order that goes through another
  // process: what the loop did before was before what comes now.
  void on_loop(const std::function<void()>& work) {
    std::promise<void> done;
    loop_.post([&] {
      work();
      done.set_value();
    });
    done.get_future().get();
  }

  inlay::net::EngineId engine{};
  SegmentRegistry segments;
  std::unique_ptr<Transport> transport;

 private:
  inlay::net::Loop loop_;
  std::vector<std::unique_ptr<LockedFile>> files_;
};

// Of the segment "guarded": its first half may be written under one grant, until it is closed.
class FirstHalf final : public inlay::transfer::Guard {
 public:
  static constexpr uint64_t kGrant = 0x8000000000000001;
  bool allows(uint64_t offset, uint64_t length, uint64_t grant) const override {
    return open_.load() && grant == kGrant && offset + length <= kSize / 2;
  }
  void close() { open_.store(false); }

 private:
  std::atomic<bool> open_{true};
};
constexpr std::array kNames{"source", "sink", "guarded"};

enum class Ask : char {
  kSum = 's',        // CRC32C of the segment
  kRemove = 'r',     // 1 when nobody uses it any more, and it is filled with kUntouched then
  kUntouched = 'u',  // 1 when it is still
  kTakeBack = 't',   // 1 when nothing that was granted lands any more, and it is filled as above
  kAnswer = 'a',     // to a question for the transport, which follows; so does the answer
  kEnd = 'e',
};

class Target {
 public:
  Target(const MakeTransport& make, From from, bool same_process) {
    if (same_process) {
      node_ = std::make_unique<Node>(make);
      offer_segments(from);
      return;
    }
    std::array<int, 2> ends;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    child_ = std::make_unique<Child>([&](Child&) {
      ::close(ends[0]);
      socket_ = ends[1];
      node_ = std::make_unique<Node>(make);
      offer_segments(from);
      serve();
    });
    ::close(ends[1]);
    socket_ = ends[0];
    engine = get<inlay::net::EngineId>();
    offer = get_bytes();
    for (const char* name : kNames) CHECK(inlay::net::decode(get_bytes(), descriptors[name]));
  }
  ~Target() {
    child_ = nullptr;
    if (socket_ >= 0) ::close(socket_);
  }

  uint32_t ask(Ask what, const std::string& name = "source") {
    if (child_ == nullptr) return answer(what, name);
    const std::lock_guard lock(asking_);
    put(what);
    put(name[1]);  // s[o]urce, s[i]nk, g[u]arded
    return get<uint32_t>();
  }
  // What its transport says to a fence or another question of a path. Of any thread.
  Transport::Answer answer(const inlay::net::EngineId& from, const Bytes& question) {
    if (child_ == nullptr) return node_->answer(from, question);
    const std::lock_guard lock(asking_);
    const char head[2] = {static_cast<char>(Ask::kAnswer), '-'};
    if (::send(socket_, head, 2, MSG_NOSIGNAL) != 2) return {Status::kPeerUnreachable, {}};
    put(from);
    put_bytes(question);
    uint32_t status = 0;
    if (::recv(socket_, &status, 4, MSG_WAITALL) != 4) return {Status::kPeerUnreachable, {}};
    return {static_cast<Status>(status), get_bytes()};
  }
  Child* child() { return child_.get(); }

  inlay::net::EngineId engine{};
  Bytes offer;
  std::map<std::string, inlay::net::SegmentDescriptor> descriptors;

 private:
  void offer_segments(From from) {
    engine = node_->engine;
    offer = node_->transport->offer();
    segments_["source"] = node_->add("source", Access::kRead, from);
    segments_["sink"] = node_->add("sink", Access::kWrite, from);
    segments_["guarded"] = node_->add("guarded", Access::kWrite, from, guard_);
    for (const auto& [name, segment] : segments_)
      CHECK(node_->segments.find(name, descriptors[name]) == inlay::Status::kOk);
  }

  void serve() {
    put(engine);
    put_bytes(offer);
    for (const char* name : kNames) put_bytes(inlay::net::encode(descriptors[name]));
    for (;;) {
      const Ask what = get<Ask>();
      const char name = get<char>();
      if (what == Ask::kAnswer) {
        const auto from = get<inlay::net::EngineId>();
        const Transport::Answer answered = node_->answer(from, get_bytes());
        put(static_cast<uint32_t>(answered.status));
        put_bytes(answered.bytes);
        continue;
      }
      node_->on_loop([] {});
      const auto* const found =
          std::ranges::find(kNames, name, [](const char* one) { return one[1]; });
      const uint32_t answered = answer(what, *found);
      node_->on_loop([] {});
      put(answered);
      if (what == Ask::kEnd) return;
    }
  }

  uint32_t answer(Ask what, const std::string& name) {
    const std::shared_ptr<Segment>& segment = segments_[name];
    switch (what) {
      case Ask::kSum: {
        const Ordered ordered;
        return inlay::crc32c({segment->base, kSize});
      }
      case Ask::kRemove:
        if (!node_->remove(segment, 3000)) return 0;
        std::memset(segment->base, static_cast<int>(kUntouched), kSize);
        return 1;
      case Ask::kTakeBack: {
        guard_->close();
        if (!segment->await_pieces(in_ms(3000))) return 0;
        const Ordered ordered;
        std::memset(segment->base, static_cast<int>(kUntouched), kSize);
        return 1;
      }
      case Ask::kUntouched:
        return is_untouched(segment->base) ? 1 : 0;
      case Ask::kAnswer:
      case Ask::kEnd:
        return 1;
    }
    return 0;
  }

  template <typename T>
  void put(const T& value) {
    CHECK(::send(socket_, &value, sizeof(T), MSG_NOSIGNAL) == sizeof(T));
  }
  template <typename T>
  T get() {
    T value;
    CHECK(::recv(socket_, &value, sizeof(T), MSG_WAITALL) == sizeof(T));
    return value;
  }
  void put_bytes(const Bytes& bytes) {
    put(static_cast<uint32_t>(bytes.size()));
    CHECK(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
  }
  Bytes get_bytes() {
    Bytes bytes(get<uint32_t>());
    if (bytes.empty()) return bytes;  // there is nothing to wait for
    CHECK(::recv(socket_, bytes.data(), bytes.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(bytes.size()));
    return bytes;
  }

  std::unique_ptr<Node> node_;
  std::map<std::string, std::shared_ptr<Segment>> segments_;
  const std::shared_ptr<FirstHalf> guard_ = std::make_shared<FirstHalf>();
  int socket_ = -1;
  std::mutex asking_;
  std::unique_ptr<Child> child_;
};

}  // namespace transport_test
