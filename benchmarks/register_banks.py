"""Register-bank stalls of the FFMA loops in a disassembly, by count: no GPU needed.

    cuobjdump -sass build/cuda/cpp/src/cuda/CMakeFiles/dlattn_simt.dir/simt/attention_prefill_simt_f32.cu.o |
        python benchmarks/register_banks.py | c++filt

The register file of sm_70 to sm_90 has two banks (even, odd) that deliver one operand a cycle each; an operand that the
instruction before has kept (.reuse) costs nothing. Reads queue for two cycles before an instruction waits. One warp is
modelled, alone. A line for each backward jump over mostly FFMA: cycles per FFMA; 1.0 would be the peak, loads and
counters of the loop count as well. docs/kernels/simt.md says what it is for.
"""

import re
import sys

QUEUE = 2  # cycles; fits what an H200's sampled dispatch stalls show
MOSTLY = 0.75  # of the instructions are FFMA
INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);")
REGISTER = re.compile(r"\bR(\d+)(\.reuse)?")


def stalls(instructions):
    """Cycles lost to the banks in one pass over the instructions."""
    queues, kept, total = [0, 0], {}, 0
    for text in instructions:
        _, _, operands = text.partition(" ")
        sources = operands.split(",")[0 if text.startswith("ST") else 1 :]
        reads, keeps = [0, 0], {}
        for slot, source in enumerate(sources):
            for number, reuse in REGISTER.findall(source):
                if reuse:
                    keeps[slot] = number
                if kept.get(slot) != number:
                    reads[int(number) % 2] += 1
        kept = keeps
        queues = [max(0, queue + read - 1) for queue, read in zip(queues, reads, strict=True)]
        while max(queues) > QUEUE:
            total += 1
            queues = [max(0, queue - 1) for queue in queues]
    return total


def loops(lines):
    """(name, None) for each function, (None, instructions) for each backward jump over mostly FFMA."""
    code = []
    for line in lines:
        if "Function :" in line:
            code = []
            yield line.strip(), None
        if not (match := INSTRUCTION.match(line)):
            continue
        code.append((int(match[1], 16), re.sub(r"^@!?U?P\w+ ", "", match[2].strip())))
        if not (jump := re.match(r"BRA.* 0x([0-9a-f]+)", code[-1][1])):
            continue
        body = [text for address, text in code if address >= int(jump[1], 16)]
        if sum(text.startswith("FFMA") for text in body) > MOSTLY * len(body):
            yield None, body


def main():
    found = False
    for name, body in loops(sys.stdin):
        if name:
            print(name)
            continue
        ffma = sum(text.startswith("FFMA") for text in body)
        lost = stalls(body)
        found = True
        print(
            f"  {len(body)} instructions, {ffma} FFMA, {sum(text.startswith('LDS') for text in body)} LDS, "
            f"{lost} stalls: {(len(body) + lost) / ffma:.3f} cycles per FFMA"
        )
    if not found:
        sys.exit("no loop of FFMA: expected the output of cuobjdump -sass")


if __name__ == "__main__":
    main()
