// Answers in the order of their requests, of which some wait for a disk.
#pragma once

#include <cstdint>
#include <deque>

#include "../net/stream.h"

namespace inlay::transfer {

class Answers {
 public:
  bool empty() const { return places_.empty(); }
  std::size_t size() const { return places_.size(); }

  // Sends the answer, or keeps it until the earlier ones are sent.
  void push(net::OutFrame frame, net::Outbox& outbox) {
    if (places_.empty()) return outbox.push(std::move(frame));
    places_.push_back({true, std::move(frame)});
  }
  // The next place, for an answer that comes later.
  uint64_t reserve() {
    places_.push_back({});
    return first_ + places_.size() - 1;
  }
  void fill(uint64_t place, net::OutFrame frame, net::Outbox& outbox) {
    places_[place - first_] = {true, std::move(frame)};
    while (!places_.empty() && places_.front().filled) {
      outbox.push(std::move(places_.front().frame));
      places_.pop_front();
      ++first_;
    }
  }

 private:
  struct Place {
    bool filled = false;
    net::OutFrame frame;
  };
  uint64_t first_ = 0;
  std::deque<Place> places_;
};

}  // namespace inlay::transfer
