#include "cuda/select.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "cuda/device.h"
#include "cuda/launch_plan.h"
#include "cuda/wgmma/tensor_axes.h"
#include "cuda_archs.h"
#include "dlattn/error.h"
#include "element.h"

namespace dlattn::cuda {
namespace {

template <typename Targets>
bool any_runs_on(const Targets& targets, const DeviceCaps& caps) {
  for (const ArchTarget& target : targets) {
    if (runs_on(target, caps)) return true;
  }
  return false;
}

template <typename Targets>
std::string list(const Targets& targets) {
  std::string text;
  for (const ArchTarget& target : targets) text += (text.empty() ? "" : ", ") + to_string(target);
  return text;
}

// The mean numbers of queries and visible keys of a sequence, as far as the host knows.
double mean_queries(const AttentionProblem& p) {
  return static_cast<double>(p.total_q) / static_cast<double>(std::max<int64_t>(p.batch_size, 1));
}

double mean_keys(const AttentionProblem& p) {
  double keys = static_cast<double>(p.max_len_k);
  if (p.ragged_k) keys /= static_cast<double>(std::max<int64_t>(p.batch_size, 1));
  if (p.window_right == 0) keys = std::max(keys - mean_queries(p) / 2, keys / 2);
  if (p.window_left != kUnlimited) keys = std::min(keys, static_cast<double>(p.window_left) + mean_queries(p));
  return keys;
}

}  // namespace

const char* name_of(Family family) {
  switch (family) {
    case Family::kMma:
      return "mma";
    case Family::kWgmma:
      return "wgmma";
    default:
      return "simt";
  }
}

bool family_runs_on(Family family, const DeviceCaps& caps) {
  switch (family) {
    case Family::kMma:
      return any_runs_on(kMmaArchs, caps);
    case Family::kWgmma:
      return any_runs_on(kWgmmaArchs, caps);
    default:
      return any_runs_on(kSimtArchs, caps);
  }
}

std::string why_device_cannot_run(int device) {
  const DeviceCaps& caps = device_caps(device);
  if (family_runs_on(Family::kSimt, caps)) return "";
  return "cuda:" + std::to_string(device) + " has compute capability " + std::to_string(caps.major) + "." +
         std::to_string(caps.minor) + ", but this build has code for " + list(kSimtArchs) +
         (caps.capability() < 75 ? "; 7.5 is the least"
                                 : "; build with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(caps.capability()));
}

void require_device(const char* op, int device) {
  const std::string name = std::string(op) + ": device is cuda:" + std::to_string(device);
  std::string why;
  try {
    why = why_device_cannot_run(device);
  } catch (const CudaError& error) {
    const int count = device_count();
    if (count == 0) throw CudaError(name + ", but this machine has no usable CUDA device: " + error.what());
    throw InvalidArgument(name + ", expected cuda:0..cuda:" + std::to_string(count - 1) +
                          " (= the devices of this machine)");
  }
  if (!why.empty()) throw NotCompiled(std::string(op) + ": " + why);
}

std::optional<Family> forced_family() {
  const char* name = std::getenv("DLATTN_KERNEL");
  if (name == nullptr || *name == '\0') return std::nullopt;
  for (Family family : {Family::kSimt, Family::kMma, Family::kWgmma}) {
    if (std::string(name) == name_of(family)) return family;
  }
  throw InvalidArgument(std::string("DLATTN_KERNEL is \"") + name + "\", expected simt, mma or wgmma");
}

namespace {

// What a row lacks for a call, in the order in which it is asked.
enum class Lack {
  kNothing,
  kCode,
  kDType,
  kHeadDim,
  kAlignment,
  kOptions,
  kLength,
  kSize,
  kStrides,
  kPages,
  kSharedMemory
};

constexpr int64_t kMaxKeys = INT64_C(1) << 30;     // mma and wgmma: keys are counted in 32 bits
constexpr int64_t kMaxQueries = INT64_C(1) << 29;  // wgmma: keys - queries in 32 bits, too
constexpr int64_t kMaxSize = INT32_MAX;            // wgmma: coordinates of TMA
constexpr int64_t kMaxItems = INT32_MAX / 2;       // wgmma: the work of all thread blocks
constexpr int64_t kPageRows = 8;                   // wgmma: of a page that a box of TMA takes at least
constexpr float kLargestSoftcap = 1000.0f;         // wgmma: beyond, the rounding of its tanh would show
constexpr float kLargestScale = 1e30f;             // of which an exponent of 2 can be made

bool takes_options(const KernelRow& row, const AttentionProblem& p) {
  if (row.score_options) return true;
  const bool capped = p.softcap > 0.0f;
  if (capped && !(row.softcap && p.softcap <= kLargestSoftcap && p.scale / p.softcap < kLargestScale)) return false;
  return !p.has_bias() && p.scale > 0.0f && p.scale < kLargestScale;
}

// Of what TMA needs.
Lack lack_of_tma(const KernelRow& row, const AttentionProblem& p) {
  if (!p.out_aligned_16) return Lack::kAlignment;
  if (p.max_len_k < 1 || p.max_len_k > kMaxKeys) return Lack::kLength;
  const TensorMapAxes q = q_axes(p), k = k_axes(p);
  if (q.seq.size > kMaxQueries) return Lack::kSize;
  for (int64_t size : {q.seq.size, q.head.size, p.batch_size, k.seq.size, k.batch.size}) {
    if (!tensor_map_size_fits(size)) return Lack::kSize;
  }
  const auto items = static_cast<double>(row_tiles(row, p).num_slots) * static_cast<double>(p.num_heads);
  if (items > static_cast<double>(kMaxItems)) return Lack::kSize;
  if (!(tensor_map_fits(p.dtype, p.q, p.head_dim, q) && tensor_map_fits(p.dtype, p.k, p.head_dim, k) &&
        tensor_map_fits(p.dtype, p.v, p.head_dim_v, v_axes(p)) &&
        tensor_map_fits(p.dtype, p.out, p.head_dim_v, out_axes(p)))) {
    return Lack::kStrides;
  }
  if (p.paged && std::gcd(p.page_size.divisor, int64_t{row.key_tile}) < kPageRows) return Lack::kPages;
  return Lack::kNothing;
}

Lack lack_of(const KernelRow& row, const AttentionProblem& p, const DeviceCaps& caps) {
  if (!row.takes(p.dtype)) return Lack::kDType;
  if (std::max(p.head_dim, p.head_dim_v) > row.max_head_dim) return Lack::kHeadDim;
  if (row.aligned_only && !(p.q_aligned && p.k_aligned && p.v_aligned)) return Lack::kAlignment;
  if (!takes_options(row, p)) return Lack::kOptions;
  if (row.family == Family::kMma && p.max_len_k > kMaxKeys) return Lack::kLength;
  if (row.family == Family::kWgmma) {
    const Lack lack = lack_of_tma(row, p);
    if (lack != Lack::kNothing) return lack;
  }
  if (row.shared_bytes > caps.max_shared_bytes) return Lack::kSharedMemory;
  return family_runs_on(row.family, caps) ? Lack::kNothing : Lack::kCode;
}

}  // namespace

std::string why_not(const KernelRow& row, const AttentionProblem& p, const DeviceCaps& caps) {
  switch (lack_of(row, p, caps)) {
    case Lack::kCode:
      return std::string("no ") + name_of(row.family) + " code for compute capability " + std::to_string(caps.major) +
             "." + std::to_string(caps.minor) + " in this build";
    case Lack::kDType:
      return std::string("no ") + name_of(p.dtype);
    case Lack::kHeadDim:
      return "head_dim up to " + std::to_string(row.max_head_dim);
    case Lack::kAlignment:
      return std::string(row.family == Family::kWgmma ? "rows of q, k, v and out" : "rows of q, k and v") +
             " at multiples of 16 bytes, head_dim and head_dim_v multiples of 8";
    case Lack::kOptions:
      return row.softcap ? "no mask or ALiBi, a positive scale, a softcap up to 1000"
                         : "no softcap, mask or ALiBi, and a positive scale";
    case Lack::kLength:
      return (row.family == Family::kWgmma ? "1 to " : "up to ") + std::to_string(kMaxKeys) + " keys";
    case Lack::kSize:
      return "sizes of q, k and v from 1 to " + std::to_string(kMaxSize) + ", at most " + std::to_string(kMaxQueries) +
             " queries and " + std::to_string(kMaxItems) + " tiles";
    case Lack::kStrides:
      return "strides that TMA can express: not negative, less than 2^40 bytes";
    case Lack::kPages:
      return "a page_size whose greatest common divisor with " + std::to_string(row.key_tile) + " is at least " +
             std::to_string(kPageRows);
    case Lack::kSharedMemory:
      return "needs " + std::to_string(row.shared_bytes) + " bytes of shared memory, the device has " +
             std::to_string(caps.max_shared_bytes);
    case Lack::kNothing:
      break;
  }
  return "";
}

namespace {

// Of the thread blocks for which a row was measured, those that an SM's shared memory holds: it keeps 1 KiB for each.
double resident_fraction(const KernelRow& row, const DeviceCaps& caps) {
  const int blocks = (caps.max_shared_bytes + 1024) / (row.shared_bytes + 1024);
  return static_cast<double>(std::min(blocks, row.blocks_per_sm)) / row.blocks_per_sm;
}

}  // namespace

double estimate_us(const KernelRow& row, const AttentionProblem& p, const DeviceCaps& caps) {
  constexpr double kFmaPerUs = 128 * 1900.0;      // of an SM
  constexpr double kBytesPerUs = 33e3;            // of an SM, when all read and
  constexpr double kBytesInFlight = 64 * 1024.0;  // so many bytes are on their way to it
  constexpr double kUsOfEnds = 3.0;               // of an item, beside its products, however many blocks an SM has
  const double rows = std::ceil(mean_queries(p) * static_cast<double>(p.heads_per_kv_head)), keys = mean_keys(p);
  const double items = std::max(1.0, std::ceil(rows / row.tile_rows)) * static_cast<double>(p.batch_size) *
                       static_cast<double>(p.num_kv_heads);
  const double sms = caps.num_sms;
  if (row.family == Family::kWgmma) {  // a tile is of one query head; a group's heads share the keys in the L2
    constexpr double kReads = 0.5;     // of the memory's rate; untuned: calls with few queries are others' work
    const double tiles = std::max(1.0, std::ceil(mean_queries(p) / row.tile_rows)) * static_cast<double>(p.batch_size) *
                         static_cast<double>(p.num_heads);
    const double us_of_tile = row.tile_rows * keys * 2 * row.max_head_dim / (kFmaPerUs * row.fma_rate);
    const double bytes = static_cast<double>(p.batch_size) * static_cast<double>(p.num_kv_heads) * keys * 2 *
                         row.max_head_dim * size_of(p.dtype);
    const auto parts = static_cast<double>(split_plan(row, p, row_tiles(row, p), caps).max_splits);
    const double blocks = row.blocks_per_sm, merge = parts > 1 ? 4.0 : 0.0;
    const double waves = std::ceil(tiles * parts / (sms * blocks));
    return 4.0 + merge +
           std::max(waves * (kUsOfEnds + blocks * us_of_tile / parts), bytes / (kBytesPerUs * kReads * sms));
  }
  const double in_flight = std::min(1.0, static_cast<double>(row.blocks_per_sm) * row.bytes_in_flight / kBytesInFlight);
  if (row.phase == Phase::kPrefill) {
    const double fma = row.tile_rows * keys * (p.head_dim + row.max_head_dim);
    const double us_of_item = fma / (kFmaPerUs * row.fma_rate * resident_fraction(row, caps));
    if (!splits_keys(row, p)) {
      // A tensor-core block is no faster alone on its SM: the SM's rate is that of all that it holds.
      const double at_least = row.family == Family::kMma ? row.blocks_per_sm : 1;
      return 4.0 + std::max(std::ceil(items / sms), at_least) * (kUsOfEnds + us_of_item);
    }
    const double bytes = items * keys * 2 * row.max_head_dim * size_of(p.dtype);
    return 6.0 + std::max(items * us_of_item, bytes / (kBytesPerUs * in_flight)) / sms;
  }
  // The keys are split until all SMs have work.
  const double fma = items * std::min<double>(rows, row.tile_rows) * keys * 2 * row.max_head_dim;
  const double bytes = items * keys * 2 * row.max_head_dim * size_of(p.dtype);
  return 5.0 + std::max(fma / (kFmaPerUs * row.fma_rate), bytes / (kBytesPerUs * in_flight)) / sms;
}

int select_row(const std::vector<KernelRow>& table, const AttentionProblem& problem, const DeviceCaps& caps,
               std::optional<Family> forced) {
  int best = -1;
  double best_us = 0.0;
  for (size_t i = 0; i < table.size(); ++i) {
    const KernelRow& row = table[i];
    if ((forced && row.family != *forced) || lack_of(row, problem, caps) != Lack::kNothing) continue;
    const double us = estimate_us(row, problem, caps);
    if (best >= 0 && us > best_us) continue;  // of equals the last one: tensor cores
    best = static_cast<int>(i);
    best_us = us;
  }
  return best;
}

size_t workspace_size(const std::vector<KernelRow>& table, AttentionProblem problem, const DeviceCaps& caps,
                      std::optional<Family> forced) {
  const auto size = [&] {
    const int row = select_row(table, problem, caps, forced);
    return row < 0 ? 0 : workspace_size(table[static_cast<size_t>(row)], problem, caps);  // the call will say why
  };
  size_t bytes = size();
  if (problem.q != nullptr && problem.k != nullptr && problem.v != nullptr && problem.out != nullptr) return bytes;
  problem.out_aligned_16 = false;  // no wgmma
  bytes = std::max(bytes, size());
  problem.q_aligned = false;  // no mma either
  return std::max(bytes, size());
}

namespace {

// The row that would be faster by estimate, if it took the call; null: none.
const KernelRow* faster_row(const std::vector<KernelRow>& table, const AttentionProblem& p, const DeviceCaps& caps,
                            double us) {
  const KernelRow* best = nullptr;
  for (const KernelRow& row : table) {
    const Lack lack = lack_of(row, p, caps);
    if (lack == Lack::kNothing || lack == Lack::kDType || lack == Lack::kHeadDim || lack == Lack::kSharedMemory ||
        !family_runs_on(row.family, caps)) {
      continue;
    }
    const double row_us = estimate_us(row, p, caps);
    if (row_us >= us) continue;
    best = &row;
    us = row_us;
  }
  return best;
}

}  // namespace

Selection select_attention(const std::vector<KernelRow>& table, const AttentionProblem& problem, const DeviceCaps& caps,
                           std::optional<Family> forced) {
  Selection selection;
  selection.row = select_row(table, problem, caps, forced);
  const std::string prefix = forced ? std::string("DLATTN_KERNEL is ") + name_of(*forced) : "";
  if (selection.row >= 0) {
    const double us = estimate_us(table[static_cast<size_t>(selection.row)], problem, caps);
    selection.reason = (forced ? prefix : "the fastest by estimate") + ", about " +
                       std::to_string(static_cast<int64_t>(us)) + " us if all sequences have their bound's length";
    const KernelRow* faster = forced ? nullptr : faster_row(table, problem, caps, us);
    if (faster != nullptr) {
      selection.reason +=
          std::string("; faster, if it took the call: ") + faster->name + " (" + why_not(*faster, problem, caps) + ")";
    }
    return selection;
  }
  std::string families, reasons;
  for (const KernelRow& row : table) {
    if (families.find(name_of(row.family)) == std::string::npos) {
      families += (families.empty() ? "" : ", ") + std::string(name_of(row.family));
    }
    if (forced && row.family != *forced) continue;
    const std::string reason = why_not(row, problem, caps);
    if (reasons.find(reason) == std::string::npos) reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  if (reasons.empty()) {
    selection.reason = (prefix.empty() ? "" : prefix + ", but ") +
                       "this build has no such attention kernel; compiled: " + (families.empty() ? "none" : families);
  } else {
    selection.reason = (prefix.empty() ? "" : prefix + ": ") + "no kernel takes the call: " + reasons;
  }
  return selection;
}

}  // namespace dlattn::cuda
