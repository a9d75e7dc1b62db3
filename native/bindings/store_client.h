// Python's handle on what a process has of a store: its link to the master, and a client.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <tuple>

#include "../core/interrupt.h"
#include "../store/call_queue.h"
#include "../store/client.h"
#include "../transfer/cuda_devices.h"
#include "transfer.h"

namespace inlay::bindings {

// A forked child leaves it behind as it is: the threads of its parent do not exist there.
struct LinkHandle {
  explicit LinkHandle(std::unique_ptr<store::MasterLink> made) : link(made.release()) {}
  LinkHandle(const LinkHandle&) = delete;
  LinkHandle& operator=(const LinkHandle&) = delete;
  ~LinkHandle();

  bool made_here() const { return generation == net::fork_generation(); }
  // Throws StoreFailure(kClosed) in a forked child.
  store::MasterLink& get() const;

  store::MasterLink* link;
  unsigned generation = net::fork_generation();
};

// As PutOptions of inlay.store has them: replicas, all_replicas, preferred_node, require_preferred,
// if_exists, flags, group, on_disk, recompute_us. Plain values, since Python keeps some for as long
// as it runs.
using PutFields = std::tuple<int, bool, std::string, bool, int, int, std::string, bool, uint32_t>;
store::PutOptions options_of(const PutFields& fields);

class ClientHandle {
 public:
  ClientHandle(std::shared_ptr<LinkHandle> link, std::shared_ptr<EngineHandle> engine,
               bool may_map);
  ClientHandle(const ClientHandle&) = delete;
  ClientHandle& operator=(const ClientHandle&) = delete;
  ~ClientHandle();

  store::StoreClient& get() const;
  // Of calls that are awaited.
  store::CallQueue& calls() const { return *calls_; }
  // Whose memory buffers may be.
  const std::shared_ptr<transfer::CudaDevices>& devices() const { return devices_; }
  void close();

 private:
  std::shared_ptr<LinkHandle> link_;
  std::shared_ptr<EngineHandle> engine_;
  const std::shared_ptr<transfer::CudaDevices> devices_;
  store::StoreClient* client_;
  store::CallQueue* calls_;
};

// Without the GIL, and, in the thread that Python's signals are for, until one of them raises.
class Waiting {
 public:
  Waiting() : interruptible_(getpid() == gettid() ? is_signalled : nullptr) {}

 private:
  static bool is_signalled() {
    const nb::gil_scoped_acquire locked;
    return PyErr_CheckSignals() != 0;
  }

  const WithoutGil unlocked_;
  const Interruptible interruptible_;
};

// What `view` returns: read-only, and in place as long as anybody has it.
struct ViewHandle {
  store::ObjectView view;
};

// None, or (generation, bytes, flags, wanted replicas, lease left ms, hits, [(node, tier)])
nanobind::object stat_tuple(const store::Stat::Answer& answer,
                            const store::Reaches::List& segments);

}  // namespace inlay::bindings
