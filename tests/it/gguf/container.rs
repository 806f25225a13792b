//! The container: what is accepted, and every way to break it.

use snug::import::gguf::parse::{Gguf, parse};
use snug::import::gguf::value::Value;

use super::writer::{ARRAY, BOOL, F32, I32, STR, U8, U32, Writer, array, string};
use super::{Case, refused};

fn read(bytes: &[u8]) -> snug::error::Result<Gguf<'_>> {
    parse(bytes, bytes.len() as u64).map(|g| g.expect("the whole file was given"))
}

/// One pair of every type and two tensors.
pub fn sample() -> Writer {
    let mut w = Writer::new();
    for (kind, size) in [(0u32, 1usize), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (10, 8), (11, 8)] {
        // 0x…81: negative for the signed types.
        let mut value = vec![0x80; size];
        value[0] = 0x81;
        w.raw(&format!("int.{kind}"), kind, value);
    }
    w.f32("float.32", -1.5);
    w.raw("float.64", 12, 0.1f64.to_le_bytes().to_vec());
    w.bool("yes", true);
    w.str("text", "größe");
    w.raw("latin1", STR, string(b"gr\xf6\xdfe"));
    w.strs("words", &["a", "", "bc"]);
    w.i32s("numbers", &[-1, 2]);
    let inner = [array(U8, 2, &[1, 2]), array(U8, 0, &[])].concat();
    w.raw("nested", ARRAY, array(ARRAY, 2, &inner));
    w.raw("bools", ARRAY, array(BOOL, 3, &[0, 1, 0]));
    w.floats("a", &[3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    w.tensor("b", &[2, 32], 2, vec![7; 36]);
    w
}

#[test]
fn every_kind_of_value_is_read() {
    for version in [2, 3] {
        let bytes = Writer { version, ..sample() }.bytes();
        let gguf = read(&bytes).unwrap();
        assert_eq!(gguf.version, version);
        let m = &gguf.metadata;
        for (key, want) in [
            ("int.0", Value::Unsigned(0x81)),
            ("int.1", Value::Signed(-0x7f)),
            ("int.2", Value::Unsigned(0x8081)),
            ("int.3", Value::Signed(-0x7f7f)),
            ("int.4", Value::Unsigned(0x8080_8081)),
            ("int.5", Value::Signed(-0x7f7f_7f7f)),
            ("int.10", Value::Unsigned(0x8080_8080_8080_8081)),
            ("int.11", Value::Signed(-0x7f7f_7f7f_7f7f_7f7f)),
            ("float.32", Value::Float(-1.5)),
            ("float.64", Value::Float(0.1)),
            ("yes", Value::Bool(true)),
            ("text", Value::Str("größe".as_bytes())),
        ] {
            assert_eq!(m.get(key), Some(want), "{key}");
        }
        assert_eq!(m.pairs().len(), 17);
        assert_eq!(m.get("absent"), None);
        assert_eq!(m.strs("words").unwrap().unwrap(), ["a", "", "bc"]);
        assert_eq!(
            m.elements("numbers", "a number", |v| v.as_f64()).unwrap().unwrap(),
            [-1.0, 2.0]
        );
        let nested: Vec<_> = m.array("nested").unwrap().unwrap().iter().collect();
        let lengths = nested.iter().map(|v| match v {
            Value::Array(a) => a.iter().map(|v| v.as_u64().unwrap()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [vec![1, 2], vec![]]);

        // A key of another type is an error, never a missing key.
        refused("text as number", m.u64("text"), "not an integer");
        refused("negative", m.u64("int.5"), "not an integer");
        refused("latin1", m.str("latin1"), "not a UTF-8 string");
        refused("mixed", m.elements("words", "a number", |v| v.as_f64()), "element 0");

        let (a, b) = (&gguf.tensors[0], &gguf.tensors[1]);
        assert_eq!((a.name, a.dims.as_slice(), a.ty.name()), ("a", &[3, 2][..], "F32"));
        assert_eq!((b.name, b.dims.as_slice(), b.ty.name()), ("b", &[2, 32][..], "Q4_0"));
        assert_eq!(bytes[b.bytes.start as usize..b.bytes.end as usize], [7; 36]);
        assert_eq!(a.bytes.end - a.bytes.start, 24);
        assert_eq!((a.bytes.start % 32, b.bytes.start - a.bytes.start), (0, 32));
    }
}

#[test]
fn files_cut_short_anywhere_are_refused() {
    let w = sample();
    let (bytes, header) = (w.bytes(), w.header().len());
    let end = read(&bytes).unwrap().tensors[1].bytes.end as usize;
    for cut in 0..bytes.len() {
        let result = read(&bytes[..cut]);
        match cut < end {
            // Not even the magic number is there.
            true if cut < 4 => refused(&format!("{cut} bytes"), result, "the magic number"),
            true => refused(&format!("{cut} bytes"), result, "byte"),
            // Only the padding after the last tensor is missing.
            false => assert!(result.is_ok(), "{cut} bytes"),
        }
        // The beginning of a longer file is no error: it asks for more, exactly until the header is complete.
        let partial = parse(&bytes[..cut], bytes.len() as u64).unwrap();
        assert_eq!(partial.is_some(), cut >= header, "{cut} of {header} bytes of header");
    }
}

#[test]
fn broken_containers_are_refused_by_name() {
    let cases: &[Case] = &[
        ("magic", |w| w.magic = *b"PK\x03\x04", "begins with PK␃␄"),
        ("older format", |w| w.magic = *b"tjgg", "before GGUF"),
        ("version 1", |w| w.version = 1, "version 1"),
        ("version 4", |w| w.version = 4, "version 4"),
        ("version 0", |w| w.version = 0, "version 0"),
        ("big-endian", |w| w.version = 3 << 24, "big-endian (version 3)"),
        ("pairs", |w| w.counts.1 = Some(u64::MAX), "left in the file"),
        ("one pair more", |w| w.counts.1 = Some(18), ""),
        ("tensors", |w| w.counts.0 = Some(u64::MAX), "tensor 2 of 18446744073709551615"),
        ("one tensor more", |w| w.counts.0 = Some(3), ""),
        ("value type", |w| w.raw("x", 13, vec![]), "unknown value type 13"),
        ("element type", |w| w.raw("x", ARRAY, array(99, 0, &[])), "unknown value type 99"),
        ("bool", |w| w.raw("x", BOOL, vec![2]), "bool of value 2"),
        ("bool in array", |w| w.raw("x", ARRAY, array(BOOL, 2, &[1, 9])), "bool of value 9"),
        ("string", |w| w.raw("x", STR, u64::MAX.to_le_bytes().to_vec()), "metadata x at byte"),
        ("array", |w| w.raw("x", ARRAY, array(U32, u64::MAX, &[])), "metadata x at byte"),
        ("array × size", |w| w.raw("x", ARRAY, array(F32, 1 << 62, &[])), "metadata x at byte"),
        ("strings", |w| w.raw("x", ARRAY, array(STR, 1 << 40, &[])), "metadata x at byte"),
        ("empty arrays", |w| w.raw("x", ARRAY, array(ARRAY, u64::MAX, &array(U8, 0, &[]))), ""),
        ("depth", |w| w.raw("x", ARRAY, nested(5)), "nests arrays more than 4 deep"),
        ("bottomless", |w| w.raw("x", ARRAY, nested(100_000)), "nests arrays more than 4 deep"),
        ("key twice", |w| w.pairs.push(w.pairs[0].clone()), "metadata int.0 appears twice"),
        ("empty key", |w| w.pairs[3].0 = vec![], "metadata key 3 of 17 has 0 bytes"),
        ("long key", |w| w.pairs[3].0 = vec![b'k'; 65_536], "has 65536 bytes"),
        ("key not UTF-8", |w| w.pairs[3].0 = b"\xff\x1b[2J".to_vec(), "not UTF-8: \u{fffd}␛[2J"),
        ("tensor twice", |w| w.tensors[1].name = "a".into(), "tensor a appears twice"),
        ("unnamed tensor", |w| w.tensors[1].name.clear(), "name of tensor 1 of 2 has 0 bytes"),
        ("no dimension", |w| w.tensors[0].dims.clear(), "0 dimensions"),
        ("five dimensions", |w| w.tensors[0].dims = vec![1; 5], "5 dimensions"),
        ("empty tensor", |w| w.tensors[0].dims = vec![0, 2], "is empty"),
        ("part of a block", |w| w.tensors[1].dims = vec![2, 33], "Q4_0's 32 elements"),
        ("huge", |w| w.tensors[0].dims = vec![1 << 32, 1 << 32], "64 bits"),
        ("huge bytes", |w| w.tensors[0].dims = vec![1 << 63], "64 bits"),
        ("large", |w| w.tensors[0].dims = vec![1 << 40], "beyond the end of the file"),
        ("refused type", |w| w.tensors[0].ty = 23, "tensor a is of type IQ4_XS"),
        ("retired type", |w| w.tensors[0].ty = 4, "type Q4_2"),
        ("unknown type", |w| w.tensors[0].ty = 1000, "unknown type 1000"),
        ("offset", |w| w.tensors[1].offset = Some(1 << 40), "beyond the end of the file"),
        ("offset wraps", |w| w.tensors[1].offset = Some(u64::MAX - 31), "beyond the end"),
        ("unaligned", |w| w.tensors[1].offset = Some(33), "no multiple of the alignment, 32"),
        ("overlap", |w| w.tensors[1].offset = Some(0), "tensors a and b overlap"),
        ("alignment 0", |w| w.u32("general.alignment", 0), "general.alignment is 0"),
        ("alignment 24", |w| w.u32("general.alignment", 24), "general.alignment is 24"),
        ("alignment 2³¹", |w| w.u32("general.alignment", 1 << 31), "general.alignment is"),
        ("alignment type", |w| w.f32("general.alignment", 32.0), "is a float"),
        ("alignment sign", |w| w.raw("general.alignment", I32, vec![0xff; 4]), "signed integer"),
    ];
    for (what, change, reason) in cases {
        let mut w = sample();
        change(&mut w);
        refused(what, read(&w.bytes()), reason);
    }
}

/// The value of an array in an array in an array …
fn nested(depth: usize) -> Vec<u8> {
    let mut value = ARRAY.to_le_bytes().to_vec();
    for _ in 1..depth {
        value.extend(1u64.to_le_bytes());
        value.extend(ARRAY.to_le_bytes());
    }
    value.extend(0u64.to_le_bytes());
    value
}

#[test]
fn alignment_moves_the_data() {
    for alignment in [1, 8, 64, 4096] {
        let mut w = sample();
        w.alignment = alignment;
        w.u32("general.alignment", alignment as u32);
        let bytes = w.bytes();
        let gguf = read(&bytes).unwrap();
        assert_eq!(gguf.tensors.len(), w.tensors.len());
        for (t, want) in gguf.tensors.iter().zip(&w.tensors) {
            assert_eq!(t.bytes.start % alignment, 0);
            let got = &bytes[t.bytes.start as usize..t.bytes.end as usize];
            assert_eq!(got, want.data, "alignment {alignment}, tensor {}", t.name);
        }
    }
}
