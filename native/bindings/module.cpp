#include "module.h"

#include <exception>

#include "../core/errors.h"
#include "../core/interrupt.h"
#include "../core/status.h"
#include "../store/failure.h"
#include "store.h"
#include "transfer.h"

namespace nb = nanobind;

namespace {

// A class of inlay.core.errors becomes Python's error. It is looked up each time: an import lets
// other threads run, and one that raises, too, would wait for a static here with the GIL in its
// hands.
void set_error(const char* name, PyObject* fallback, const std::exception& error) {
  PyObject* module = PyImport_ImportModule("inlay.core.errors");
  PyObject* found = module == nullptr ? nullptr : PyObject_GetAttrString(module, name);
  Py_XDECREF(module);
  if (found == nullptr) PyErr_Clear();
  PyErr_SetString(found == nullptr ? fallback : found, error.what());
  Py_XDECREF(found);
}

void set_transfer_error(const inlay::TransferFailure& failure) {
  try {
    const nb::object error = inlay::bindings::python_error(failure);
    PyErr_SetObject(error.type().ptr(), error.ptr());
  } catch (nb::python_error& problem) {
    problem.restore();
  }
}

void translate_errors(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const inlay::Interrupted&) {
    // What the signal's handler raised is set already.
  } catch (const inlay::TransferFailure& e) {
    set_transfer_error(e);
  } catch (const inlay::store::StoreFailure& e) {
    set_error(inlay::store::python_class(e.status), PyExc_RuntimeError, e);
  } catch (const inlay::NotFiniteError& e) {
    set_error("NotFiniteError", PyExc_ValueError, e);
  } catch (const inlay::ArgumentError& e) {
    set_error("ArgumentError", PyExc_ValueError, e);
  } catch (const inlay::WaitTimeoutError& e) {
    set_error("WaitTimeoutError", PyExc_TimeoutError, e);
  } catch (const inlay::EngineError& e) {
    set_error("EngineError", PyExc_RuntimeError, e);
  } catch (const inlay::ResourceError& e) {
    set_error("ResourceError", PyExc_RuntimeError, e);
  }
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The compiled core of Inlay. Use it through the packages, e.g. inlay.kernels.";
  nb::register_exception_translator(translate_errors);

  nb::module_ kernels = m.def_submodule("kernels", "CPU kernels; typed doors in inlay.kernels.");
  inlay::bindings::register_runtime(kernels);
  inlay::bindings::register_pending(kernels);
  inlay::bindings::register_weights(kernels);
  inlay::bindings::register_linear(kernels);
  inlay::bindings::register_adapters(kernels);
  inlay::bindings::register_moe(kernels);
  inlay::bindings::register_moe_training(kernels);
  inlay::bindings::register_hand_over(kernels);
  inlay::bindings::register_stream_words(kernels);
  inlay::bindings::register_attention(kernels);
  inlay::bindings::register_rows(kernels);
  inlay::bindings::register_limits(kernels);
  inlay::bindings::register_token_ids(kernels);

  nb::module_ block_hash =
      m.def_submodule("block_hash", "Block identity in batch; contract in inlay.core.block_hash.");
  inlay::bindings::register_block_hash(block_hash);

  nb::module_ cluster = m.def_submodule("cluster", "Dispatch; typed doors in inlay.cluster.");
  inlay::bindings::register_cluster_prefix_index(cluster);
  inlay::bindings::register_cluster_seen_prompts(cluster);
  inlay::bindings::register_cluster_timing(cluster);
  inlay::bindings::register_cluster_state(cluster);

  nb::module_ sim = m.def_submodule("sim", "The simulator's world; typed doors in inlay.sim.");
  inlay::bindings::register_sim(sim);
  inlay::bindings::register_sim_rails(sim);

  nb::module_ transfer =
      m.def_submodule("transfer", "Transfer engine; typed doors in inlay.transfer.");
  inlay::bindings::register_transfer(transfer);

  nb::module_ transfer_policy = m.def_submodule(
      "transfer_policy", "Policies of the transfer engine; inlay.transfer.reference in C++.");
  inlay::bindings::register_transfer_policy(transfer_policy);

  nb::module_ store = m.def_submodule("store", "KV store; typed doors in inlay.store.");
  inlay::bindings::register_store_allocator(store);
  inlay::bindings::register_store_eviction(store);
  inlay::bindings::register_store_link(store);
  inlay::bindings::register_store_client(store);
  inlay::bindings::register_store_calls(store);
  inlay::bindings::register_store_master(store);
  inlay::bindings::register_store_node(store);
}
