// What instances say, and what is heard of it.
#include <algorithm>
#include <string>
#include <utility>

#include "world.h"

namespace inlay::sim {

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
  if (news.kind == News::kCopied || news.kind == News::kNotCopied)
    at(news.heard_s, kHeard, news.slot);
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

void World::tell_store_blocks() {
  if (!store_ || store_->changes().empty()) return;
  News news;
  news.kind = News::kStoreBlocks;
  news.changes = std::exchange(store_->changes(), {});
  tell(std::move(news));
}

void World::deliver(double until_s, cluster::PrefixIndex* instances, cluster::PrefixIndex* store) {
  for (; !said_.empty() && said_.front().heard_s <= until_s; said_.pop_front()) {
    News& news = said_.front();
    if (news.kind != News::kBlocks && news.kind != News::kStoreBlocks) {
      hear(std::move(news));
      continue;
    }
    cluster::PrefixIndex* index = news.kind == News::kBlocks ? instances : store;
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
    if (latest >= taken_ && latest < heard_.size()) {
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

std::vector<News> World::take_news(cluster::State* state) {
  std::vector<News> rest;
  while (taken_ < heard_.size()) {
    News& news = heard_[taken_++];
    if (news.kind == News::kOld || (state != nullptr && take_over(news, *state))) continue;
    rest.push_back(std::move(news));
    if (state != nullptr) return rest;
  }
  heard_.clear();
  taken_ = 0;
  for (const auto& one : places_) one->heard_report = SIZE_MAX;
  return rest;
}

std::vector<uint64_t> World::take_finished() { return std::exchange(finished_, {}); }

bool World::take_over(const News& news, cluster::State& state) {
  switch (news.kind) {
    case News::kFirst:
      state.prefill_done(std::to_string(news.request), news.heard_s);
      return true;
    case News::kFinished: {
      const int64_t tokens = news.output_tokens;
      state.finished(std::to_string(news.request), &tokens);
      finished_.push_back(news.request);
      return true;
    }
    case News::kReport: {
      cluster::LoadNumbers load;
      load.waiting = news.load.waiting;
      load.running = news.load.running;
      load.receiving = news.load.receiving;
      load.prefill_tokens = static_cast<int64_t>(news.load.prefill_tokens);
      load.context_tokens = static_cast<int64_t>(news.load.context_tokens);
      load.pages_total = config_of(news.slot).num_pages;
      load.pages_free = news.load.pages_free;
      load.pages_cached = news.load.pages_cached;
      if (news.load.find_s >= 0.0) {
        load.find_s = news.load.find_s;
        load.load_block_s = news.load.load_block_s;
      }
      state.report(news.slot, load, news.samples, news.heard_s);
      return true;
    }
    case News::kSending:
      state.sending(news.slot, news.bytes);
      return true;
    case News::kSent:
      state.sent(news.slot, news.bytes, news.seconds);
      return true;
    default:
      return false;
  }
}

}  // namespace inlay::sim
