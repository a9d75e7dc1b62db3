#include "hand_over.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "../core/errors.h"
#include "doorbell.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

// A device's write rings no doorbell: a wait that outlasts the pool's spinning rests between looks
// for this part of the time it has waited, so it is late by little of what the device takes.
constexpr int kRestPart = 16;
constexpr microseconds kShortestRest(20);
constexpr microseconds kLongestRest(1000);

// How many of a token's chosen experts are never deferred, resident ones counted.
constexpr int64_t kImmediate = 2;

// While it lives, the system wakes this thread when its rest is over. Else it takes leave to be
// 50 us late, longer than most rests.
class PunctualRests {
 public:
  PunctualRests() : before_(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) { set(1000); }
  ~PunctualRests() { set(before_); }
  PunctualRests(const PunctualRests&) = delete;
  PunctualRests& operator=(const PunctualRests&) = delete;

 private:
  static void set(long slack_ns) { prctl(PR_SET_TIMERSLACK, slack_ns, 0, 0, 0); }
  const long before_;
};

// False: the time was over, or stop() held.
template <typename Stop>
bool wait_for_word(uint32_t& word, nanoseconds timeout, const Stop& stop) {
  const std::atomic_ref<uint32_t> value(word);
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + timeout;
  const Clock::time_point spin_end = begin + microseconds(ThreadPool::instance().spin_us());
  std::optional<PunctualRests> punctual;
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != 0) return true;
      pause_processor();
    }
    const Clock::time_point now = Clock::now();
    if (now >= end || stop()) return false;
    if (now < spin_end) continue;
    if (!punctual) punctual.emplace();
    const auto rest =
        std::clamp<nanoseconds>((now - begin) / kRestPart, kShortestRest, kLongestRest);
    std::this_thread::sleep_for(std::min<nanoseconds>(rest, end - now));
  }
}

void set_word(uint32_t& word, uint32_t value) {
  std::atomic_ref<uint32_t>(word).store(value, std::memory_order_release);
}

template <typename Error, typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(text.str());
}

