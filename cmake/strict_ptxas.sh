#!/bin/sh
# Launcher of a compiler (CUDA_COMPILER_LAUNCHER): fails, and leaves no object, where ptxas says that it gave up what a wgmma
# kernel lives by. These are lines of information, which ptxas does not turn into errors: "Potential Performance Loss"
# (instructions serialized, setmaxnreg ignored) and C7510 to C7520 (the same, and waits or fences put in).
messages=$(mktemp) || exit 1
trap 'rm -f "$messages"' EXIT
"$@" 2> "$messages"
status=$?
cat "$messages" >&2
if grep -qE 'Potential Performance Loss|\(C75(1[0-9]|20)\)' "$messages"; then
  echo "error: ptxas serialized or padded wgmma (messages above), which this build treats as an error" >&2
  [ $status -ne 0 ] || status=1
  while [ $# -gt 1 ]; do
    if [ "$1" = -o ]; then rm -f "$2"; fi
    shift
  done
fi
exit $status
