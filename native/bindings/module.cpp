#include "module.h"

#include <exception>

#include "../core/errors.h"

namespace nb = nanobind;

namespace {

// The class in inlay.core.errors, looked up when the first error is raised.
PyObject* argument_error_class() {
  static PyObject* found = nullptr;
  if (found == nullptr) {
    PyObject* module = PyImport_ImportModule("inlay.core.errors");
    if (module != nullptr) found = PyObject_GetAttrString(module, "ArgumentError");
    Py_XDECREF(module);
    if (found == nullptr) {
      PyErr_Clear();
      return PyExc_ValueError;
    }
  }
  return found;
}

void translate_errors(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const inlay::ArgumentError& e) {
    PyErr_SetString(argument_error_class(), e.what());
  }
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The compiled core of Inlay. Use it through the packages, e.g. inlay.kernels.";
  nb::register_exception_translator(translate_errors);

  nb::module_ kernels = m.def_submodule("kernels", "CPU kernels; typed doors in inlay.kernels.");
  inlay::bindings::register_runtime(kernels);
  inlay::bindings::register_linear(kernels);
  inlay::bindings::register_moe(kernels);
  inlay::bindings::register_attention(kernels);
  inlay::bindings::register_rows(kernels);
  inlay::bindings::register_limits(kernels);

  nb::module_ block_hash =
      m.def_submodule("block_hash", "Block identity in batch; contract in inlay.core.block_hash.");
  inlay::bindings::register_block_hash(block_hash);
}
