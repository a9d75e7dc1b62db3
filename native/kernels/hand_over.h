// The seam between a device and the experts that the host computes for it.
//
// For each mixture layer the device writes what its tokens want into host memory and sets a word,
// "asked"; the host computes, writes the sums and sets a second word, "answered", for which the
// device's stream waits. One call starts a step: the asynchronous thread then walks through all
// layers. No driver calls back, and a step that a device replays from a recording needs nobody
// beside it. Whose memory this is, which library moves the bytes and what an expert computes are
// not known here.
//
// Shape letters: L mixture layers, T tokens there is room for, K experts per token, E experts of a
// layer, M hidden size. Layer j uses slot j % 2 of each buffer.
//
// Deferral: a token's host experts of least weight may be computed after the answer of their layer,
// while the device goes on; their sum is added to the answer of the next layer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "async_queue.h"
#include "operators.h"

namespace inlay::kernels {

// The caller's memory.
struct HandOverBuffers {
  const float* x_2TM;
  const int32_t* ids_2TK;  // negative: no expert
  const float* routing_2TK;
  float* out_2TM;
  uint32_t* words_L2;  // asked, answered
};

struct HandOverSizes {
  int64_t layers, tokens, hidden, top_k, experts;
};

// Experts of one layer for some tokens. A negative id is skipped, tokens without experts get zeros,
// or keep what they have when accumulating.
struct HostExperts {
  int64_t layer;
  ConstRows x_TM;
  const int32_t* ids_TK;
  const float* routing_TK;
  bool accumulate;
  Rows out_TM;
  std::span<const ExpertRows> adapters;
};

class HandOver {
 public:
  using Compute = std::function<void(const HostExperts&)>;

  struct Step {
    int64_t rows;                      // tokens, at most sizes.tokens
    const uint8_t* on_host_LE;         // 0: the device computes it
    const int32_t* deferred_T;         // most host experts that a token defers; null: none
    const uint8_t* counted_T;          // 0: not in the counts; null: all are
    std::chrono::nanoseconds timeout;  // for each layer that the device is to ask for
    // Of each layer; empty: none. What they point to stays until the ticket is done.
    std::span<const std::span<const ExpertRows>> adapters_L = {};
  };

  HandOver(HandOverSizes sizes, HandOverBuffers buffers, Compute compute);

  // Clears the words, copies what `step` points to and queues the walk. The device may ask from
  // then on, and must have taken the last answer of the step before. Until the ticket is done, the
  // buffers and this object stay. Throws ArgumentError while another walk is under way.
  //
  // The ticket throws ArgumentError for an id or a weight that cannot be, WaitTimeoutError when the
  // device does not ask, EngineError after cancel(). Then both slots of out are zero for the rows
  // of the step, and all words say "answered", so that the device ends.
  std::shared_ptr<Ticket> begin(const Step& step);

  // Ends a walk before its next layer; without one, nothing happens. Safe on any thread.
  void cancel();

  // What a device does that shares the host's memory. False: there was no answer in time.
  void ask(int64_t layer);
  bool wait_answer(int64_t layer, std::chrono::nanoseconds timeout);

  // How often each expert was chosen since the last call, resident ones too. Safe on any thread.
  void take_counts(uint32_t* out_LE);

  // Time spent in computing, of all steps.
  std::chrono::nanoseconds immediate_time() const { return immediate_time_.get(); }
  std::chrono::nanoseconds deferred_time() const { return deferred_time_.get(); }

  const HandOverSizes& sizes() const { return sizes_; }

 private:
  enum class State { kIdle, kWalking, kCancelled };

  class Time {
   public:
    std::chrono::nanoseconds get() const { return std::chrono::nanoseconds(ns_.load()); }
    void add(std::chrono::nanoseconds time) { ns_ += time.count(); }

   private:
    std::atomic<int64_t> ns_{0};
  };

  struct Choice {
    float weight;
    int32_t id;
    int64_t place;  // in its token's row
  };

  void walk();
  void walk_layers();
  void wait_for_device(int64_t layer);
  bool split(int64_t layer);
  int64_t split_token(int64_t layer, int64_t token, int64_t most);
  void compute(int64_t layer, const std::vector<int32_t>& ids_TK, bool accumulate, int64_t slot);
  void give_up();
  uint32_t& asked(int64_t layer) const { return buffers_.words_L2[2 * layer]; }
  uint32_t& answered(int64_t layer) const { return buffers_.words_L2[2 * layer + 1]; }

  const HandOverSizes sizes_;
  const HandOverBuffers buffers_;
  const Compute compute_;
  std::atomic<State> state_{State::kIdle};

  // Of the step.
  int64_t rows_ = 0;
  std::chrono::nanoseconds timeout_{};
  std::vector<uint8_t> on_host_LE_;
  std::vector<int32_t> deferred_T_;
  std::vector<uint8_t> counted_T_;
  std::vector<std::span<const ExpertRows>> adapters_L_;

  // Of the layer. Copies: what is checked is what is used, whatever the device writes meanwhile.
  std::vector<int32_t> immediate_TK_;
  std::vector<int32_t> later_TK_;
  std::vector<Choice> choices_;  // of a token

  std::vector<std::atomic<uint32_t>> counts_LE_;
  Time immediate_time_, deferred_time_;
};

}  // namespace inlay::kernels
