// The C interface to engines, segments and peers. It checks what comes in and owns no policy.
#include "c_api.h"

#include "../core/mappings.h"

namespace inlay::c_api {

namespace {

template <std::size_t kBytes>
void put(char (&field)[kBytes], const std::string& text) {
  std::size_t bytes = std::min(text.size(), kBytes - 1);
  // Not in the middle of a UTF-8 character.
  if (bytes < text.size())
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  std::memcpy(field, text.data(), bytes);
  field[bytes] = 0;
}

}  // namespace

inlay_status report(inlay_error* error, inlay_status code, const std::string& text,
                    const TransferFailure* failure) {
  if (error == nullptr) return code;
  inlay_error whole{};
  whole.size = error->size;
  whole.code = code;
  whole.remote_settled = -1;
  put(whole.text, text);
  if (failure != nullptr) {
    put(whole.peer, failure->peer);
    put(whole.segment, failure->segment);
    if (failure->remote_settled) whole.remote_settled = *failure->remote_settled ? 1 : 0;
  }
  std::memcpy(error, &whole, std::min(error->size, sizeof(whole)));
  return code;
}

transfer::Engine& living(const std::shared_ptr<transfer::Engine>& engine) {
  if (!engine->made_here())
    throw TransferFailure(Status::kEngineClosed,
                          "this engine was made before a fork, in the parent process; make a new "
                          "one in the child");
  return *engine;
}

double seconds(const char* name, double value) {
  if (!(value > 0 && value <= kMaxSeconds))
    throw ArgumentError(std::string(name) + ": must be more than 0 and at most 1e6 seconds, got " +
                        std::to_string(value));
  return value;
}

}  // namespace inlay::c_api

namespace transfer = inlay::transfer;
using namespace inlay::c_api;
using inlay::ArgumentError;
using inlay::Status;
using inlay::TransferFailure;
using inlay::WaitTimeoutError;
using transfer::Clock;
using transfer::Engine;

namespace {

constexpr int kDefaultSpin_us = 50;

// Kept by every handle. In a forked child it is left behind as it is: its thread is not there.
std::shared_ptr<Engine> hold(Engine* engine) {
  return {engine, [](Engine* held) {
            if (held->made_here()) delete held;
          }};
}

transfer::Access checked_access(int32_t access) {
  if (access < INLAY_ACCESS_NONE || access > INLAY_ACCESS_WRITE)
    throw ArgumentError("remote_access: must be INLAY_ACCESS_NONE, _READ or _WRITE, got " +
                        std::to_string(access));
  return static_cast<transfer::Access>(access);
}

inlay_segment* add(const std::shared_ptr<Engine>& engine, std::byte* data, uint64_t bytes,
                   bool writable, const char* name, int32_t remote_access,
                   transfer::Allocation memory) {
  const transfer::Access access = checked_access(remote_access);
  const std::string chosen = name == nullptr ? engine->free_name() : name;
  if (access == transfer::Access::kWrite && !writable)
    throw TransferFailure(Status::kSegmentAccess,
                          "segment '" + chosen + "' is read-only memory: peers cannot write it",
                          chosen);
  auto handle = std::make_unique<inlay_segment>();
  handle->engine = engine;
  handle->memory = std::move(memory.bytes);
  handle->segment =
      std::make_shared<transfer::Segment>(data, bytes, writable, access, chosen, handle->memory);
  handle->segment->memory = std::move(memory.memory);
  engine->add(handle->segment);
  return handle.release();
}

}  // namespace

uint32_t inlay_transfer_abi(void) { return 1; }

inlay_status inlay_engine_open(const inlay_engine_options* options, inlay_engine** engine,
                               inlay_error* error) {
  return guarded(error, [&] {
    const auto known = known_part(options, given(options, "options").size, "options");
    given(engine, "engine");
    const auto* token = static_cast<const std::byte*>(known.token);
    if (known.token_bytes > 0) given(token, "options.token");
    if (known.token_bytes > 64)
      throw ArgumentError("options.token_bytes: must be 16..64, got " +
                          std::to_string(known.token_bytes));
    if (known.spin_us > 1000000)
      throw ArgumentError("options.spin_us: must be at most 1000000, got " +
                          std::to_string(known.spin_us));
    const int spin_us = known.spin_us == 0 ? kDefaultSpin_us : std::max(known.spin_us, 0);
    transfer::EngineOptions native{known.listen == nullptr ? "127.0.0.1:0" : known.listen,
                                   {token, token + known.token_bytes},
                                   spin_us};
    if (known.num_plugins > 0) given(known.plugins, "options.plugins");
    for (std::size_t i = 0; i < known.num_plugins; ++i)
      native.plugins.push_back({{}, &given(known.plugins[i], "options.plugins[i]")});
    auto handle = std::make_unique<inlay_engine>();
    handle->engine = hold(new Engine(std::move(native)));
    handle->address = handle->engine->address();
    *engine = handle.release();
  });
}

const char* inlay_engine_address(const inlay_engine* engine) {
  return engine == nullptr ? "" : engine->address.c_str();
}

inlay_status inlay_engine_close(inlay_engine* engine, double timeout_s, inlay_error* error) {
  if (engine == nullptr) return INLAY_OK;
  return guarded(error, [&] {
    const Clock::time_point end = after(seconds("timeout_s", timeout_s));
    if (engine->engine->made_here()) {
      for (auto& segment : engine->engine->close()) engine->closing.push_back(std::move(segment));
      for (const auto& segment : engine->closing)
        if (!segment->wait_unused(end))
          throw WaitTimeoutError("segment '" + segment->name +
                                 "' was still in use; its memory must stay: call again");
      for (const auto& segment : engine->closing) segment->take_keeper();
    }
    delete engine;
  });
}

