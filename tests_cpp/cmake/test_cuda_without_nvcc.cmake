# Where there is no nvcc, AUTO configures the CPU library and says so, ON fails and says why. Run with cmake -P and
# SOURCE_DIR, BINARY_DIR, GENERATOR, CXX_COMPILER.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${BINARY_DIR}")

function(expect_configure cuda expected_result expected_text)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${BINARY_DIR}/${cuda} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
            -DDLATTN_CUDA=${cuda} -DDLATTN_TESTS=OFF -DCMAKE_CUDA_COMPILER=${BINARY_DIR}/no/nvcc
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")  # CMake wraps its messages
  if(NOT result EQUAL expected_result)
    message(SEND_ERROR "DLATTN_CUDA=${cuda}: exit status ${result}, expected ${expected_result}: ${text}")
  elseif(NOT text MATCHES "${expected_text}")
    message(SEND_ERROR "DLATTN_CUDA=${cuda}: expected \"${expected_text}\" in: ${text}")
  endif()
endfunction()

expect_configure(AUTO 0 "CMake Warning.*building WITHOUT CUDA: .*no/nvcc --version does not work")
expect_configure(OFF 0 "building WITHOUT CUDA: DLATTN_CUDA is OFF")
expect_configure(ON 1 "CMake Error.*DLATTN_CUDA is ON, but .*no/nvcc --version does not work")
expect_configure(MAYBE 1 "CMake Error.*DLATTN_CUDA is MAYBE, expected AUTO, ON or OFF")
