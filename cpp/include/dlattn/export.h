// Symbol visibility of the library, which is built with everything else hidden.
#pragma once

#define DLATTN_EXPORT __attribute__((visibility("default")))
