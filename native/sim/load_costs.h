// What computing and loading cost at an instance, learned from what they took: what
// inlay.cache.LoadCosts does.
#pragma once

#include <algorithm>
#include <cstdint>

namespace inlay::sim {

class LoadCosts {
 public:
  LoadCosts(double page_bytes, uint32_t page_tokens)
      : page_bytes_(page_bytes), page_tokens_(page_tokens) {}

  // A step computed so many tokens of prompts. Short ones say little and are left out.
  void observe_prefill(uint64_t tokens, double seconds) {
    if (tokens < page_tokens_) return;
    step_s_ = seconds;
    prefill_.observe(static_cast<double>(tokens), seconds);
  }
  void observe_load(uint32_t blocks, double seconds) {
    load_.observe(blocks * page_bytes_, seconds);
  }
  void observe_find(double seconds) { find_.observe(1.0, seconds); }

  double prefill_s(double tokens) const { return prefill_.seconds_for(tokens); }
  double load_s(double blocks) const { return load_.seconds_for(blocks * page_bytes_); }
  double find_s() const { return find_.seconds_for(1.0); }
  double step_s() const { return step_s_; }  // of the last one with a prompt

 private:
  // Amount per second, later observations counting more.
  struct Rate {
    double amount;
    double seconds;

    void observe(double more, double took_s) {
      amount = 0.8 * amount + more;
      seconds = 0.8 * seconds + std::max(took_s, 1e-6);
    }
    double seconds_for(double wanted) const { return wanted * seconds / amount; }
  };

  double page_bytes_;
  uint32_t page_tokens_;
  double step_s_ = 0.0;
  Rate prefill_{100.0, 0.1};
  Rate load_{5e7, 0.1};
  Rate find_{1.0, 0.002};
};

}  // namespace inlay::sim