std::size_t at(int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

HandOver::HandOver(HandOverSizes sizes, HandOverBuffers buffers, Compute compute)
    : sizes_(sizes),
      buffers_(buffers),
      compute_(std::move(compute)),
      on_host_LE_(at(sizes.layers * sizes.experts)),
      deferred_T_(at(sizes.tokens)),
      counted_T_(at(sizes.tokens)),
      immediate_TK_(at(sizes.tokens * sizes.top_k)),
      later_TK_(at(sizes.tokens * sizes.top_k)),
      choices_(at(sizes.top_k)),
      counts_LE_(at(sizes.layers * sizes.experts)) {}

std::shared_ptr<Ticket> HandOver::begin(const Step& step) {
  State idle = State::kIdle;
  if (!state_.compare_exchange_strong(idle, State::kWalking))
    throw ArgumentError("begin: the step before is not done; wait for it, or cancel it and wait");
  rows_ = step.rows;
  timeout_ = step.timeout;
  std::copy_n(step.on_host_LE, on_host_LE_.size(), on_host_LE_.begin());
  if (step.deferred_T == nullptr)
    std::fill_n(deferred_T_.begin(), rows_, 0);
  else
    std::copy_n(step.deferred_T, rows_, deferred_T_.begin());
  if (step.counted_T == nullptr)
    std::fill_n(counted_T_.begin(), rows_, uint8_t{1});
  else
    std::copy_n(step.counted_T, rows_, counted_T_.begin());
  adapters_L_.assign(step.adapters_L.begin(), step.adapters_L.end());
  for (int64_t j = 0; j < sizes_.layers; ++j) set_word(asked(j), 0), set_word(answered(j), 0);
  try {
    return AsyncQueue::instance().submit([this] { walk(); });
  } catch (...) {
    state_ = State::kIdle;
    throw;
  }
}

void HandOver::cancel() {
  State walking = State::kWalking;
  state_.compare_exchange_strong(walking, State::kCancelled);
}

void HandOver::ask(int64_t layer) { set_word(asked(layer), 1); }

bool HandOver::wait_answer(int64_t layer, nanoseconds timeout) {
  return wait_for_word(answered(layer), timeout, [] { return false; });
}

void HandOver::take_counts(uint32_t* out_LE) {
  for (std::atomic<uint32_t>& count : counts_LE_)
    *out_LE++ = count.exchange(0, std::memory_order_relaxed);
}

void HandOver::walk() {
  try {
    walk_layers();
  } catch (...) {
    give_up();
    state_ = State::kIdle;
    throw;
  }
  state_ = State::kIdle;
}

void HandOver::walk_layers() {
  bool carried = false;  // the slot holds what the layer before deferred
  for (int64_t j = 0; j < sizes_.layers; ++j) {
    wait_for_device(j);
    const Clock::time_point begin = Clock::now();
    const bool defers = split(j);
    compute(j, immediate_TK_, carried, j % 2);
    set_word(answered(j), 1);
    const Clock::time_point middle = Clock::now();
    immediate_time_.add(middle - begin);
    // The device has taken the other slot's answer before it asked for this layer.
    if (defers) {
      compute(j, later_TK_, false, (j + 1) % 2);
      deferred_time_.add(Clock::now() - middle);
    }
    carried = defers;
  }
}

void HandOver::wait_for_device(int64_t layer) {
  const auto cancelled = [this] { return state_ == State::kCancelled; };
  const bool set = wait_for_word(asked(layer), timeout_, cancelled);
  if (cancelled())
    fail<EngineError>("the step was cancelled before layer ", layer, " of the ", sizes_.layers,
                      " with host experts");
  if (!set)
    fail<WaitTimeoutError>("the device did not ask for layer ", layer, " of the ", sizes_.layers,
                           " with host experts within ",
                           std::chrono::duration<double>(timeout_).count(), " s");
}

// Of the layer's experts on the host, what each token gets at once and what later. Returns whether
// there is anything for later.
bool HandOver::split(int64_t layer) {
  std::fill_n(immediate_TK_.begin(), rows_ * sizes_.top_k, -1);
  std::fill_n(later_TK_.begin(), rows_ * sizes_.top_k, -1);
  const bool may_defer = layer + 1 < sizes_.layers;
  int64_t deferred = 0;
  for (int64_t t = 0; t < rows_; ++t)
    deferred += split_token(layer, t, may_defer ? deferred_T_[at(t)] : 0);
  return deferred > 0;
}

// Returns how many experts the token defers, `most` at most.
int64_t HandOver::split_token(int64_t layer, int64_t token, int64_t most) {
  const int64_t first = (layer % 2 * sizes_.tokens + token) * sizes_.top_k;
  int64_t chosen = 0, on_host = 0;
  for (int64_t k = 0; k < sizes_.top_k; ++k) {
    const int32_t id = buffers_.ids_2TK[first + k];
    if (id < 0) continue;
    if (id >= sizes_.experts)
      fail<ArgumentError>("ids_2TK: id ", id, " of token ", token, " in layer ", layer,
                          " is not below the ", sizes_.experts, " experts");
    ++chosen;
    const int64_t expert = layer * sizes_.experts + id;
    if (counted_T_[at(token)] != 0) counts_LE_[at(expert)].fetch_add(1, std::memory_order_relaxed);
    if (on_host_LE_[at(expert)] == 0) continue;
    const float weight = buffers_.routing_2TK[first + k];
    if (!std::isfinite(weight))
      fail<ArgumentError>("routing_2TK: weight ", weight, " of token ", token, " in layer ", layer,
                          " is not finite");
    choices_[at(on_host++)] = {weight, id, k};
  }
  const int64_t deferred = std::min({most, on_host, std::max<int64_t>(0, chosen - kImmediate)});
  const auto end = choices_.begin() + on_host;
  const auto later = end - deferred;
  if (deferred > 0)
    std::nth_element(choices_.begin(), later, end, [](const Choice& a, const Choice& b) {
      if (a.weight != b.weight) return a.weight > b.weight;
      return a.id != b.id ? a.id < b.id : a.place < b.place;
    });
  const int64_t row = token * sizes_.top_k;
  for (auto choice = choices_.begin(); choice != end; ++choice)
    (choice < later ? immediate_TK_ : later_TK_)[at(row + choice->place)] = choice->id;
  return deferred;
}

void HandOver::compute(int64_t layer, const std::vector<int32_t>& ids_TK, bool accumulate,
                       int64_t slot) {
  const int64_t from = layer % 2 * sizes_.tokens;
  const int64_t hidden = sizes_.hidden;
  const auto adapters =
      adapters_L_.empty() ? std::span<const ExpertRows>() : adapters_L_[at(layer)];
  compute_({layer,
            {buffers_.x_2TM + from * hidden, rows_, hidden, hidden},
            ids_TK.data(),
            buffers_.routing_2TK + from * sizes_.top_k,
            accumulate,
            {buffers_.out_2TM + slot * sizes_.tokens * hidden, rows_, hidden, hidden},
            adapters});
}

// Nothing of the step is of use; the device is to end it, not to hang.
void HandOver::give_up() {
  for (int64_t slot = 0; slot < 2; ++slot)
    std::fill_n(buffers_.out_2TM + slot * sizes_.tokens * sizes_.hidden, rows_ * sizes_.hidden,
                0.0f);
  for (int64_t j = 0; j < sizes_.layers; ++j) set_word(answered(j), 1);
}

}  // namespace inlay::kernels
