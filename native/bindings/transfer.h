// Python's handles on the transfer engine. Their members are checked; they own no policy.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "../core/status.h"
#include "../transfer/completions.h"
#include "../transfer/engine.h"
#include "../transfer/page_guard.h"

namespace inlay::bindings {

namespace nb = nanobind;

// The error of inlay.core.errors that says the same; a new reference.
nb::object python_error(const TransferFailure& failure);

// In a forked child it is left behind as it is: its thread does not exist there.
class EngineHandle {
 public:
  explicit EngineHandle(transfer::EngineOptions options);
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;
  ~EngineHandle();

  // False in a forked child, where get() throws TransferFailure.
  bool made_here() const { return engine_->made_here(); }
  transfer::Engine& get() const;
  void close();

 private:
  transfer::Engine* engine_;
  std::mutex closing_;
};

struct SegmentHandle {
  std::shared_ptr<EngineHandle> engine;
  std::shared_ptr<transfer::Segment> segment;
  std::shared_ptr<std::byte> memory;  // of allocated segments: exported as a buffer
  std::shared_ptr<transfer::PageGuard> pages = nullptr;  // of a guarded segment
};

// A byte range of a segment here, or of a peer's.
struct LocalView {
  std::shared_ptr<transfer::Segment> segment;
  uint64_t offset;
  uint64_t size;
};
struct RemoteView {
  std::shared_ptr<transfer::RemoteSegment> segment;
  uint64_t offset;
  uint64_t size;
};
struct RemoteHandle {
  std::shared_ptr<transfer::RemoteSegment> segment;
};

struct TransferHandle {
  transfer::Request request;
};
struct RangesHandle {
  transfer::Request request;
};

struct BatchHandle {
  std::shared_ptr<EngineHandle> engine;
  std::shared_ptr<transfer::Batch> batch;

  void wait(std::optional<double> timeout_s) const;
};

struct CompletionsHandle {
  std::shared_ptr<transfer::Completions> queue = std::make_shared<transfer::Completions>();
};

struct PeerHandle {
  std::shared_ptr<EngineHandle> engine;
  std::shared_ptr<transfer::Peer> peer;
};

// What Transfer(op, local, remote) describes.
transfer::Request make_transfer(int op, nb::handle local, nb::handle remote);

// Before the segment is added. Null without page_bytes. Throws ArgumentError.
std::shared_ptr<transfer::PageGuard> guard_pages(transfer::Segment& segment,
                                                 std::optional<int64_t> page_bytes);
uint64_t grant_pages(const SegmentHandle& handle, nb::handle page_ids);
bool revoke_grant(const SegmentHandle& handle, uint64_t grant, double timeout_s);

transfer::Bytes body_of(const nb::bytes& body);
void send_message(const PeerHandle& handle, const std::string& topic, const nb::bytes& body,
                  double deadline_s);
// (engine_id, topic, body, notification)
nb::tuple receive_message(const std::shared_ptr<EngineHandle>& engine,
                          std::optional<double> timeout_s);

// Of a call's argument: more than 0, at most 10^6.
double checked_seconds(const char* name, double value);

// Lets other Python threads run while this one waits.
//
// At exit the interpreter ends a daemon thread that asks for the GIL by unwinding its stack, which
// C++ takes for an error and aborts. So from leave_waiters() on threads that wait here do not come
// back, except the one that called it. That waits for those that had asked before.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil();

 private:
  PyThreadState* state_;
};
void leave_waiters();

// Python's signal handlers run; what they raise is thrown. Call it without the GIL.
void check_signals();

void register_transfer_views(nb::module_& m);
void register_transfer_engine(nb::module_& m);
void register_transfer_checksum(nb::module_& m);
void register_transfer_topology(nb::module_& m);
void register_transfer_paths(nb::module_& m);
void register_transfer_fabric(nb::module_& m);
void register_transfer_completions(nb::module_& m);

}  // namespace inlay::bindings
