// One connection of a domain: reads and writes remote memory, or lets a peer do so.
//
// Not for several threads at once: its owner locks. Closing it is the fence: afterwards the
// provider touches no memory of this process for this connection.
#pragma once

#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
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
  enum class Post { kTaken, kFull, kFailed };

  // By Domain::info_towards() of the initiator, by a request's info at the target. Throws
  // TransferFailure(kTransportUnavailable), as connect() and accept() do.
  Endpoint(Domain& domain, const fi_info& info);
  ~Endpoint() { close(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Every provider carries so much.
  static constexpr std::size_t kMaxGreeting = 48;
  // Each once, by one of the ends, which hear of the outcome by the domain's events. `greeting` is
  // what the other end is told, at most kMaxGreeting bytes.
  void connect(std::span<const std::byte> address, std::span<const std::byte> greeting);
  void accept(std::span<const std::byte> greeting);

  // Only of a connected endpoint. The completion names `owner`. kFull: again after completions.
  Post read(std::byte* to, std::size_t bytes, void* descriptor, RemoteRange from, void* owner);
  // Where the domain does not confirm writes, the completion does not mean that the bytes are
  // there: that of a later confirm() does.
  Post write(const std::byte* from, std::size_t bytes, void* descriptor, RemoteRange to,
             void* owner);
  // Reads a byte that was written.
  Post confirm(RemoteRange written, void* owner);
  std::size_t max_message() const { return max_message_; }

  // Takes up to 64 completions without waiting; how many there were. Moves bytes where the provider
  // leaves that to its callers.
  int progress(EndpointSink& sink);
  // Nothing is to be done until the wait descriptor is readable. Else progress() comes first.
  bool may_sleep();
  const Descriptor& descriptor() const { return descriptor_; }

  // Completions that did not come yet never will. The descriptor stays, for those who sleep on it.
  void close();
  const fid* id() const { return id_; }

 private:
  // libfabric's context of an operation. Lives as long as its completion queue.
  struct Operation {
    fi_context2 context{};
    void* owner = nullptr;
  };

  Post outcome(int64_t result, Operation* operation);
  Operation* take_operation(void* owner);

  Domain& domain_;
  Handle<fid_cq> completions_;
  Handle<fid_ep> endpoint_;
  const fid* id_ = nullptr;
  Descriptor descriptor_;
  std::size_t max_message_ = 0;
  std::size_t max_operations_ = 0;
  std::deque<Operation> operations_;
  std::vector<Operation*> free_;
  std::byte confirmed_{};
  Handle<fid_mr> confirmed_region_;  // where local memory has to be registered
};

}  // namespace inlay::net::fabric
