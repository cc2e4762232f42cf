#include "cuda/archs.h"

namespace dlattn::cuda {

bool runs_on(const ArchTarget& target, const DeviceCaps& caps) {
  const int capability = caps.capability();
  if (target.suffix == 'a') return capability == target.capability;
  const bool same_major = capability / 10 == target.capability / 10 && capability >= target.capability;
  if (target.suffix == 'f') return same_major;
  return (target.real && same_major) || (target.ptx && capability >= target.capability);
}

std::string to_string(const ArchTarget& target) {
  std::string name = std::to_string(target.capability);
  if (target.suffix != 0) name += target.suffix;
  if (target.real && !target.ptx) name += "-real";
  if (target.ptx && !target.real) name += "-virtual";
  return name;
}

}  // namespace dlattn::cuda
