#include "world.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "../core/errors.h"

namespace inlay::sim {

namespace {

constexpr double kIdleReport_s = 1.0;  // between two reports of an idle instance

}  // namespace

World::World(const WorldConfig& config) : config_(config) {
  for (const double seconds : {config.news_delay_s, config.report_s, config.link_latency_s,
                               config.aim_timeout_s, config.come_timeout_s, config.copy_timeout_s})
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
  if (config_.store.blocks != 0 && store_ == nullptr)
    store_ = std::make_unique<Tier>(config_.store, config.token_bytes * config.page_tokens);
  if (store_ && (config.out_bytes_per_s == 0.0 || config.in_bytes_per_s == 0.0))
    throw ArgumentError(
        "the store is reached over the network: set out_bytes_per_s and "
        "in_bytes_per_s of all instances above 0");
  const auto slot = static_cast<uint16_t>(places_.size());
  places_.push_back(std::make_unique<Place>(config, config_.seed, slot, store_.get(), now_s_));
  add_ends(*places_.back());
  report_at(slot, now_s_ + kIdleReport_s);
  return slot;
}

Instance& World::instance(std::size_t slot) {
  config_of(slot);
  return places_[slot]->instance;
}

const InstanceConfig& World::config_of(std::size_t slot) const {
  if (slot >= places_.size())
    throw ArgumentError("slot: there are " + std::to_string(places_.size()) + ", got " +
                        std::to_string(slot));
  return places_[slot]->instance.config();
}

bool World::advance(double until_s, cluster::PrefixIndex* index,
                    cluster::PrefixIndex* store_index) {
  if (std::isnan(until_s) || until_s < now_s_)
    throw ArgumentError("until_s: it is " + std::to_string(now_s_) + " already, got " +
                        std::to_string(until_s));
  const Event until{until_s, kSubmit, 0};
  const bool endless = !std::isfinite(until_s);
  bool heard = false;
  while (!heard) {
    Event next = events_.empty() ? until : events_.top();
    const bool planned = !events_.empty() && until > next && !(endless && idle());
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
    heard = next.kind == kHeard;
    happen(next);
  }
  if (!heard && !endless) now_s_ = until_s;
  deliver(heard ? now_s_ : until_s, index, store_index);
  return !heard;
}

// Nothing is left to happen, but that instances say so.
bool World::idle() const {
  return events_.size() == num_reports_ &&
         std::none_of(places_.begin(), places_.end(), [](const auto& one) { return one->untold; });
}

// An instance that is idle then says so, in place of when it was to say it before.
void World::report_at(uint16_t slot, double time_s) {
  place(slot).report_at_s = time_s;
  ++num_reports_;
  at(time_s, kReport, slot);
}

void World::happen(const Event& event) {
  switch (event.kind) {
    case kEnd:
      // Else it was the step of an instance that is lost.
      if (event.at_s == place(event.slot).end_s && place(event.slot).instance.busy())
        end(event.slot);
      return;
    case kTransfer: {
      Sequence& sender = *landings_.front().sender;
      landings_.pop_front();
      return landed(sender);
    }
    case kMoved:
      return settle(event.slot);
    case kTimeout:
      return give_up(event.slot);
    case kReport: {
      --num_reports_;
      const Place& here = place(event.slot);
      if (event.at_s != here.report_at_s || here.starting || here.lost || here.instance.busy())
        return;
      report(event.slot);
      return report_at(event.slot, now_s_ + kIdleReport_s);
    }
    case kHeard:
    case kSubmit:
      return;
    case kStart:
      return start(event.slot);
  }
}

void World::submit(const Submission& request, std::size_t prefill, std::size_t decode) {
  require_fits(request, prefill);
  require_fits(request, decode);
  if (request.prompt_tokens == 0 || request.output_tokens == 0)
    throw ArgumentError("tokens: a request has at least one of each, got " +
                        std::to_string(request.prompt_tokens) + " and " +
                        std::to_string(request.output_tokens));
  if (prefill != decode && request.prompt_tokens > 1) {
    divide(request, prefill, decode);
  } else {
    Sequence& sequence = make(request, decode);
    go_on(sequence);
    place(sequence.slot).instance.scheduler().add(sequence);
    kick(sequence.slot);
  }
  ++live_;
}

void World::require_fits(const Submission& request, std::size_t slot) const {
  const InstanceConfig& config = config_of(slot);
  const uint64_t tokens = uint64_t{request.prompt_tokens} + request.output_tokens;
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

std::optional<uint32_t> World::take_back(uint64_t request, std::size_t slot) {
  config_of(slot);
  Sequence* sequence = find(request, static_cast<uint16_t>(slot));
  if (sequence == nullptr) return std::nullopt;
  place(sequence->slot).instance.log().pause(*sequence);
  const uint32_t produced = sequence->produced + sequence->num_tokens - sequence->prompt_tokens;
  begun_[request] = {produced, sequence->preemptions + 1, sequence->first_s, sequence->last_s,
                     sequence->gaps};
  withdraw(*sequence);
  --live_;
  return produced;
}

// A request that was taken back goes on here.
void World::go_on(Sequence& sequence) {
  const auto found = begun_.find(sequence.request);
  if (found == begun_.end()) return;
  Begun& begun = found->second;
  sequence.produced = begun.produced;
  sequence.preemptions = begun.preemptions;
  sequence.first_s = begun.first_s;
  sequence.last_s = begun.last_s;
  sequence.last_step = sequence.run_begin = StepLog::kElsewhere;
  sequence.gaps = std::move(begun.gaps);
  begun_.erase(found);
}

Sequence* World::find(uint64_t request, uint16_t slot) {
  Place& here = place(slot);
  const auto wanted = [request](const Sequence* one) {
    return one->request == request && !one->sends && !one->gone;
  };
  const auto search = [&wanted](const auto& all) -> Sequence* {
    const auto found = std::find_if(all.begin(), all.end(), wanted);
    return found == all.end() ? nullptr : *found;
  };
  Sequence* found = search(here.instance.scheduler().running());
  if (found == nullptr) found = search(here.instance.scheduler().waiting());
  if (found == nullptr) found = search(here.receiving);
  return found;
}

// Out, wherever it is. A step that has begun computes it to its end, for nothing.
void World::withdraw(Sequence& sequence) {
  if (sequence.state == State::kReceiving) {
    std::erase(place(sequence.slot).crowded, &sequence);
    if (!landing(*sequence.other)) drop_sender(sequence);
  }
  if (sequence.other != nullptr || in_step(sequence)) {
    sequence.gone = true;
  } else {
    remove(sequence);
  }
}

bool World::in_step(const Sequence& sequence) {
  return place(sequence.slot).instance.busy() && sequence.state == State::kRunning &&
         sequence.chunk != Sequence::kNoChunk;
}

void World::remove(Sequence& sequence) {
  place(sequence.slot).instance.scheduler().remove(sequence);
  free(sequence);
  kick(sequence.slot);
}

void World::free(Sequence& sequence) { unused_.push_back(&sequence); }

void World::kick(uint16_t slot) {
  Place& at_slot = place(slot);
  if (at_slot.lost) return;
  at_slot.untold = true;
  if (at_slot.instance.tiers() != nullptr) ask_tiers(slot);
  if (at_slot.starting || at_slot.instance.busy()) return;
  at_slot.starting = true;
  at(now_s_, kStart, slot);
}

void World::start(uint16_t slot) {
  Place& here = place(slot);
  here.starting = false;
  if (here.lost) return;
  Tiers* tiers = here.instance.tiers();
  if (tiers != nullptr) tiers->poll();
  poll_crowded(slot);
  const double seconds = here.instance.begin();
  if (tiers != nullptr) {
    tiers->start();
    begin_works(slot);
    if (std::isfinite(tiers->loader().wake_s())) at(tiers->loader().wake_s(), kMoved, slot);
  }
  tell_blocks(slot);
  if (!here.instance.busy()) {
    const double pause_s = here.untold ? config_.report_s : kIdleReport_s;
    return report_at(slot, std::max(now_s_, here.reported_s + pause_s));
  }
  here.start_s = now_s_;
  for (const Chunk& chunk : here.instance.chunks())
    if (chunk.sequence->sends) stream_begins(*chunk.sequence, chunk, seconds);
  here.end_s = now_s_ + seconds;
  at(here.end_s, kEnd, slot);
}

void World::end(uint16_t slot) {
  Place& here = place(slot);
  here.starting = true;  // the next step, when all of this one is settled
  if (keep_steps_) keep(slot);
  if (config_.samples) {
    if (here.samples.size() == kMaxSamples) here.samples.erase(here.samples.begin());
    here.samples.push_back(here.instance.step());
  }
  const std::span<const Chunk> chunks = here.instance.end(now_s_);
  for (const Chunk& chunk : chunks) here.instance.scheduler().computed(chunk);
  for (const Chunk& chunk : chunks) {
    Sequence& sequence = *chunk.sequence;
    if (sequence.gone) {
      remove(sequence);
    } else if (sequence.sends) {
      computed_for_other(chunk);
    } else if (chunk.samples() && sequence.output_tokens == 0) {
      end_copy(sequence, true);
    } else if (chunk.samples()) {
      token(sequence);
    }
  }
  here.instance.trim_log();
  tell_blocks(slot);
  here.untold = true;
  if (now_s_ >= here.reported_s + config_.report_s) report(slot);
  at(now_s_, kStart, slot);
}

void World::token(Sequence& sequence) {
  const bool first = !std::exchange(sequence.answered, true);
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
  const Gaps gaps = instance.log().gaps(sequence, gap_counts_);
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
  outcome.tier_tokens = sequence.tier_tokens;
  outcomes_.push_back(outcome);
  News news;
  news.kind = News::kFinished;
  news.slot = sequence.slot;
  news.request = sequence.request;
  news.output_tokens = sequence.produced + sequence.output_tokens;
  tell(std::move(news));
  instance.scheduler().remove(sequence);
  free(sequence);
  --live_;
}

std::vector<Outcome> World::take_outcomes() { return std::exchange(outcomes_, {}); }

std::vector<KeptChunk> World::take_steps() { return std::exchange(kept_, {}); }

void World::keep(uint16_t slot) {
  const Place& here = place(slot);
  for (const Chunk& chunk : here.instance.chunks()) {
    const Sequence& sequence = *chunk.sequence;
    const bool puts_out = sequence.output_tokens != 0 && !sequence.sends && !sequence.gone;
    kept_.push_back({here.instance.num_steps() - 1, here.start_s, now_s_, sequence.request, slot,
                     chunk.start, chunk.stop, chunk.samples() && puts_out});
  }
}

void World::audit() const {
  for (const auto& one : places_) {
    one->instance.cache().audit();
    if (one->instance.tiers() != nullptr) one->instance.tiers()->audit();
  }
  if (store_) store_->audit();
}

}  // namespace inlay::sim
