// One end of what two engines share of a fabric: reads and writes the other's memory, or lets it do
// so. Whoever makes one is joined with one other end and no more.
//
// Not for several threads at once: its owner locks. Closing it is the fence: afterwards the
// provider touches no memory of this process for the other end.
#pragma once

#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "domain.h"

namespace inlay::net::fabric {

// Told by Endpoint::progress(). `error`: 0, or a positive error of libfabric.
class EndpointSink {
 public:
  virtual void on_completion(void* owner, int error) = 0;

 protected:
  ~EndpointSink() = default;
};

struct RemoteRange {
  uint64_t address;  // in the owner's address space, or an offset: as its domain addresses memory
  uint64_t key;
};

class Endpoint {
 public:
  enum class Post : uint8_t { kTaken, kFull, kFailed };

  virtual ~Endpoint() { close(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Only when it is joined. The completion names `owner`. kFull: again after progress().
  Post read(std::byte* to, std::size_t bytes, void* descriptor, RemoteRange from, void* owner);
  // Where the domain does not confirm writes, the completion does not mean that the bytes are
  // there: that of a later confirm() does.
  Post write(const std::byte* from, std::size_t bytes, void* descriptor, RemoteRange to,
             void* owner);
  // Reads a byte that was written.
  Post confirm(RemoteRange written, void* owner) { return peek(written, 1, owner); }
  // Reads the first bytes of a range into peeked().
  static constexpr std::size_t kMaxPeek = 16;
  Post peek(RemoteRange from, std::size_t bytes, void* owner);
  std::span<const std::byte, kMaxPeek> peeked() const { return peeked_; }
  std::size_t max_message() const { return max_message_; }

  // Takes up to 64 completions without waiting; how many there were. Moves bytes where the provider
  // leaves that to its callers.
  int progress(EndpointSink& sink);
  // Nothing is to be done until the descriptor is readable. Else progress() comes first.
  virtual bool may_sleep() = 0;
  const Descriptor& descriptor() const { return descriptor_; }

  // Completions that did not come yet never will. The descriptor stays, for those who sleep on it.
  void close();

 protected:
  // `wait`: what its completions are waited for with.
  Endpoint(Domain& domain, const fi_info& info, fi_wait_obj wait);
  void bind(const char* what, fid& object, uint64_t flags);
  void enable();
  bool is_busy() const { return free_.size() < operations_.size() || turned_away_; }
  virtual void on_progress(int taken) { (void)taken; }

  Domain& domain_;
  // Closed the other way round.
  Handle<fid_cq> completions_;
  Handle<fid_av> addresses_;  // null: connected
  Handle<fid_ep> endpoint_;
  Descriptor descriptor_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;

 private:
  // libfabric's context of an operation. Lives as long as its completion queue.
  struct Operation {
    fi_context2 context{};
    void* owner = nullptr;
  };

  Post outcome(int64_t result, Operation* operation);
  Operation* take_operation(void* owner);

  std::size_t max_message_ = 0;
  std::size_t max_operations_ = 0;
  std::deque<Operation> operations_;
  std::vector<Operation*> free_;
  bool turned_away_ = false;  // by the provider, the last time
  std::array<std::byte, kMaxPeek> peeked_{};
  std::optional<MemoryRegion> peeked_region_;  // where local memory has to be registered
};

}  // namespace inlay::net::fabric
