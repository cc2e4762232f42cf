// What a call throws.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "dlattn/error.h"

namespace dlattn::test {

// The text of the InvalidArgument that `call` throws; fails if it throws none.
template <typename Call>
std::string invalid_argument(Call&& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected InvalidArgument, none was thrown";
  return "";
}

}  // namespace dlattn::test
