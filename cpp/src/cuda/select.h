// Which kernel a call runs: a pure function of the call, the device's capabilities and the table of kernels. explain(),
// workspace sizes, launches and tests all ask it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/kernel_table.h"

namespace dlattn::cuda {

// Why the row cannot take the call on such a device; empty: it can.
std::string why_not(const KernelRow& row, const AttentionProblem& problem, const DeviceCaps& caps);

// Estimated microseconds of the row on the call: what the choice is made by.
double estimate_us(const KernelRow& row, const AttentionProblem& problem, const DeviceCaps& caps);

// The cheapest row of the table that can take the call, of one family if `forced`; -1: none. Makes no text.
int select_row(const std::vector<KernelRow>& table, const AttentionProblem& problem, const DeviceCaps& caps,
               std::optional<Family> forced);

// Bytes of workspace of the row that the call gets; if pointers of the problem are null, of every row that it may get once
// they are there, aligned or not.
size_t workspace_size(const std::vector<KernelRow>& table, AttentionProblem problem, const DeviceCaps& caps,
                      std::optional<Family> forced);

struct Selection {
  int row = -1;        // of the table; -1: none
  std::string reason;  // why this one and no faster one, or why none
};

// The same with the reason.
Selection select_attention(const std::vector<KernelRow>& table, const AttentionProblem& problem, const DeviceCaps& caps,
                           std::optional<Family> forced);

// The family that DLATTN_KERNEL names, if it is set. InvalidArgument if it names none.
std::optional<Family> forced_family();

// Whether a family's compiled code runs on such a device. `simt` code and that of `any` are built for every architecture.
bool family_runs_on(Family family, const DeviceCaps& caps);

// Why no kernel of this build runs on the device; empty: they do. Asks CUDA what the device is.
std::string why_device_cannot_run(int device);

// Throws unless kernels of this build run on the device: InvalidArgument if it is none of this machine's, CudaError if there
// is none at all, NotCompiled if there is no code for it.
void require_device(const char* op, int device);

}  // namespace dlattn::cuda
