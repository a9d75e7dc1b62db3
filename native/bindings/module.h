// One register function per file of bindings; kernels live in the submodule `kernels`.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>

namespace inlay::bindings {

// How long a wait lasts before Python's signal handlers get their turn.
inline constexpr std::chrono::milliseconds kSignalCheck(100);

void register_limits(nanobind::module_& kernels);
void register_weights(nanobind::module_& kernels);
void register_linear(nanobind::module_& kernels);
void register_adapters(nanobind::module_& kernels);
void register_moe(nanobind::module_& kernels);
void register_moe_training(nanobind::module_& kernels);
void register_hand_over(nanobind::module_& kernels);
void register_stream_words(nanobind::module_& kernels);
void register_attention(nanobind::module_& kernels);
void register_rows(nanobind::module_& kernels);
void register_pending(nanobind::module_& kernels);
void register_runtime(nanobind::module_& kernels);
void register_token_ids(nanobind::module_& kernels);
void register_block_hash(nanobind::module_& block_hash);
void register_cluster_prefix_index(nanobind::module_& cluster);
void register_cluster_seen_prompts(nanobind::module_& cluster);
void register_cluster_state(nanobind::module_& cluster);
void register_cluster_timing(nanobind::module_& cluster);
void register_sim(nanobind::module_& sim);
void register_sim_rails(nanobind::module_& sim);
void register_transfer(nanobind::module_& transfer);
void register_transfer_policy(nanobind::module_& transfer_policy);

}  // namespace inlay::bindings
