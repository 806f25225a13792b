//! Drivers that are not there: a library in the place of libcuda that knows two cards, is too old, or lacks a function. How
//! the program behaves on machines that the tests do not run on.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use serde_json::json;
use snug::backend::cuda::driver::SYMBOLS;

use super::{Place, Ran};
use crate::util::skip;

/// Two cards: one that the kernels are built for, and one that is too old for them.
const CARDS: &str = r#"
#include <string.h>
#define CHECK(d) if ((d) < 0 || (d) > 1) return 101
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { CHECK(i); *d = i; return 0; }
int cuDeviceGetName(char *to, int len, int d) {
    CHECK(d);
    strncpy(to, d ? "Old Card" : "New \x1b[31mCard", len);
    return 0;
}
int cuDeviceGetUuid_v2(char *to, int d) { CHECK(d); memset(to, d ? 0xb1 : 0xa0, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *to, int d) { CHECK(d); *to = (size_t)(8 - 4 * d) << 30; return 0; }
int cuDeviceGetAttribute(int *to, int a, int d) {
    CHECK(d);
    *to = a == 75 ? 9 - 2 * d : a == 76 ? 5 * d : a == 97 ? 227 << 10 : 100;
    return 0;
}
static long current;
int cuDevicePrimaryCtxRetain(void **to, int d) { CHECK(d); *to = (void *)(long)(d + 1); return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
int cuCtxSetCurrent(void *context) { current = (long)context; return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *all) {
    *left = current * 1000000;
    *all = (size_t)8 << 30;
    return 0;
}
int cuGetErrorString(int e, const char **to) { *to = "what the driver says"; return 0; }
int cuGetErrorName(int e, const char **to) { *to = "NAME"; return 0; }
"#;

/// Builds the library into a directory of its own; `without` is left out. None where there is no C compiler.
fn library(place: &Place, version: u32, without: Option<&str>) -> Option<String> {
    let dir = place.path(&format!("driver-{version}-{}", without.unwrap_or("whole")));
    fs::create_dir_all(&dir).unwrap();
    let mut code = CARDS.replace("VERSION", &version.to_string());
    for name in SYMBOLS.iter().filter(|name| !CARDS.contains(*name)) {
        let _ = writeln!(code, "int {name}(void) {{ return 999; }}");
    }
    if let Some(name) = without {
        code = code.replace(&format!("int {name}("), "int left_out(");
    }
    let source = dir.join("driver.c");
    fs::write(&source, code).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(dir.join("libcuda.so"))
        .arg(&source)
        .output();
    let Ok(output) = built else {
        skip("no C compiler");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(dir.to_str().unwrap().to_owned())
}

fn run(place: &Place, driver: &str, args: &[&str]) -> Ran {
    Ran::from(place.snug(args).env("LD_LIBRARY_PATH", driver).output().unwrap())
}

#[test]
#[cfg(target_os = "linux")]
fn cards_are_listed_chosen_and_refused() {
    let place = Place::new();
    let Some(driver) = library(&place, 13_000, None) else { return };
    let run = |args: &[&str]| run(&place, &driver, args);
    let records = run(&["devices", "--json"]).ok().records();
    assert_eq!(records.len(), 3);
    for (at, uuid, capability, kernels, memory, free) in [
        (0, "a0", "9.0", json!("sm_90a"), 8u64 << 30, 1_000_000),
        (1, "b1", "7.5", json!(null), 4 << 30, 2_000_000),
    ] {
        let r = &records[at];
        let full = [4, 2, 2, 2, 6].map(|n| uuid.repeat(n)).join("-");
        assert_eq!(r["uuid"], format!("GPU-{full}"));
        assert_eq!(
            (&r["id"], &r["compute_capability"]),
            (&json!(format!("cuda:{at}")), &json!(capability))
        );
        assert_eq!(
            (&r["kernels"], &r["memory"], &r["free"]),
            (&kernels, &json!(memory), &json!(free))
        );
        assert_eq!(r["cuda"], "13.0");
    }
    let table = run(&["devices"]).ok();
    assert!(
        table.out().contains("New ␛[31mCard") && table.out().contains("7.5: no kernels"),
        "{table:?}"
    );
    for device in ["cuda:1", "cuda:GPU-b1b1b1b1", "GPU-B1"] {
        let one = run(&["devices", "--json", "-d", device]).ok();
        assert_eq!(one.record("device")["name"], "Old Card", "{device}");
    }
    for device in ["cuda:2", "cuda:GPU-c0", "gpu-"] {
        run(&["devices", "-d", device]).fails(8);
    }
    // A card without kernels is refused where it is asked for, and passed over where it is not.
    run(&["run", "-d", "cuda:1", "demo", "hi"]).fails(8).says("its compute capability is 7.5");
}

#[test]
#[cfg(target_os = "linux")]
fn drivers_that_are_too_old_are_told_apart() {
    let place = Place::new();
    for (version, without, said) in [
        (12_040, None, "the driver supports CUDA 12.4; these kernels need 13.0"),
        (13_000, Some("cuGraphLaunch"), "the CUDA driver is too old: it has no cuGraphLaunch"),
        (13_000, Some("cuInit"), "the CUDA driver is too old: it has no cuInit"),
    ] {
        let Some(driver) = library(&place, version, without) else { return };
        let run = |args: &[&str]| run(&place, &driver, args);
        for args in [&["devices", "-d", "cuda"][..], &["run", "-d", "cuda:0", "demo", "hi"]] {
            run(args).fails(8).says(said).says("update the NVIDIA driver");
        }
        assert_eq!(run(&["devices", "--json"]).ok().record("no_gpu")["message"], said);
        // What was not asked for is not used in silence: the CPU answers, and why is said.
        let ran =
            run(&["run", "demo", "-n", "1", "hi"]).ok().says("the GPU is not used").says(said);
        assert_eq!(ran.stderr.matches(said).count(), 1, "{ran:?}");
        let quiet = run(&["run", "-q", "demo", "-n", "1", "hi"]).ok();
        assert_eq!(quiet.stderr, "");
        run(&["run", "-d", "cpu", "-q", "demo", "-n", "1", "hi"]).ok();
    }
}
