# dlattn_warnings: the warnings of this project's own code. Link it PRIVATE; it is never installed.
add_library(dlattn_warnings INTERFACE)
target_compile_options(dlattn_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wnon-virtual-dtor
                                                 $<$<BOOL:${DLATTN_WERROR}>:-Werror>)
