// Instances that are lost, with all that they do for others.
#include <vector>

#include "world.h"

namespace inlay::sim {

std::vector<LostRequest> World::lose(std::size_t number) {
  config_of(number);
  const auto slot = static_cast<uint16_t>(number);
  Place& here = place(slot);
  Scheduler& scheduler = here.instance.scheduler();
  here.lost = true;
  here.untold = false;
  here.instance.stop();
  here.samples.clear();
  // What it computed for others.
  for (const auto& one : places_) {
    const std::vector<Sequence*> receiving = one->receiving;
    for (Sequence* receiver : receiving) {
      Sequence& sender = *receiver->other;
      if (sender.slot != slot) continue;
      if (landing(sender)) {  // all has left it
        here.instance.cache().release(sender.hold);
        continue;
      }
      compute_here(*receiver);
      kick(receiver->slot);
      if (receiver->output_tokens == 0) continue;
      News news;
      news.kind = News::kUndivided;
      news.slot = receiver->slot;
      news.request = receiver->request;
      tell(std::move(news));
    }
  }
  // What it did itself.
  std::vector<Sequence*> all(scheduler.running());
  all.insert(all.end(), scheduler.waiting().begin(), scheduler.waiting().end());
  all.insert(all.end(), here.receiving.begin(), here.receiving.end());
  std::vector<LostRequest> lost;
  for (Sequence* sequence : all) {
    if (sequence->gone || sequence->sends) {  // a sender that is left here has lost its receiver
      if (sequence->other == nullptr) remove(*sequence);
    } else if (sequence->output_tokens == 0) {
      end_copy(*sequence, false);
    } else if (const auto produced = take_back(sequence->request, slot)) {
      lost.push_back({sequence->request, *produced});
    }
  }
  stop_works(slot);
  here.instance.cache().forget();
  here.instance.cache().changes().clear();
  return lost;
}

void World::come_back(std::size_t slot) {
  config_of(slot);
  place(static_cast<uint16_t>(slot)).lost = false;
  kick(static_cast<uint16_t>(slot));
}

}  // namespace inlay::sim
