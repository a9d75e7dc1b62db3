// Prompts that one instance computes for another: what inlay.engine.exchange and inlay.cache.stream
// do. The receiver reserves pages, the sender sends what it computes layer by layer behind the
// computing, and keeps its pages until all has landed.
#include <algorithm>
#include <string>

#include "../core/errors.h"
#include "world.h"

namespace inlay::sim {

void World::divide(const Submission& request, std::size_t prefill, std::size_t decode) {
  if (place(static_cast<uint16_t>(prefill)).instance.config().out_bytes_per_s == 0.0 ||
      place(static_cast<uint16_t>(decode)).instance.config().in_bytes_per_s == 0.0)
    throw ArgumentError("nothing can be sent from instance " + std::to_string(prefill) +
                        " to instance " + std::to_string(decode) +
                        ": one of their links has no bandwidth");
  ++live_;
  Sequence& receiver = make(request, decode);
  Sequence& sender = make(request, prefill);
  // The last token of the prompt is computed by the receiver, which samples from it.
  --sender.num_tokens;
  sender.output_tokens = 0;
  sender.flow = links_.open(sender.slot, receiver.slot);
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

// The receiver computes the prompt itself.
void World::drop_sender(Sequence& receiver) {
  Sequence& sender = *receiver.other;
  std::erase(place(receiver.slot).receiving, &receiver);
  receiver.other = nullptr;
  receiver.computed_at = receiver.slot;
  receiver.cached_tokens = 0;
  links_.advance(now_s_);
  links_.close(sender.flow);
  flow_senders_[sender.flow] = nullptr;
  sender.other = nullptr;
  const bool in_step = place(sender.slot).instance.busy() && sender.state == State::kRunning &&
                       sender.chunk != Sequence::kNoChunk;
  if (!in_step) remove_sender(sender);  // or when the step ends
}

void World::remove_sender(Sequence& sender) {
  place(sender.slot).instance.scheduler().remove(sender);
  free(sender);
  kick(sender.slot);
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
  if (sender.other == nullptr) return remove_sender(sender);  // it is not wanted any more
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
  Sequence* sender = flow_senders_[flow];
  if (sender == nullptr || sender->state != State::kSending || !links_.empty(flow)) return;
  links_.close(flow);
  flow_senders_[flow] = nullptr;
  landings_.push_back({now_s_ + config_.link_latency_s, sender});
  at(landings_.back().at_s, kTransfer, 0);
}

void World::landed(Sequence& sender) {
  Sequence& receiver = *sender.other;
  receiver.computed = receiver.num_tokens - 1;
  receiver.cached_tokens = std::max(receiver.cached_tokens, sender.cached_tokens);
  receiver.preemptions += sender.preemptions;
  receiver.other = nullptr;
  const uint16_t slot = sender.slot;
  place(slot).instance.cache().release(sender.hold);
  free(sender);
  kick(slot);
  std::erase(place(receiver.slot).receiving, &receiver);
  place(receiver.slot).instance.scheduler().add(receiver);
  kick(receiver.slot);
}

// Who waited too long for pages after its prompt was computed, or for the prompt, computes it
// itself: instances that hold pages for each other's prompts do not wait for ever.
void World::give_up(uint16_t slot) {
  Place& here = place(slot);
  std::vector<Sequence*> late;
  for (Sequence* receiver : here.receiving) {
    const Sequence& sender = *receiver->other;
    const bool landing = sender.aimed && flow_senders_[sender.flow] != &sender;
    const bool late_aim = !sender.aimed && sender.state == State::kSending &&
                          sender.since_s + config_.aim_timeout_s <= now_s_;
    const bool late_kv = sender.aimed && receiver->since_s + config_.come_timeout_s <= now_s_;
    if (!landing && (late_aim || late_kv)) late.push_back(receiver);
  }
  for (Sequence* receiver : late) {
    std::erase(here.crowded, receiver);
    drop_sender(*receiver);
    here.instance.cache().release(receiver->hold);
    here.instance.scheduler().add(*receiver);
  }
  kick(slot);
}

}  // namespace inlay::sim
