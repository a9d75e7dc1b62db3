// Messages between engines.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "array.h"
#include "module.h"
#include "transfer.h"

namespace inlay::bindings {

using transfer::Clock;
using transfer::Message;

transfer::Bytes body_of(const nb::bytes& body) {
  const auto* data = static_cast<const std::byte*>(body.data());
  return {data, data + body.size()};
}

void send_message(const PeerHandle& handle, const std::string& topic, const nb::bytes& body,
                  double deadline_s) {
  checked_seconds("deadline_s", deadline_s);
  transfer::Messenger& messenger = handle.engine->get().messenger();
  transfer::Bytes copy = body_of(body);
  const std::shared_ptr<transfer::Peer> peer = handle.peer;
  const WithoutGil unlocked;
  messenger.send(peer, topic, std::move(copy), deadline_s, check_signals);
}

nb::tuple receive_message(const std::shared_ptr<EngineHandle>& engine,
                          std::optional<double> timeout_s) {
  constexpr double kMaxSeconds = 1e6;
  if (timeout_s && !(*timeout_s >= 0 && *timeout_s <= kMaxSeconds))
    fail("timeout_s: must be in 0..", kMaxSeconds, " or None, got ", *timeout_s);
  const Clock::time_point end = timeout_s
                                    ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                         std::chrono::duration<double>(*timeout_s))
                                    : Clock::time_point::max();
  Message message;
  transfer::Engine& native = engine->get();
  {
    const WithoutGil unlocked;
    while (!native.arrivals().receive(message, std::min(end, Clock::now() + kSignalCheck))) {
      check_signals();
      if (Clock::now() >= end)
        throw WaitTimeoutError(joined("no message came within ", *timeout_s, " s"));
    }
  }
  return nb::make_tuple(
      net::hex(message.from),
      nb::steal(PyUnicode_DecodeUTF8(
          message.topic.data(), static_cast<Py_ssize_t>(message.topic.size()), "backslashreplace")),
      nb::bytes(reinterpret_cast<const char*>(message.body.data()), message.body.size()),
      message.notification);
}

}  // namespace inlay::bindings
