# cmake/strict_ptxas.sh lets sound wgmma code pass and fails, without an object, where ptxas serializes it. Run with cmake -P
# and SOURCE_DIR, BINARY_DIR, CUDA_COMPILER.
cmake_minimum_required(VERSION 3.25)
file(MAKE_DIRECTORY "${BINARY_DIR}")

function(expect_compile name expected_result expected_text)
  set(object "${BINARY_DIR}/${name}.o")
  file(WRITE "${object}" "of an earlier build")
  execute_process(
    COMMAND sh ${SOURCE_DIR}/cmake/strict_ptxas.sh ${CUDA_COMPILER} --generate-code=arch=compute_90a,code=[sm_90a] ${ARGN}
            -c ${SOURCE_DIR}/tests_cpp/cmake/wgmma_in_flight.cu -o ${object}
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT result EQUAL expected_result)
    message(SEND_ERROR "${name}: exit status ${result}, expected ${expected_result}: ${text}")
  elseif(NOT text MATCHES "${expected_text}")
    message(SEND_ERROR "${name}: expected \"${expected_text}\" in: ${text}")
  elseif(result EQUAL 0 AND NOT EXISTS "${object}" OR result AND EXISTS "${object}")
    message(SEND_ERROR "${name}: exit status ${result}, but its object is wrong")
  endif()
endfunction()

expect_compile(sound 0 "^$")
expect_compile(serialized 1 "wgmma.mma_async instructions are serialized.*error: ptxas" -DIN_A_CALL)
execute_process(COMMAND sh ${SOURCE_DIR}/cmake/strict_ptxas.sh sh -c "exit 3" RESULT_VARIABLE result)
if(NOT result EQUAL 3)
  message(SEND_ERROR "a compiler's exit status 3 became ${result}")
endif()
