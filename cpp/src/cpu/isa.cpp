#include "cpu/isa.h"

#include <cstdlib>

#include "backend.h"
#include "dlattn/error.h"

namespace dlattn::cpu {

static_assert(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kFloat16) == 1 &&
              static_cast<int>(DType::kBFloat16) == 2);  // Kernels::by_dtype

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> list{&kKernelsBaseline};
#if defined(DLATTN_HAVE_AVX2)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    list.push_back(&kKernelsAvx2);
  }
#endif
#if defined(DLATTN_HAVE_AVX512)
  if (list.size() == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    list.push_back(&kKernelsAvx512);
  }
#endif
  return list;
}

static const Kernels* choose() {
  const std::vector<const Kernels*> list = available_kernels();
  const char* wanted = std::getenv("DLATTN_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return list.back();
  std::string names;
  for (const Kernels* level : list) {
    if (level->isa == std::string(wanted)) return level;
    names += names.empty() ? level->isa : std::string(", ") + level->isa;
  }
  throw InvalidArgument("DLATTN_CPU_ISA is \"" + std::string(wanted) + "\", expected one of: " + names);
}

const Kernels& kernels() {
  static const Kernels* const chosen = choose();  // a throw leaves it to the next call
  return *chosen;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* level : available_kernels()) names.emplace_back(level->isa);
  return names;
}

std::string current_isa() { return kernels().isa; }

}  // namespace dlattn::cpu
