// Prompts that one instance computes for another: what inlay.engine.exchange and inlay.cache.stream
// do. The receiver reserves pages, the sender sends what it computes layer by layer behind the
// computing, and keeps its pages until all has landed. A copy of blocks is a prompt of which the
// sender has nearly all, and the receiver puts out nothing, as in inlay.cluster.copies.
#include <algorithm>
#include <string>

#include "../core/errors.h"
#include "world.h"

namespace inlay::sim {

namespace {

constexpr uint64_t kCopy = uint64_t{1} << 63;  // in numbers of copies
constexpr double kBeforeAll_s = 3600.0;        // a copy goes before all that wait

}  // namespace

void World::require_links(std::size_t source, std::size_t target) const {
  if (config_of(source).out_bytes_per_s == 0.0 || config_of(target).in_bytes_per_s == 0.0)
    throw ArgumentError("nothing can be sent from instance " + std::to_string(source) +
                        " to instance " + std::to_string(target) +
                        ": one of their links has no bandwidth");
}

uint64_t World::copy(cluster::Chain blocks, std::size_t source, std::size_t target) {
  const std::size_t tokens = blocks.size() * config_of(source).page_tokens + 1;
  if (blocks.size() == 0 || source == target)
    throw ArgumentError("copy: goes from one instance to another and has at least one block, got " +
                        std::to_string(blocks.size()) + " from instance " + std::to_string(source) +
                        " to " + std::to_string(target));
  Submission request{0, now_s_ - kBeforeAll_s, 0, static_cast<uint32_t>(tokens), 0, blocks};
  require_fits(request, source);
  require_fits(request, target);
  request.request = kCopy | (submitted_ + 1);
  Sequence& copy = divide(request, source, target);
  copy.due_s = now_s_ + config_.copy_timeout_s;
  at(copy.due_s, kTimeout, copy.slot);
  place(copy.slot).copies.push_back(&copy);
  return request.request;
}

// It has come, and its blocks are known there; or nobody waits for it any more.
void World::end_copy(Sequence& copy, bool came) {
  News news;
  news.kind = came ? News::kCopied : News::kNotCopied;
  news.slot = copy.slot;
  news.request = copy.request;
  std::erase(place(copy.slot).copies, &copy);
  came ? remove(copy) : withdraw(copy);
  tell(std::move(news));
}

// Returns who decodes it.
Sequence& World::divide(const Submission& request, std::size_t prefill, std::size_t decode) {
  require_links(prefill, decode);
  Sequence& receiver = make(request, decode);
  Sequence& sender = make(request, prefill);
  go_on(receiver);
  // The last token of the prompt is computed by the receiver, which samples from it.
  --sender.num_tokens;
  sender.sends = true;
  sender.flow = links_.open(place(sender.slot).end, place(receiver.slot).end);
  flow_senders_.resize(std::max<std::size_t>(flow_senders_.size(), sender.flow + 1));
  flow_senders_[sender.flow] = &sender;
  sender.other = &receiver;
  receiver.other = &sender;
  receiver.computed_at = sender.slot;
  receiver.state = State::kReceiving;
  Place& there = place(receiver.slot);
  there.receiving.push_back(&receiver);
  place(sender.slot).instance.scheduler().add(sender);
  if (!there.crowded.empty() || !reserve(receiver)) there.crowded.push_back(&receiver);
  kick(static_cast<uint16_t>(prefill));
  kick(receiver.slot);
  return receiver;
}

// Whether pages could be reserved. Those that running sequences may soon need are left.
bool World::reserve(Sequence& receiver) {
  Place& here = place(receiver.slot);
  PageCache& cache = here.instance.cache();
  const uint32_t num_tokens = receiver.num_tokens - 1;
  const uint32_t page_tokens = cache.page_tokens();
  const uint32_t blocks = cache.match(receiver.names, num_tokens);
  if (num_tokens - blocks * page_tokens <= page_tokens) {
    // As quick to compute in a step that runs anyway.
    drop_sender(receiver);
    here.instance.scheduler().add(receiver);
    return true;
  }
  const std::size_t spare = here.instance.scheduler().num_running();
  const uint32_t needed = (num_tokens + page_tokens - 1) / page_tokens - blocks;
  if (spare != 0 && needed + spare > cache.num_free() + cache.num_idle()) return false;
  if (!cache.hold(receiver.hold, receiver.names, blocks, num_tokens)) return false;
  tell_blocks(receiver.slot);
  receiver.cached_tokens = static_cast<uint32_t>(receiver.hold.named.size()) * page_tokens;
  Sequence& sender = *receiver.other;
  sender.aimed = true;
  sender.asked_bytes = config_of(sender.slot).token_bytes * page_tokens *
                       static_cast<double>(receiver.hold.num_pages - receiver.hold.named.size());
  tell_moving(News::kSending, sender);
  sender.offered = receiver.cached_tokens;
  offer(sender);
  receiver.since_s = now_s_;
  at(now_s_ + config_.come_timeout_s, kTimeout, receiver.slot);
  return true;
}

void World::poll_crowded(uint16_t slot) {
  Place& here = place(slot);
  while (!here.crowded.empty() && reserve(*here.crowded.front())) here.crowded.pop_front();
}

void World::tell_moving(News::Kind kind, const Sequence& sender, double seconds) {
  News news;
  news.kind = kind;
  news.slot = sender.slot;
  news.bytes = sender.asked_bytes;
  news.seconds = seconds;
  tell(std::move(news));
}

// The receiver computes the prompt itself, or is not wanted any more.
void World::drop_sender(Sequence& receiver) {
  Sequence& sender = *receiver.other;
  if (sender.aimed) tell_moving(News::kSent, sender);
  std::erase(place(receiver.slot).receiving, &receiver);
  receiver.other = nullptr;
  receiver.computed_at = receiver.slot;
  receiver.cached_tokens = 0;
  links_.advance(now_s_);
  links_.close(sender.flow);
  flow_senders_[sender.flow] = nullptr;
  sender.other = nullptr;
  if (!in_step(sender)) remove(sender);  // or when the step ends
}

// What is computed and was not offered goes at once.
void World::offer(Sequence& sender) {
  const uint32_t tokens = std::min(sender.computed, sender.num_tokens);
  if (tokens <= sender.offered) return;
  links_.advance(now_s_);
  links_.put(sender.flow, bytes_of(sender, sender.offered, tokens));
  sender.offered = tokens;
}

double World::bytes_of(const Sequence& sender, uint32_t start, uint32_t stop) {
  if (stop <= start) return 0.0;
  return place(sender.slot).instance.config().token_bytes * (stop - start);
}

void World::stream_begins(Sequence& sender, const Chunk& chunk, double seconds) {
  if (sender.other == nullptr || !sender.aimed) return;
  if (chunk.start > sender.offered) {  // found in the cache
    links_.advance(now_s_);
    links_.put(sender.flow, bytes_of(sender, sender.offered, chunk.start));
    sender.offered = chunk.start;
  }
  const double bytes = bytes_of(sender, std::max(chunk.start, sender.offered), chunk.stop);
  const double layers = place(sender.slot).instance.config().layers;
  if (bytes == 0.0 || layers == 1.0 || seconds == 0.0) return;
  // A layer is sent while the next one is computed: all but the last one within the step.
  links_.advance(now_s_);
  sender.streamed_bytes = bytes * (1.0 - 1.0 / layers);
  links_.produce(sender.flow, sender.streamed_bytes / seconds);
}

void World::stream_ends(const Chunk& chunk) {
  Sequence& sender = *chunk.sequence;
  if (sender.other == nullptr || !sender.aimed) return;
  const uint32_t start = std::max(chunk.start, sender.offered);
  if (chunk.stop <= start) return;
  links_.advance(now_s_);
  links_.produce(sender.flow, 0.0);
  links_.put(sender.flow, bytes_of(sender, start, chunk.stop) - sender.streamed_bytes);
  sender.streamed_bytes = 0.0;
  sender.offered = chunk.stop;
}

void World::computed_for_other(const Chunk& chunk) {
  Sequence& sender = *chunk.sequence;
  if (sender.other == nullptr) return remove(sender);  // it is not wanted any more
  stream_ends(chunk);
  if (sender.computed < sender.num_tokens) return;
  place(sender.slot).instance.scheduler().remove(sender, true);
  sender.state = State::kSending;
  sender.since_s = now_s_;
  if (!sender.aimed) {
    at(now_s_ + config_.aim_timeout_s, kTimeout, sender.other->slot);
    return;
  }
  links_.advance(now_s_);
  if (links_.empty(sender.flow)) drained(sender.flow);
}

void World::drained(Links::Flow flow) {
  if (moved(flow)) return;
  Sequence* sender = flow_senders_[flow];
  if (sender == nullptr || sender->state != State::kSending || !links_.empty(flow)) return;
  links_.close(flow);
  flow_senders_[flow] = nullptr;
  landings_.push_back({now_s_ + config_.link_latency_s, sender});
  at(landings_.back().at_s, kTransfer, 0);
}

void World::landed(Sequence& sender) {
  Sequence& receiver = *sender.other;
  // Of a copy nothing is computed: its time is that of the transfer.
  const bool timed = receiver.output_tokens == 0 && !place(sender.slot).lost;
  tell_moving(News::kSent, sender, timed ? now_s_ - receiver.since_s : -1.0);
  receiver.computed = receiver.num_tokens - 1;
  if (sender.cached_tokens > receiver.cached_tokens) {
    receiver.cached_tokens = sender.cached_tokens;
    receiver.tier_tokens = sender.tier_tokens;
  }
  receiver.preemptions += sender.preemptions;
  receiver.other = nullptr;
  const uint16_t slot = sender.slot;
  place(slot).instance.cache().release(sender.hold);
  free(sender);
  kick(slot);
  std::erase(place(receiver.slot).receiving, &receiver);
  if (receiver.gone) return remove(receiver);
  place(receiver.slot).instance.scheduler().add(receiver);
  kick(receiver.slot);
}

bool World::landing(const Sequence& sender) const {
  return sender.aimed && flow_senders_[sender.flow] != &sender;
}

// Who waited too long for pages after its prompt was computed, or for the prompt, computes it
// itself: instances that hold pages for each other's prompts do not wait for ever.
void World::give_up(uint16_t slot) {
  Place& here = place(slot);
  while (!here.copies.empty() && here.copies.front()->due_s <= now_s_)
    end_copy(*here.copies.front(), false);
  std::vector<Sequence*> late;
  for (Sequence* receiver : here.receiving) {
    const Sequence& sender = *receiver->other;
    const bool late_aim = !sender.aimed && sender.state == State::kSending &&
                          sender.since_s + config_.aim_timeout_s <= now_s_;
    const bool late_kv = sender.aimed && receiver->since_s + config_.come_timeout_s <= now_s_;
    if (!landing(sender) && (late_aim || late_kv)) late.push_back(receiver);
  }
  for (Sequence* receiver : late) compute_here(*receiver);
  kick(slot);
}

void World::compute_here(Sequence& receiver) {
  Place& here = place(receiver.slot);
  std::erase(here.crowded, &receiver);
  drop_sender(receiver);
  here.instance.cache().release(receiver.hold);
  here.instance.scheduler().add(receiver);
}

}  // namespace inlay::sim
