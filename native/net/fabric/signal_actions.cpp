#include "signal_actions.h"

namespace inlay::net::fabric {

SignalActions::SignalActions() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &actions_[i]);
}

SignalActions::~SignalActions() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &actions_[i], nullptr);
}

}  // namespace inlay::net::fabric
