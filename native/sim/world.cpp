#include "world.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "../core/errors.h"

namespace inlay::sim {

namespace {

constexpr double kIdleReport_s = 1.0;  // an idle instance says so, at the latest
constexpr std::size_t kMaxSamples = 64;

}  // namespace

World::World(const WorldConfig& config) : config_(config) {
  for (const double seconds : {config.news_delay_s, config.report_s, config.link_latency_s,
                               config.aim_timeout_s, config.come_timeout_s})
    if (!(seconds >= 0.0 && std::isfinite(seconds)))
      throw ArgumentError("world: times must be finite and not negative, got " +
                          std::to_string(seconds));
}

std::size_t World::add(const InstanceConfig& config) {
  if (places_.size() == cluster::kMaxSlots)
    throw ResourceError("a world has " + std::to_string(cluster::kMaxSlots) + " instances at most");
  if (!places_.empty() && places_[0]->instance.config().page_tokens != config.page_tokens)
    throw ArgumentError("page_tokens: must be that of the other instances, " +
                        std::to_string(places_[0]->instance.config().page_tokens) + ", got " +
                        std::to_string(config.page_tokens));
  const auto slot = static_cast<uint16_t>(places_.size());
  places_.push_back(std::make_unique<Place>(config, config_.seed, slot));
  links_.add_end(config.out_bytes_per_s, config.in_bytes_per_s);
  return slot;
}

Instance& World::instance(std::size_t slot) {
  if (slot >= places_.size())
    throw ArgumentError("slot: there are " + std::to_string(places_.size()) + ", got " +
                        std::to_string(slot));
  return places_[slot]->instance;
}

void World::advance(double until_s, cluster::PrefixIndex* index) {
  if (std::isnan(until_s) || until_s < now_s_)
    throw ArgumentError("until_s: it is " + std::to_string(now_s_) + " already, got " +
                        std::to_string(until_s));
  const Event until{until_s, kSubmit, 0};
  for (;;) {
    Event next = events_.empty() ? until : events_.top();
    const bool planned = !events_.empty() && until > next;
    if (!planned) next = until;
    const Event transfer{std::max(now_s_, links_.next_s()), kTransfer, 0};
    if (next > transfer && std::isfinite(transfer.at_s)) {
      now_s_ = transfer.at_s;
      links_.advance(now_s_);
      for (const Links::Flow flow : links_.take_drained()) drained(flow);
      continue;
    }
    if (!planned) break;
    events_.pop();
    now_s_ = next.at_s;
    happen(next);
  }
  if (std::isfinite(until_s)) now_s_ = until_s;
  deliver(until_s, index);
}

void World::happen(const Event& event) {
  switch (event.kind) {
    case kEnd:
      return end(event.slot);
    case kTransfer: {
      Sequence& sender = *landings_.front().sender;
      landings_.pop_front();
      return landed(sender);
    }
    case kTimeout:
      return give_up(event.slot);
    case kReport:
      place(event.slot).report_due = false;
      if (!place(event.slot).instance.busy() && place(event.slot).untold) report(event.slot);
      return;
    case kSubmit:
      return;
    case kStart:
      return start(event.slot);
  }
}

void World::submit(const Submission& request, std::size_t prefill, std::size_t decode) {
  require_fits(request, prefill);
  require_fits(request, decode);
  if (prefill != decode && request.prompt_tokens > 1) return divide(request, prefill, decode);
  Sequence& sequence = make(request, decode);
  ++live_;
  place(sequence.slot).instance.scheduler().add(sequence);
  kick(sequence.slot);
}

void World::require_fits(const Submission& request, std::size_t slot) const {
  if (slot >= places_.size())
    throw ArgumentError("slot: there are " + std::to_string(places_.size()) + ", got " +
                        std::to_string(slot));
  const InstanceConfig& config = places_[slot]->instance.config();
  const uint64_t tokens = uint64_t{request.prompt_tokens} + request.output_tokens;
  if (request.prompt_tokens == 0 || request.output_tokens == 0)
    throw ArgumentError("tokens: a request has at least one of each, got " +
                        std::to_string(request.prompt_tokens) + " and " +
                        std::to_string(request.output_tokens));
  if (tokens > uint64_t{config.num_pages} * config.page_tokens)
    throw ArgumentError("a request of " + std::to_string(tokens) +
                        " tokens never fits on instance " + std::to_string(slot) + ", which has " +
                        std::to_string(config.num_pages) + " pages of " +
                        std::to_string(config.page_tokens));
  if (request.blocks.size() > request.prompt_tokens / config.page_tokens)
    throw ArgumentError("blocks: a prompt of " + std::to_string(request.prompt_tokens) +
                        " tokens has " +
                        std::to_string(request.prompt_tokens / config.page_tokens) +
                        " full ones, got " + std::to_string(request.blocks.size()));
}

Sequence& World::make(const Submission& request, std::size_t slot) {
  if (unused_.empty()) unused_.push_back(&sequences_.emplace_back());
  Sequence& sequence = *unused_.back();
  unused_.pop_back();
  std::vector<Digest> blocks = std::move(sequence.names.prompt);  // their memory is used again
  std::vector<uint32_t> named = std::move(sequence.hold.named);
  std::vector<float> gaps = std::move(sequence.gaps);
  sequence = {};
  sequence.priority = request.priority;
  sequence.arrival_s = request.arrival_s;
  sequence.order = ++submitted_;
  sequence.request = request.request;
  sequence.slot = sequence.computed_at = static_cast<uint16_t>(slot);
  sequence.prompt_tokens = sequence.num_tokens = request.prompt_tokens;
  sequence.output_tokens = request.output_tokens;
  blocks.resize(request.blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = request.blocks[i];
  named.clear();
  gaps.clear();
  sequence.names = {std::move(blocks), sequence.order};
  sequence.hold.named = std::move(named);
  sequence.gaps = std::move(gaps);
  return sequence;
}

void World::free(Sequence& sequence) { unused_.push_back(&sequence); }

void World::kick(uint16_t slot) {
  Place& at_slot = place(slot);
  at_slot.untold = true;
  if (at_slot.starting || at_slot.instance.busy()) return;
  at_slot.starting = true;
  at(now_s_, kStart, slot);
}

void World::start(uint16_t slot) {
  Place& here = place(slot);
  here.starting = false;
  poll_crowded(slot);
  const double seconds = here.instance.begin();
  tell_blocks(slot);
  if (!here.instance.busy()) {
    if (here.untold && !here.report_due) {
      here.report_due = true;
      at(std::max(now_s_, here.reported_s + kIdleReport_s), kReport, slot);
    }
    return;
  }
  here.start_s = now_s_;
  for (const Chunk& chunk : here.instance.chunks())
    if (chunk.sequence->output_tokens == 0) stream_begins(*chunk.sequence, chunk, seconds);
  at(now_s_ + seconds, kEnd, slot);
}

void World::end(uint16_t slot) {
  Place& here = place(slot);
  if (keep_steps_) keep(slot);
  if (config_.samples) {
    if (here.samples.size() == kMaxSamples) here.samples.erase(here.samples.begin());
    here.samples.push_back(here.instance.step());
  }
  const std::span<const Chunk> chunks = here.instance.end(now_s_);
  for (const Chunk& chunk : chunks) here.instance.scheduler().computed(chunk);
  for (const Chunk& chunk : chunks) {
    if (chunk.sequence->output_tokens == 0) {
      computed_for_other(chunk);
    } else if (chunk.samples()) {
      token(*chunk.sequence);
    }
  }
  here.instance.trim_log();
  tell_blocks(slot);
  here.untold = true;
  if (now_s_ >= here.reported_s + config_.report_s) report(slot);
  here.starting = true;
  at(now_s_, kStart, slot);
}

void World::token(Sequence& sequence) {
  const bool first = sequence.first_s < 0.0;
  place(sequence.slot).instance.log().token(sequence);
  ++sequence.num_tokens;
  if (first) {
    News news;
    news.kind = News::kFirst;
    news.slot = sequence.slot;
    news.request = sequence.request;
    tell(std::move(news));
  }
  if (sequence.num_tokens - sequence.prompt_tokens == sequence.output_tokens) finish(sequence);
}

void World::finish(Sequence& sequence) {
  Instance& instance = place(sequence.slot).instance;
  const Gaps gaps = instance.log().gaps(sequence);
  Outcome outcome;
  outcome.request = sequence.request;
  outcome.arrival_s = sequence.arrival_s;
  outcome.first_s = sequence.first_s;
  outcome.end_s = now_s_;
  outcome.tbt_s = gaps.tbt_s;
  outcome.longest_gap_s = gaps.longest_s;
  outcome.cached_tokens = sequence.cached_tokens;
  outcome.preemptions = sequence.preemptions;
  outcome.prefill = sequence.computed_at;
  outcome.decode = sequence.slot;
  outcomes_.push_back(outcome);
  News news;
  news.kind = News::kFinished;
  news.slot = sequence.slot;
  news.request = sequence.request;
  news.output_tokens = sequence.output_tokens;
  tell(std::move(news));
  instance.scheduler().remove(sequence);
  free(sequence);
  --live_;
}

void World::report(uint16_t slot) {
  Place& here = place(slot);
  here.reported_s = now_s_;
  here.untold = false;
  News news;
  news.kind = News::kReport;
  news.slot = slot;
  news.load = here.instance.load();
  news.load.receiving = static_cast<uint32_t>(here.receiving.size());
  news.samples = std::exchange(here.samples, {});
  tell(std::move(news));
}

void World::tell(News news) {
  news.heard_s = now_s_ + config_.news_delay_s;
  said_.push_back(std::move(news));
}

void World::tell_blocks(uint16_t slot) {
  std::vector<BlockChange>& changes = place(slot).instance.cache().changes();
  if (changes.empty()) return;
  News news;
  news.kind = News::kBlocks;
  news.slot = slot;
  news.changes = std::exchange(changes, {});
  tell(std::move(news));
}

void World::deliver(double until_s, cluster::PrefixIndex* index) {
  for (; !said_.empty() && said_.front().heard_s <= until_s; said_.pop_front()) {
    News& news = said_.front();
    if (news.kind != News::kBlocks) {
      hear(std::move(news));
      continue;
    }
    if (index == nullptr) continue;
    const std::vector<BlockChange>& changes = news.changes;
    for (std::size_t i = 0; i < changes.size();) {
      const bool stored = changes[i].stored;
      run_.clear();
      for (; i < changes.size() && changes[i].stored == stored; ++i)
        run_.push_back(changes[i].name);
      index->apply(news.slot, stored,
                   cluster::Chain({reinterpret_cast<const uint8_t*>(run_.data()),
                                   run_.size() * sizeof(Digest)}));
    }
  }
}

// Of reports that nobody looked at in between, only the latest says something, but for its samples.
void World::hear(News news) {
  if (news.kind == News::kReport) {
    std::size_t& latest = place(news.slot).heard_report;
    if (latest < heard_.size()) {
      std::vector<StepSample>& samples = heard_[latest].samples;
      samples.insert(samples.end(), news.samples.begin(), news.samples.end());
      if (samples.size() > kMaxSamples)
        samples.erase(samples.begin(), samples.end() - static_cast<std::ptrdiff_t>(kMaxSamples));
      news.samples = std::move(samples);
      heard_[latest].kind = News::kOld;
    }
    latest = heard_.size();
  }
  heard_.push_back(std::move(news));
}

std::vector<News> World::take_news() {
  for (const auto& one : places_) one->heard_report = SIZE_MAX;
  std::erase_if(heard_, [](const News& news) { return news.kind == News::kOld; });
  return std::exchange(heard_, {});
}

std::vector<Outcome> World::take_outcomes() { return std::exchange(outcomes_, {}); }

std::vector<KeptChunk> World::take_steps() { return std::exchange(kept_, {}); }

void World::keep(uint16_t slot) {
  const Place& here = place(slot);
  for (const Chunk& chunk : here.instance.chunks())
    kept_.push_back({here.instance.num_steps() - 1, here.start_s, now_s_, chunk.sequence->request,
                     slot, chunk.start, chunk.stop, chunk.samples()});
}

void World::audit() const {
  for (const auto& one : places_) one->instance.cache().audit();
}

}  // namespace inlay::sim
