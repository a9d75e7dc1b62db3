// The way to the master: in this process (LocalLink) or over TCP (RemoteLink).
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "../net/socket.h"
#include "failure.h"
#include "messages.h"

namespace inlay::store {

using net::Clock;

// May be used by several threads at once; their questions share a connection and do not wait for
// each other.
class MasterLink {
 public:
  virtual ~MasterLink() = default;

  // Asks and waits, also over the loss of a connection and its return. Throws StoreFailure:
  // kTimeout at `until`, kUnavailable when nobody was there until then, kRefused
  // (another token), kVersion, kClosed.
  template <typename Question>
  typename Question::Answer ask(Question question, Clock::time_point until) {
    return std::get<typename Question::Answer>(wait(std::move(question), until, false));
  }
  // The same while a master is connected: kUnavailable as soon as none is.
  template <typename Question>
  typename Question::Answer ask_connected(Question question, Clock::time_point until) {
    return std::get<typename Question::Answer>(wait(std::move(question), until, true));
  }

  // The same without waiting: `then` is called once, on the link's thread or before this returns,
  // and may not wait. The question's views need not outlive this call.
  template <typename Question>
  void ask(Question question, Clock::time_point until,
           std::function<void(StoreStatus, typename Question::Answer)> then) {
    start(std::move(question), until, [then = std::move(then)](StoreStatus status, Answer answer) {
      using Wanted = typename Question::Answer;
      then(status, status == StoreStatus::kOk ? std::get<Wanted>(std::move(answer)) : Wanted{});
    });
  }

  // For questions without an answer: sent when there is a connection, else forgotten.
  virtual void tell(const Touch& touch) = 0;

  // Of the master that is connected, or was last; epoch 0: none ever was.
  virtual Terms terms() const = 0;
  virtual bool connected() const = 0;
  // For messages: "127.0.0.1:50051", or "this process".
  virtual std::string address() const = 0;

  // What waits fails with kClosed. Not from `then`.
  virtual void close() = 0;

 protected:
  using Then = std::function<void(StoreStatus, Answer)>;
  virtual Answer wait(const Question& question, Clock::time_point until, bool while_connected) = 0;
  virtual void start(const Question& question, Clock::time_point until, Then then) = 0;
};

}  // namespace inlay::store
