#include "instance.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "../core/errors.h"

namespace inlay::sim {

namespace {

constexpr std::size_t kLogSteps = 1 << 12;  // after so many it is looked at which are needed

void require_not_negative(const char* name, double value) {
  if (!(value >= 0.0 && std::isfinite(value)))
    throw ArgumentError(std::string(name) + ": must be finite and not negative, got " +
                        std::to_string(value));
}

}  // namespace

Instance::Instance(const InstanceConfig& config, uint64_t seed, uint64_t slot, Tier* store,
                   const double& now_s)
    : config_(config),
      seed_(seed),
      slot_(slot),
      cache_(config.num_pages, config.page_tokens),
      scheduler_(config.scheduler, cache_),
      log_limit_(kLogSteps) {
  require_not_negative("noise", config.noise);
  require_not_negative("token_bytes", config.token_bytes);
  require_not_negative("out_bytes_per_s", config.out_bytes_per_s);
  require_not_negative("in_bytes_per_s", config.in_bytes_per_s);
  if (config.layers == 0) throw ArgumentError("layers: must be at least 1, got 0");
  if (config.experts_per_token > config.experts)
    throw ArgumentError("experts_per_token: must be at most experts (" +
                        std::to_string(config.experts) + "), got " +
                        std::to_string(config.experts_per_token));
  if (config.tiers.host.blocks == 0 && config.tiers.disk.blocks == 0 && store == nullptr) return;
  tiers_ = std::make_unique<Tiers>(config.tiers, cache_, config.token_bytes * config.page_tokens,
                                   store, now_s);
  scheduler_.use(&tiers_->loader());
}

double Instance::begin() {
  chunks_ = scheduler_.schedule();
  if (chunks_.empty()) return 0.0;
  step_.seconds = step_seconds();
  busy_s_ += step_.seconds;
  ++num_steps_;
  return step_.seconds;
}

double Instance::step_seconds() {
  step_ = {};
  uint32_t logit_rows = 0;
  for (const Chunk& chunk : chunks_) {
    const uint32_t tokens = chunk.stop - chunk.start;
    logit_rows += chunk.samples();
    if (tokens == 1 && chunk.samples()) {
      ++step_.decodes;
      step_.decode_context += chunk.stop;
    } else {
      step_.prefill_tokens += tokens;
      step_.prefill_pairs += uint64_t{tokens} * (chunk.start + chunk.stop + 1) / 2;
    }
  }
  Features features{};
  features[step_.prefill_tokens != 0 ? kPromptStep : kDecodeStep] = 1.0;
  features[kTokens] = static_cast<double>(step_.prefill_tokens);
  features[kPairs] = static_cast<double>(step_.prefill_pairs);
  features[kRows] = step_.decodes;
  features[kContext] = static_cast<double>(step_.decode_context);
  features[kLogitRows] = logit_rows;
  if (config_.experts != 0) {
    // Each token chooses evenly and by itself.
    const double experts = config_.experts;
    const double not_chosen =
        std::pow(1.0 - config_.experts_per_token / experts, features[kTokens] + features[kRows]);
    features[kExperts] = experts * (1.0 - not_chosen);
  }
  return config_.step_time.seconds(features) * noise(config_.noise, seed_, slot_, num_steps_);
}

std::span<const Chunk> Instance::end(double now_s) {
  if (tiers_ != nullptr) tiers_->costs().observe_prefill(step_.prefill_tokens, step_.seconds);
  log_.ended(now_s);
  return std::exchange(chunks_, {});
}

void Instance::trim_log() {
  if (log_.size() < log_limit_) return;
  uint64_t first = log_.latest();
  for (const Sequence* sequence : scheduler_.running())
    if (sequence->first_s >= 0.0) first = std::min(first, sequence->run_begin);
  for (Sequence* sequence : scheduler_.waiting()) log_.pause(*sequence);
  log_.forget(first);
  log_limit_ = std::max(kLogSteps, 2 * log_.size());  // long answers may need most of it
}

Load Instance::load() const {
  Load load;
  load.waiting = static_cast<uint32_t>(scheduler_.num_waiting());
  load.running = static_cast<uint32_t>(scheduler_.num_running());
  load.prefill_tokens = scheduler_.waiting_tokens();
  for (const Sequence* sequence : scheduler_.running()) {
    const uint32_t left = sequence->num_tokens - sequence->computed;
    if (left > 1) {
      load.prefill_tokens += left;
    } else {
      load.context_tokens += sequence->num_tokens;
    }
  }
  load.pages_free = cache_.num_free();
  load.pages_cached = cache_.num_idle();
  if (tiers_ == nullptr) return load;
  load.prefill_tokens -= std::min(load.prefill_tokens, tiers_->loader().coming_tokens());
  if (!tiers_->has_store()) return load;
  load.find_s = tiers_->costs().find_s();
  load.load_block_s = tiers_->costs().load_s(1.0);
  return load;
}

}  // namespace inlay::sim
