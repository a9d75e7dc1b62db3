// Engine, peers and batches.
#include <fcntl.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "array.h"
#include "module.h"
#include "transfer.h"
#include "transfer_memory.h"

namespace inlay::bindings {

using namespace nb::literals;
using transfer::Clock;
using transfer::Segment;
using transfer::State;

namespace {

constexpr double kMaxSeconds = 1e6;
// `None` as a deadline: later than any that can be given.
constexpr double kNoDeadline = 1e9;

pthread_t exiting_thread;
std::atomic<bool> exiting{false};
std::atomic<int> num_returning{0};

// While it lives, this thread asks for the GIL; from leave_waiters() on it does not get so far.
class Returning {
 public:
  Returning() {
    ++num_returning;
    if (!exiting.load() || pthread_equal(exiting_thread, pthread_self())) return;
    --num_returning;
    nb::set_leak_warnings(false);  // what this thread holds is no leak to complain about
    for (;;) pause();
  }
  Returning(const Returning&) = delete;
  Returning& operator=(const Returning&) = delete;
  ~Returning() { --num_returning; }
};

transfer::Access checked_access(int access) {
  if (access < 0 || access > 2) fail("remote: must be Access.NONE, READ or WRITE, got ", access);
  return static_cast<transfer::Access>(access);
}

double checked_deadline(std::optional<double> deadline_s) {
  return deadline_s ? checked_seconds("deadline_s", *deadline_s) : kNoDeadline;
}

using PluginFields = std::tuple<std::string, std::string, std::string>;
std::vector<transfer::Plugin> plugins_of(const std::vector<PluginFields>& plugins) {
  std::vector<transfer::Plugin> made;
  for (const auto& [name, library, problem] : plugins) made.push_back({name, library, problem});
  return made;
}

std::shared_ptr<EngineHandle> make_engine(std::string listen, const nb::bytes& token, int spin_us,
                                          std::vector<std::string> transports,
                                          std::string runtime_dir, uint32_t weight,
                                          std::map<std::string, double> nic_bandwidths,
                                          const std::vector<PluginFields>& plugins) {
  if (spin_us < 0 || spin_us > 1000000) fail("spin_us: must be in 0..1000000, got ", spin_us);
  const auto* bytes = static_cast<const std::byte*>(token.data());
  return std::make_shared<EngineHandle>(transfer::EngineOptions{
      .listen = std::move(listen),
      .token = {bytes, bytes + token.size()},
      .spin_us = spin_us,
      .transports = std::move(transports),
      .runtime_dir = std::move(runtime_dir),
      .weight = weight,
      .nic_bandwidths = std::move(nic_bandwidths),
      .plugins = plugins_of(plugins),
  });
}

SegmentHandle allocate(const std::shared_ptr<EngineHandle>& engine, int64_t size,
                       std::optional<std::string> name, int remote,
                       std::optional<int64_t> page_bytes) {
  if (size < 1) fail("size: must be at least 1, got ", size);
  const transfer::Access access = checked_access(remote);
  transfer::Engine& native = engine->get();
  const WithoutGil unlocked;  // faulting pages in takes time
  auto allocated = transfer::allocate_memory(static_cast<uint64_t>(size), access);
  auto segment =
      std::make_shared<Segment>(allocated.bytes.get(), static_cast<uint64_t>(size), true, access,
                                name ? *name : native.free_name(), allocated.bytes);
  segment->memory = std::move(allocated.memory);
  auto pages = guard_pages(*segment, page_bytes);
  native.add(segment);
  return {engine, std::move(segment), std::move(allocated.bytes), std::move(pages)};
}

std::shared_ptr<Segment> register_device(transfer::Engine& native, Memory memory,
                                         const std::string& name, transfer::Access access) {
  const auto address = reinterpret_cast<uint64_t>(memory.data);
  try {
    const WithoutGil unlocked;
    return native.add_device(address, memory.size, memory.writable, std::move(memory.keeper), name,
                             access, check_signals);
  } catch (const TransferFailure& failure) {
    if (memory.reached == Reached::kByDevice || failure.status != Status::kTransportUnavailable)
      throw;
    fail("buffer: ", memory.size, " bytes at address ", address,
         " are not all memory that this process may read; were they of a device: ", failure.what());
  }
}

SegmentHandle register_buffer(const std::shared_ptr<EngineHandle>& engine, nb::handle buffer,
                              std::optional<std::string> name, int remote,
                              std::optional<int64_t> page_bytes) {
  const transfer::Access access = checked_access(remote);
  transfer::Engine& native = engine->get();
  Memory memory = memory_of(buffer, [&native] {
    const WithoutGil unlocked;
    native.start_cuda();
  });
  const std::string chosen = name ? *name : native.free_name();
  if (access == transfer::Access::kWrite && !memory.writable)
    throw TransferFailure(Status::kSegmentAccess,
                          "segment '" + chosen + "' is a read-only buffer: peers cannot write it",
                          chosen);
  if (memory.reached != Reached::kByHost && page_bytes)
    fail("page_bytes: is of host memory; who writes a device's memory is not asked for a grant");
  if (memory.reached != Reached::kByHost)
    return {engine, register_device(native, std::move(memory), chosen, access), nullptr};
  auto segment = std::make_shared<Segment>(memory.data, memory.size, memory.writable, access,
                                           chosen, std::move(memory.keeper));
  auto pages = guard_pages(*segment, page_bytes);
  native.add(segment);
  return {engine, std::move(segment), nullptr, std::move(pages)};
}

SegmentHandle register_file(const std::shared_ptr<EngineHandle>& engine, std::string path,
                            std::optional<int64_t> size, std::optional<std::string> name,
                            int remote, bool preallocate) {
  if (size && *size < 1) fail("size: must be at least 1, got ", *size);
  const transfer::Access access = checked_access(remote);
  transfer::Engine& native = engine->get();
  transfer::FileOptions options{std::move(path), std::nullopt, preallocate};
  if (size) options.size = static_cast<uint64_t>(*size);
  const WithoutGil unlocked;
  auto segment = native.add_file(options, name ? *name : native.free_name(), access, check_signals);
  return {engine, std::move(segment), nullptr};
}

SegmentHandle register_shared_file(const std::shared_ptr<EngineHandle>& engine,
                                   const std::string& path, std::optional<std::string> name,
                                   int remote) {
  const transfer::Access access = checked_access(remote);
  transfer::Engine& native = engine->get();
  const WithoutGil unlocked;
  SharedFile file = open_shared_file(path, access);
  auto segment = std::make_shared<Segment>(file.bytes.get(), file.size, true, access,
                                           name ? *name : native.free_name(), file.bytes);
  segment->memory = std::move(file.memory);
  native.add(segment);
  return {engine, std::move(segment), std::move(file.bytes)};
}

PeerHandle connect(const std::shared_ptr<EngineHandle>& engine, const std::string& address,
                   double timeout_s) {
  checked_seconds("timeout_s", timeout_s);
  transfer::Engine& native = engine->get();
  const WithoutGil unlocked;
  return {engine, native.connect(address, timeout_s, check_signals)};
}

RemoteHandle find_segment(const PeerHandle& handle, const std::string& name) {
  constexpr double kLookup_s = 5;
  (void)handle.engine->get();
  const WithoutGil unlocked;
  return {handle.peer->segment(name, kLookup_s, check_signals)};
}

transfer::Request request_of(nb::handle item, std::size_t index) {
  if (TransferHandle* one = nullptr; nb::try_cast(item, one) && one != nullptr) return one->request;
  if (RangesHandle* many = nullptr; nb::try_cast(item, many) && many != nullptr)
    return many->request;
  fail("transfers[", index, "]: must be a Transfer or Ranges, got ",
       nb::type_name(item.type()).c_str());
}

BatchHandle submit_transfers(const std::shared_ptr<EngineHandle>& engine,
                             const nb::sequence& transfers, std::optional<double> deadline_s,
                             std::optional<nb::bytes> notify, bool verify, bool checksum) {
  const double deadline = checked_deadline(deadline_s);
  std::optional<transfer::Bytes> notification;
  if (notify) notification = body_of(*notify);
  std::vector<transfer::Request> requests;
  for (const nb::handle item : transfers) {
    requests.push_back(request_of(item, requests.size()));
    requests.back().verify = verify;
    requests.back().checksum = checksum;
  }
  transfer::Engine& native = engine->get();
  const WithoutGil unlocked;
  return {engine, native.submit(std::move(requests), deadline, notification)};
}

void move_one(const std::shared_ptr<EngineHandle>& engine, int op, nb::handle local,
              nb::handle remote, std::optional<double> deadline_s, bool verify) {
  const double deadline = checked_deadline(deadline_s);
  std::vector<transfer::Request> requests;
  requests.push_back(make_transfer(op, local, remote));
  requests.back().verify = verify;
  transfer::Engine& native = engine->get();
  BatchHandle handle{engine, nullptr};
  {
    const WithoutGil unlocked;
    handle.batch = native.submit(std::move(requests), deadline);
  }
  handle.wait(std::nullopt);
}

bool cancel(const BatchHandle& handle, double timeout_s) {
  checked_seconds("timeout_s", timeout_s);
  (void)handle.engine->get();
  const std::shared_ptr<transfer::Batch> batch = handle.batch;
  const auto grace =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  const WithoutGil unlocked;
  batch->stop(Status::kCancelled, grace);
  while (!batch->wait(Clock::now() + kSignalCheck)) check_signals();
  return batch->settled();
}

struct TransferStatus {
  const char* state;
  uint64_t bytes_done;
  nb::object error;
};

std::size_t checked_index(const transfer::Batch& batch, Py_ssize_t index) {
  const auto count = static_cast<Py_ssize_t>(batch.size());
  if (index < 0 || index >= count)
    throw nb::index_error(joined("transfer ", index, " of a batch of ", count).c_str());
  return static_cast<std::size_t>(index);
}

TransferStatus status_of(const BatchHandle& handle, Py_ssize_t index) {
  transfer::Batch& batch = *handle.batch;
  const std::size_t at = checked_index(batch, index);
  const bool over = batch.over();  // before the progress, which may end meanwhile
  const transfer::Batch::Progress now = batch.progress(at);
  if (now.complete) return {"done", now.bytes_done, nb::none()};
  if (!over) return {"running", now.bytes_done, nb::none()};
  if (batch.state() == State::kCancelled || batch.state() == State::kTimedOut)
    return {batch.state() == State::kCancelled ? "cancelled" : "timed_out", now.bytes_done,
            python_error(batch.failure())};
  return {"failed", now.bytes_done, python_error(batch.failure_of(at, now.error))};
}

std::optional<uint32_t> checksum_of(const BatchHandle& handle, Py_ssize_t index) {
  transfer::Batch& batch = *handle.batch;
  const auto at = checked_index(batch, index);
  const transfer::Batch::Progress now = batch.progress(at);
  if (!now.complete || !batch.sums_up(at)) return std::nullopt;
  return now.checksum;
}

}  // namespace

nb::object python_error(const TransferFailure& failure) {
  nb::object type = nb::module_::import_("inlay.core.errors").attr(python_class(failure.status));
  nb::object error = type(failure.what());
  if (!failure.segment.empty()) error.attr("segment") = failure.segment;
  if (!failure.peer.empty()) error.attr("peer") = failure.peer;
  if (failure.remote_settled) error.attr("remote_settled") = *failure.remote_settled;
  if (failure.system_error != 0) error.attr("errno") = failure.system_error;
  return error;
}

double checked_seconds(const char* name, double value) {
  if (!(value > 0 && value <= kMaxSeconds))
    fail(name, ": must be more than 0 and at most ", kMaxSeconds, " seconds, got ", value);
  return value;
}

void leave_waiters() {
  // Those who have asked get the GIL while they may; they wait for nothing else.
  constexpr std::chrono::seconds kMost(1);
  constexpr std::chrono::microseconds kLook(100);
  exiting_thread = pthread_self();
  exiting.store(true);
  if (num_returning.load() > 0) nb::set_leak_warnings(false);  // they end in the middle of calls
  const Clock::time_point end = Clock::now() + kMost;
  const nb::gil_scoped_release unlocked;
  while (num_returning.load() > 0 && Clock::now() < end) std::this_thread::sleep_for(kLook);
}

WithoutGil::~WithoutGil() {
  const Returning returning;
  PyEval_RestoreThread(state_);
}

void check_signals() {
  const Returning returning;
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

EngineHandle::EngineHandle(transfer::EngineOptions options)
    : engine_(new transfer::Engine(std::move(options))) {}

EngineHandle::~EngineHandle() {
  if (!engine_->made_here()) return;
  close();
  delete engine_;
}

transfer::Engine& EngineHandle::get() const {
  if (!engine_->made_here())
    throw TransferFailure(Status::kEngineClosed,
                          "this transfer engine was made before a fork, in the parent process; "
                          "make a new one in the child");
  return *engine_;
}

void EngineHandle::close() {
  std::vector<std::shared_ptr<Segment>> segments;
  {
    const WithoutGil unlocked;
    const std::lock_guard lock(closing_);  // who comes second finds it closed, too
    segments = engine_->close();
    for (const auto& segment : segments) segment->wait_unused(Clock::time_point::max());
  }
  for (const auto& segment : segments) segment->take_keeper();
}

void BatchHandle::wait(std::optional<double> timeout_s) const {
  if (timeout_s && !(*timeout_s >= 0 && *timeout_s <= kMaxSeconds))
    fail("timeout_s: must be in 0..", kMaxSeconds, " or None, got ", *timeout_s);
  (void)engine->get();
  const Clock::time_point end = timeout_s
                                    ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                         std::chrono::duration<double>(*timeout_s))
                                    : Clock::time_point::max();
  // The object may be dropped by another thread while the GIL is released.
  const std::shared_ptr<transfer::Batch> moved = batch;
  const WithoutGil unlocked;
  while (!moved->wait(std::min(end, Clock::now() + kSignalCheck))) {
    check_signals();
    if (Clock::now() >= end)
      throw WaitTimeoutError(joined("the batch was not over after ", *timeout_s,
                                    " s; it goes on: wait again, or cancel it"));
  }
  if (moved->state() != State::kDone) throw moved->failure();
}

void register_transfer_engine(nb::module_& m) {
  m.def("leave_waiters", leave_waiters);

  nb::class_<TransferStatus>(
      m, "TransferStatus",
      "How far one transfer is: `state` (running, done, failed, cancelled, timed_out),\n"
      "`bytes_done` (answered for), and the `error` that it ended with, or None.")
      .def_prop_ro("state", [](const TransferStatus& s) { return s.state; })
      .def_ro("bytes_done", &TransferStatus::bytes_done)
      .def_ro("error", &TransferStatus::error);

  nb::class_<BatchHandle>(
      m, "Batch",
      "Transfers that were submitted together. They go on when this object is dropped.\n\n"
      "`await batch` is `wait()` for asyncio: no thread waits, the engine's own moves the bytes.\n"
      "When the awaiting task is cancelled, so is the batch.\n\n"
      "A failed write may have landed any part of its bytes, a failed read leaves its local range\n"
      "undefined. Do not change the source, or read the target, before the batch is done.")
      .def("wait", &BatchHandle::wait, "timeout_s"_a = nb::none(),
           "Return when all is done; this thread moves the bytes meanwhile, without the GIL.\n\n"
           "Raises:\n"
           "    WaitTimeoutError: not over after `timeout_s`; the batch goes on.\n"
           "    TransferTimeoutError, TransferCancelledError: with `remote_settled`.\n"
           "    PeerDiedError, PeerUnreachableError, SegmentClosedError, ...: the first failure;\n"
           "        `status(i)` has each transfer's.")
      .def("__await__",
           [](nb::handle self) {
             return nb::module_::import_("inlay.transfer.asyncio")
                 .attr("wait")(self)
                 .attr("__await__")();
           })
      .def("cancel", cancel, nb::kw_only(), "timeout_s"_a = 1.0,
           "End it, and wait until nothing of it touches local memory.\n\n"
           "Returns whether nothing of it can land in remote memory either. False: the peer did\n"
           "not answer for writes within `timeout_s`; `settled` turns true if it does later.")
      .def("status", status_of, "index"_a, "How far transfer `index` of the submission is.")
      .def("checksum", checksum_of, "index"_a,
           "The CRC32C of the bytes of transfer `index`, in the order of its ranges, as they\n"
           "passed. None: it is not complete, or was submitted without `checksum`.")
      .def_prop_ro(
          "done", [](const BatchHandle& h) { return h.batch->over(); },
          "It is over: complete, failed, cancelled or timed out.")
      .def_prop_ro(
          "settled", [](const BatchHandle& h) { return h.batch->over() && h.batch->settled(); },
          "It is over, and nothing of it can land in remote memory any more.")
      .def("__len__", [](const BatchHandle& h) { return h.batch->size(); });

  nb::class_<PeerHandle>(m, "Peer",
                         "A connected engine. `peer['kv']` is its segment of that name, asked for\n"
                         "once (SegmentNotFoundError names what the peer has).")
      .def_prop_ro("address", [](const PeerHandle& h) { return h.peer->address; })
      .def_prop_ro("engine_id", [](const PeerHandle& h) { return net::hex(h.peer->engine); })
      .def_prop_ro("alive", [](const PeerHandle& h) { return h.peer->alive(); })
      .def_prop_ro(
          "problems", [](const PeerHandle& h) { return h.peer->problems(); },
          "Why bytes take fewer ways to it than there are: 'transport: reason' for each.")
      .def("send", send_message, "topic"_a, "body"_a, nb::kw_only(), "deadline_s"_a = 5.0,
           "Give the peer's engine a message; return when it has it, once.\n\n"
           "The peer takes it with `recv` or `messages`; those of one thread arrive in order.\n"
           "`topic` has at most 255 bytes as UTF-8, `body` at most 256 KiB.\n\n"
           "Raises:\n"
           "    TransferTimeoutError: the peer does not answer, or 1024 messages or 16 MiB wait\n"
           "        there that nobody receives. The message is not delivered later.\n"
           "    PeerDiedError: the connection was lost; it may have arrived.")
      .def("__getitem__", find_segment, "name"_a);

  nb::class_<EngineHandle>(m, "Engine")
      .def(nb::new_(&make_engine), "listen"_a, "token"_a, "spin_us"_a, "transports"_a,
           "runtime_dir"_a, "weight"_a, "nic_bandwidths"_a, "plugins"_a)
      .def_prop_ro("made_here", &EngineHandle::made_here)
      .def_prop_ro("address", [](const EngineHandle& e) { return e.get().address(); })
      .def_prop_ro("engine_id", [](const EngineHandle& e) { return net::hex(e.get().id()); })
      .def_prop_ro("transports",
                   [](const EngineHandle& e) {
                     nb::dict problems;
                     for (const auto& [transport, text] : e.get().transports())
                       problems[transport.c_str()] = text;
                     return problems;
                   })
      .def("allocate", allocate, "size"_a, "name"_a.none(), "remote"_a, "page_bytes"_a.none())
      .def("register", register_buffer, "buffer"_a.none(), "name"_a.none(), "remote"_a,
           "page_bytes"_a.none())
      .def("register_file", register_file, "path"_a, "size"_a.none(), "name"_a.none(), "remote"_a,
           "preallocate"_a)
      .def("register_shared_file", register_shared_file, "path"_a, "name"_a.none(), "remote"_a,
           "A named file of tmpfs, of mode 0600, as memory that peers of this host map. It is "
           "locked\n"
           "(flock) until it is deregistered; the next process finds what it holds. Nobody may "
           "make\n"
           "it smaller meanwhile.")
      .def("connect", connect, "address"_a, "timeout_s"_a)
      .def("submit", submit_transfers, "transfers"_a, "deadline_s"_a.none(), "notify"_a.none(),
           "verify"_a, "checksum"_a)
      .def("recv", receive_message, "timeout_s"_a.none())
      .def("move", move_one, "op"_a, "local"_a.none(), "remote"_a.none(), "deadline_s"_a.none(),
           "verify"_a)
      .def("close", [](EngineHandle& e) {
        (void)e.get();
        e.close();
      });
}

void register_transfer(nb::module_& m) {
  register_transfer_views(m);
  register_transfer_engine(m);
  register_transfer_checksum(m);
  register_transfer_topology(m);
  register_transfer_paths(m);
  register_transfer_fabric(m);
  register_transfer_completions(m);
}

}  // namespace inlay::bindings
