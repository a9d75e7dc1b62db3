#include "write_back.h"

#include <algorithm>

namespace inlay::sim {

void WriteBack::stored(uint32_t block, Digest name, Digest parent) {
  if (block >= states_.size()) states_.resize(block + 1);
  states_[block] = {Mark::kUnsaved, 0, name, parent};
  ++num_unsaved_;
  if (when_ == WriteWhen::kThrough) queue(block);
}

void WriteBack::wanted(uint32_t block) {
  if (block < states_.size() && states_[block].mark == Mark::kUnsaved) queue(block);
}

void WriteBack::queue(uint32_t block) {
  State& state = states_[block];
  --num_unsaved_;
  state.mark = Mark::kQueued;
  state.turn = ++turn_;
  queue_.push_back({block, state.turn});
}

void WriteBack::evicted(uint32_t block) {
  if (block >= states_.size()) return;
  State& state = states_[block];
  if (state.mark == Mark::kUnsaved) --num_unsaved_;
  lost_ +=
      state.mark == Mark::kQueued || (state.mark == Mark::kUnsaved && when_ == WriteWhen::kEvict);
  state.mark = Mark::kNone;
}

void WriteBack::take(std::size_t limit, std::vector<Unsaved>& batch) {
  batch.clear();
  while (batch.size() < limit && !queue_.empty()) {
    const Entry entry = queue_.front();
    queue_.pop_front();
    State& state = states_[entry.block];
    if (state.mark != Mark::kQueued || state.turn != entry.turn) continue;
    state.mark = Mark::kNone;
    batch.push_back({entry.block, state.name, state.parent});
  }
  // Those go first that others follow least.
  if (when_ == WriteWhen::kEvict) std::reverse(batch.begin(), batch.end());
}

}  // namespace inlay::sim
