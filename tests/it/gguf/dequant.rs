//! Dequantisation against the reference's values, bit for bit.

use std::collections::BTreeMap;

use snug::import::gguf::dequant::{to_bf16, to_f32};
use snug::import::gguf::types::GgmlType;
use snug::num::f32_to_bf16;
use snug::num::rng::Stream;

fn type_named(name: &str) -> GgmlType {
    GgmlType::all().find(|t| t.name() == name).unwrap()
}

/// Type, blocks, values.
fn blocks() -> Vec<(GgmlType, Vec<u8>, Vec<u32>)> {
    let text = super::golden("dequant.txt");
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    lines
        .chunks_exact(2)
        .map(|pair| {
            let (name, raw) = pair[0].split_once(' ').unwrap();
            let byte = |i: usize| u8::from_str_radix(&raw[i..i + 2], 16).unwrap();
            let bytes = (0..raw.len()).step_by(2).map(byte).collect();
            let values = pair[1].split(' ').map(|v| u32::from_str_radix(v, 16).unwrap()).collect();
            (type_named(name), bytes, values)
        })
        .collect()
}

#[test]
fn values_equal_the_reference() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (ty, bytes, want) in blocks() {
        let mut values = vec![7.0; want.len()];
        let mut words = vec![7; want.len()];
        to_f32(ty, &bytes, &mut values);
        to_bf16(ty, &bytes, &mut words);
        for (i, want) in want.into_iter().map(f32::from_bits).enumerate() {
            let (got, word) = (values[i], words[i]);
            // How NaN's payload travels is up to the hardware.
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{}, element {i}: {got:e}, not {want:e}", ty.name());
            if ty == GgmlType::BF16 {
                assert_eq!(word, (want.to_bits() >> 16) as u16, "bf16 is copied");
            } else {
                assert_eq!(word, f32_to_bf16(got), "{}, element {i}", ty.name());
            }
        }
        *seen.entry(ty.name()).or_default() += 1;
    }
    for ty in GgmlType::all() {
        assert_eq!(seen.get(ty.name()), Some(&5), "blocks of {}", ty.name());
    }
}

#[test]
fn a_run_of_blocks_is_its_blocks() {
    let mut stream = Stream::new(5);
    for ty in GgmlType::all() {
        let (len, size) = (ty.block_len(), ty.block_bytes());
        let bytes: Vec<u8> = (0..7 * size).map(|_| stream.next_u64() as u8).collect();
        let mut run = vec![1; 7 * len];
        to_bf16(ty, &bytes, &mut run);
        for i in 0..7 {
            let mut one = vec![2; len];
            to_bf16(ty, &bytes[i * size..][..size], &mut one);
            assert_eq!(run[i * len..][..len], one, "{}, block {i}", ty.name());
        }
    }
}

#[test]
fn type_ids_name_themselves() {
    for ty in GgmlType::all() {
        assert_eq!(GgmlType::from_id(ty.id()), Ok(ty));
    }
    let known = (0..64).filter(|id| GgmlType::from_id(*id).is_ok()).count();
    assert_eq!(known, GgmlType::all().count());
}
