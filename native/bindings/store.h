// One register function per file of bindings of the store; all in the submodule `store`.
#pragma once

#include <nanobind/nanobind.h>

namespace inlay::bindings {

void register_store_allocator(nanobind::module_& store);
void register_store_eviction(nanobind::module_& store);
void register_store_calls(nanobind::module_& store);
void register_store_client(nanobind::module_& store);
void register_store_link(nanobind::module_& store);
void register_store_master(nanobind::module_& store);
void register_store_node(nanobind::module_& store);

}  // namespace inlay::bindings
