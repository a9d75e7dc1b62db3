# Fails when LIBRARY defines a weak symbol. Run by the build after each ISA library.
execute_process(COMMAND ${NM} --defined-only ${LIBRARY}
  OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NM} could not read ${LIBRARY}")
endif()
string(REGEX MATCHALL "[^\n]* [VWuvw] [^\n]*" weak "${symbols}")
if(weak)
  string(REPLACE ";" "\n  " weak "${weak}")
  file(REMOVE ${LIBRARY})
  message(FATAL_ERROR "Weak symbols in ${LIBRARY}; the linker could mix instruction sets:\n  ${weak}\n"
    "Put the code into the ISA file's anonymous namespace.")
endif()
