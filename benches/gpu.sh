#!/bin/sh
# Every GPU check and figure on a machine without cargo: gpu.sh IT_BINARY BENCH_BINARY [MODEL]
# Both binaries come from `cargo test --test it --bench gpu --no-run` on another machine. SANITIZE=1 adds compute-sanitizer.
set -u
it=$1 bench=$2 model=${3:-llama-3.1-8b} here=$(dirname "$0") failed=0
export SNUG_REQUIRE_GPU=1 RUST_BACKTRACE=0
for test in device_functions products_are whole_models replayed sampling_is gpu::packing loading_stops what_is_timed the_ledger; do
  if out=$("$it" "$test" --test-threads=1 --nocapture 2>&1); then
    echo "ok      $test"
  else
    echo "FAILED  $test"; echo "$out" | grep -A3 panicked; failed=1
  fi
done
if [ -n "${SANITIZE:-}" ]; then
  for tool in memcheck racecheck synccheck; do
    for test in device_functions replayed sampling_is gpu::packing; do
      if out=$(compute-sanitizer --tool "$tool" --error-exitcode 9 "$it" "$test" --test-threads=1 2>&1); then
        echo "ok      $tool $test"
      else
        echo "FAILED  $tool $test"; echo "$out" | grep -m 20 =========; failed=1
      fi
    done
  done
fi
[ "$failed" = 0 ] || exit 1
# cuBLAS for the column beside ours: from a toolkit that the loader knows, or from torch's own packages.
blas=$(python3 -c 'import glob, sysconfig
print(*glob.glob(sysconfig.get_path("purelib") + "/nvidia/**/libcublas.so.1[23]", recursive=True)[:1])' 2>/dev/null)
[ -z "$blas" ] || export LD_LIBRARY_PATH="$(dirname "$blas")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
python3 "$here/peer.py" 2>/dev/null || echo "(no torch: cuBLAS not timed)"
"$bench" "$model"