inlay_status inlay_segment_allocate(inlay_engine* engine, uint64_t bytes, const char* name,
                                    int32_t remote_access, inlay_segment** segment,
                                    inlay_error* error) {
  return guarded(error, [&] {
    living(given(engine, "engine").engine);
    given(segment, "segment");
    const transfer::Access access = checked_access(remote_access);
    if (bytes == 0 || bytes > INT64_MAX)
      throw ArgumentError("bytes: must be in 1..2^63-1, got " + std::to_string(bytes));
    auto memory = transfer::allocate_memory(bytes, access);
    std::byte* const data = memory.bytes.get();
    *segment = add(engine->engine, data, bytes, true, name, remote_access, std::move(memory));
  });
}

inlay_status inlay_segment_register(inlay_engine* engine, void* data, uint64_t bytes,
                                    const char* name, int32_t remote_access,
                                    inlay_segment** segment, inlay_error* error) {
  return guarded(error, [&] {
    living(given(engine, "engine").engine);
    given(segment, "segment");
    given(static_cast<char*>(data), "data");
    if (bytes == 0) throw ArgumentError("bytes: must be at least 1, got 0");
    const auto address = reinterpret_cast<uintptr_t>(data);
    const inlay::Protection found = inlay::protection_of(address, bytes);
    if (address + bytes < address || !found.readable)
      throw ArgumentError("data: these " + std::to_string(bytes) +
                          " bytes are not all memory that this process may read");
    *segment = add(engine->engine, static_cast<std::byte*>(data), bytes, found.writable, name,
                   remote_access, {});
  });
}

inlay_status inlay_segment_register_device(inlay_engine* engine, uint64_t address, uint64_t bytes,
                                           const char* location, const char* name,
                                           int32_t remote_access, inlay_segment** segment,
                                           inlay_error* error) {
  return guarded(error, [&] {
    Engine& native = living(given(engine, "engine").engine);
    given(segment, "segment");
    if (address == 0 || bytes == 0)
      throw ArgumentError("address, bytes: must be at least 1, got " + std::to_string(address) +
                          ", " + std::to_string(bytes));
    const transfer::Access access = checked_access(remote_access);
    const std::string chosen = name == nullptr ? native.free_name() : name;
    auto handle = std::make_unique<inlay_segment>();
    handle->engine = engine->engine;
    handle->segment = native.add_device(address, bytes, true, nullptr, chosen, access, [] {});
    const std::string device = "cuda:" + std::to_string(handle->segment->location.index);
    if (location != nullptr && device != location) {
      native.remove(handle->segment, true, after(kMaxSeconds));
      throw ArgumentError("location: these bytes are of " + device + ", got " + location);
    }
    *segment = handle.release();
  });
}

void* inlay_segment_data(const inlay_segment* segment) {
  return segment == nullptr ? nullptr : segment->segment->base;
}

uint64_t inlay_segment_bytes(const inlay_segment* segment) {
  return segment == nullptr ? 0 : segment->segment->size;
}

inlay_status inlay_segment_deregister(inlay_segment* segment, int32_t cancel, double timeout_s,
                                      inlay_error* error) {
  return guarded(error, [&] {
    Engine& engine = living(given(segment, "segment").engine);
    const Clock::time_point end = after(seconds("timeout_s", timeout_s));
    if (!engine.remove(segment->segment, cancel != 0, end))
      throw WaitTimeoutError("segment '" + segment->segment->name +
                             "' was still in use; it is closed, its memory must stay: call again, "
                             "or with cancel");
    segment->segment->take_keeper();
  });
}

void inlay_segment_release(inlay_segment* segment) { delete segment; }

inlay_status inlay_peer_connect(inlay_engine* engine, const char* address, double timeout_s,
                                inlay_peer** peer, inlay_error* error) {
  return guarded(error, [&] {
    Engine& native = living(given(engine, "engine").engine);
    given(peer, "peer");
    const std::string where = &given(address, "address");
    *peer = new inlay_peer{engine->engine,
                           native.connect(where, seconds("timeout_s", timeout_s), [] {})};
  });
}

int32_t inlay_peer_alive(const inlay_peer* peer) {
  return peer != nullptr && peer->peer->alive() && peer->engine->made_here() ? 1 : 0;
}

inlay_status inlay_peer_segment(inlay_peer* peer, const char* name, double timeout_s,
                                inlay_remote** segment, inlay_error* error) {
  return guarded(error, [&] {
    living(given(peer, "peer").engine);
    given(segment, "segment");
    const std::string wanted = &given(name, "name");
    *segment = new inlay_remote{
        peer->engine, peer->peer->segment(wanted, seconds("timeout_s", timeout_s), [] {})};
  });
}

uint64_t inlay_remote_bytes(const inlay_remote* segment) {
  return segment == nullptr ? 0 : segment->segment->descriptor.size;
}

int32_t inlay_remote_writable(const inlay_remote* segment) {
  return segment != nullptr && segment->segment->descriptor.writable ? 1 : 0;
}

void inlay_remote_release(inlay_remote* segment) { delete segment; }

void inlay_peer_release(inlay_peer* peer) { delete peer; }
