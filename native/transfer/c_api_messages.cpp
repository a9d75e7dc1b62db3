// The C interface to messages.
#include "c_api.h"

namespace transfer = inlay::transfer;
using namespace inlay::c_api;
using inlay::ArgumentError;
using inlay::WaitTimeoutError;

inlay_status inlay_peer_send(inlay_peer* peer, const char* topic, const void* body, size_t bytes,
                             double deadline_s, inlay_error* error) {
  return guarded(error, [&] {
    transfer::Engine& native = living(given(peer, "peer").engine);
    const std::string name = &given(topic, "topic");
    if (bytes > 0) given(static_cast<const std::byte*>(body), "body");
    native.messenger().send(peer->peer, name, bytes_of(body, bytes),
                            seconds("deadline_s", deadline_s), [] {});
  });
}

inlay_status inlay_engine_receive(inlay_engine* engine, double timeout_s, inlay_message** message,
                                  inlay_error* error) {
  return guarded(error, [&] {
    transfer::Engine& native = living(given(engine, "engine").engine);
    given(message, "message");
    if (timeout_s != 0) seconds("timeout_s", timeout_s);
    auto handle = std::make_unique<inlay_message>();
    if (!native.arrivals().receive(handle->message, after(timeout_s))) {
      native.arrivals();  // throws where the engine was closed meanwhile
      throw WaitTimeoutError("no message came within " + std::to_string(timeout_s) + " s");
    }
    handle->engine_id = inlay::net::hex(handle->message.from);
    *message = handle.release();
  });
}

inlay_status inlay_message_look(const inlay_message* message, inlay_message_parts* parts,
                                inlay_error* error) {
  return guarded(error, [&] {
    const inlay_message& told = given(message, "message");
    auto known = known_part(parts, given(parts, "parts").size, "parts");
    known.engine_id = told.engine_id.c_str();
    known.topic = told.message.topic.c_str();
    known.body = told.message.body.data();
    known.bytes = told.message.body.size();
    known.notification = told.message.notification ? 1 : 0;
    std::memcpy(parts, &known, std::min(parts->size, sizeof(known)));
  });
}

void inlay_message_release(inlay_message* message) { delete message; }
