//! `pack`: same bytes every time, honest report, and nothing left behind when it fails.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use snug::codec::Format;
use snug::error::{Kind, Result};
use snug::import::{ModelSource, SourceTensor};
use snug::store::pack::{PackOptions, class_name};
use snug::store::{Store, Texts, pack};

use super::fixture::{Memory, Raw, le, listing, model_dir, packed, raw, tiny_tensors, weights};

fn go(
    source: &dyn ModelSource,
    out: &Path,
    overwrite: bool,
) -> Result<snug::store::pack::PackReport> {
    pack(source, Format::Pairlut, out, PackOptions { overwrite }, &|_, _| (), &|| false)
}

#[test]
fn the_same_input_gives_the_same_bytes_on_any_number_of_threads() {
    let at = tempfile::tempdir().unwrap();
    let dir = model_dir(at.path(), &tiny_tensors());
    let source = snug::import::open(&dir).unwrap();
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| packed(source.as_ref(), Format::Pairlut))
    };
    let one = on(1);
    assert_eq!(Sha256::digest(&one), Sha256::digest(on(2)));
    assert_eq!(Sha256::digest(&one), Sha256::digest(on(7)));
    // Another directory of the same name and content is the same input.
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = snug::import::open(&model_dir(elsewhere.path(), &tiny_tensors())).unwrap();
    assert_eq!(Sha256::digest(&one), Sha256::digest(packed(copy.as_ref(), Format::Pairlut)));
}

#[test]
fn the_store_gives_back_the_source() {
    let at = tempfile::tempdir().unwrap();
    let tensors = tiny_tensors();
    let dir = model_dir(at.path(), &tensors);
    let source = snug::import::open(&dir).unwrap();
    let out = at.path().join("tiny.snug");
    let all: u64 = tensors.iter().map(|t| t.bytes.len() as u64).sum();
    let seen = AtomicU64::new(0);
    let progress = |done: u64, of: u64| {
        assert!(done <= of && of == all);
        seen.fetch_max(done, Ordering::Relaxed);
    };
    let report =
        pack(source.as_ref(), Format::Pairlut, &out, PackOptions::default(), &progress, &|| false);
    let report = report.unwrap();
    assert_eq!(seen.into_inner(), all);

    let store = Store::open(&out).unwrap();
    assert_eq!(store.texts(), source.texts());
    assert_eq!((store.source().kind.as_str(), store.source().name.as_str()), ("hf", "tiny-model"));
    assert!(store.source().exact && report.exact);
    assert_eq!(store.file_bytes(), fs::metadata(&out).unwrap().len());
    assert_eq!(store.file_bytes(), report.file_bytes);
    let names: Vec<&str> = store.entries().iter().map(|e| e.name.as_str()).collect();
    assert!(names.is_sorted() && names.len() == tensors.len(), "{names:?}");
    let mut stored = 0;
    for t in &tensors {
        let entry = store.entry(&t.name).unwrap();
        let parts = store.parts(entry);
        assert_eq!(entry.dims.iter().map(|d| u64::from(*d)).collect::<Vec<_>>(), t.shape);
        assert_eq!(entry.bytes, parts.0.iter().map(|p| p.len() as u64).sum::<u64>());
        assert_eq!(entry.sha256, Some(Sha256::digest(&t.bytes).into()));
        // Vectors stay as they are; these matrices shrink but for the ragged one, whose padding costs too much.
        let wide = t.shape.len() == 2 && t.shape[1] % 64 == 0;
        assert_eq!(entry.format, if wide { Format::Pairlut } else { Format::Bf16 }, "{}", t.name);
        let mut words = vec![0; entry.shape.len() as usize];
        let codec = entry.format.codec();
        codec.decode_rows(entry.shape, &parts, 0..entry.shape.rows, &mut words);
        assert!(le(&words) == t.bytes, "{}", t.name);
        stored += entry.bytes;
    }
    assert_eq!(report.total.bytes, stored);
    assert_eq!(report.total.weights, store.entries().iter().map(|e| e.shape.len()).sum::<u64>());
    let class =
        report.classes.iter().find(|c| c.name == "model.layers.*.mlp.up_proj.weight").unwrap();
    assert_eq!((class.tensors, class.encoded, class.weights), (1, 1, 200 * 64));
    assert!(class.bits_per_weight() < 13.0 && class.ratio() < 0.8, "{class:?}");
    assert!(store.entry("model.layers.0.mlp.up_proj").is_none());
}

#[test]
fn an_open_directory_is_the_same_model() {
    let at = tempfile::tempdir().unwrap();
    let dir = model_dir(at.path(), &tiny_tensors());
    let source = snug::import::open(&dir).unwrap();
    let out = at.path().join("tiny.snug");
    go(source.as_ref(), &out, false).unwrap();
    for path in [&dir, &out] {
        let store = Store::open(path).unwrap();
        let checked = store.compare_with(source.as_ref(), &|_, _| (), &|| false).unwrap();
        assert_eq!((checked.same, checked.differences.len()), (5, 0), "{}", path.display());
        let hashes = store.verify_hashes(&|_, _| (), &|| false).unwrap();
        let hashed = path == &out;
        assert_eq!((hashes.same, hashes.unhashed), if hashed { (5, 0) } else { (0, 5) });
        assert!(hashes.into_result("x").is_ok());
    }
}

#[test]
fn verify_names_what_differs_and_where() {
    let at = tempfile::tempdir().unwrap();
    let source = Memory::tiny();
    let out = at.path().join("x.snug");
    go(&source, &out, false).unwrap();
    let good = fs::read(&out).unwrap();

    // The low byte of the first weight of `a.weight`: every rule still holds, the value is another.
    let store = Store::open(&out).unwrap();
    let records = store.parts(store.entry("a.weight").unwrap()).0[0].to_vec();
    drop(store);
    let place = good.windows(64).position(|w| w == &records[..64]).unwrap();
    let mut bytes = good;
    bytes[place + 16] ^= 0x01;
    fs::write(&out, bytes).unwrap();

    let store = Store::open(&out).unwrap();
    let checked = store.verify_hashes(&|_, _| (), &|| false).unwrap();
    assert_eq!((checked.same, checked.differences.len()), (2, 1));
    assert_eq!(checked.differences[0].name, "a.weight");
    let error = checked.into_result("x.snug").unwrap_err();
    assert_eq!(error.kind, Kind::Mismatch);
    assert!(error.why.starts_with("weight a.weight: it decodes to the hash "), "{error}");

    let checked = store.compare_with(&source, &|_, _| (), &|| false).unwrap();
    let (got, want) = (source.words[0][0] ^ 1, source.words[0][0]);
    let why = format!("at row 0, column 0: {got:#06x}, the source has {want:#06x}");
    assert_eq!(checked.differences.iter().map(|d| d.why.as_str()).collect::<Vec<_>>(), [why]);

    let mut other = Memory::tiny();
    other.words[0][0] ^= 1;
    other.words[0][79 * 192 + 5] ^= 0x8000;
    other.tensors[1].dims = vec![35];
    other.tensors[2].name = "d.weight".into();
    let checked = store.compare_with(&other, &|_, _| (), &|| false).unwrap();
    let found: Vec<String> =
        checked.differences.iter().map(|d| format!("{}: {}", d.name, d.why)).collect();
    assert!(found[0].starts_with("a.weight: at row 79, column 5: 0x"), "{found:?}");
    assert_eq!(
        found[1..],
        [
            "b.weight: its shape is [5, 7], the source's [35]",
            "c.weight: the source has no such tensor",
            "d.weight: it is in the source only",
        ]
    );
}

#[test]
fn verifying_reports_its_progress_and_can_be_given_up() {
    let file = packed(&Memory::tiny(), Format::Pairlut);
    let store = Store::from_static("x", file.leak()).unwrap();
    let of: u64 = store.entries().iter().map(|e| 2 * e.shape.len()).sum();
    let source = Memory::tiny();
    for against in [None, Some(&source)] {
        let seen = AtomicU64::new(0);
        let progress = |done: u64, all: u64| {
            assert_eq!(all, of);
            seen.fetch_max(done, Ordering::Relaxed);
        };
        let run = |cancel: &(dyn Fn() -> bool + Sync)| match against {
            None => store.verify_hashes(&progress, cancel),
            Some(source) => store.compare_with(source, &progress, cancel),
        };
        assert_eq!(run(&|| true).unwrap_err().kind, Kind::Interrupted);
        assert_eq!(run(&|| false).unwrap().bytes, of);
        assert_eq!(seen.into_inner(), of);
    }
}

#[test]
fn an_existing_file_is_kept_unless_it_may_be_replaced() {
    let at = tempfile::tempdir().unwrap();
    let out = at.path().join("x.snug");
    fs::write(&out, b"precious").unwrap();
    let error = go(&Memory::tiny(), &out, false).unwrap_err();
    assert_eq!((error.kind, error.why.as_str()), (Kind::Failure, "the file exists"));
    assert_eq!(fs::read(&out).unwrap(), b"precious");

    // A failure on the way to a replacement keeps the old file too.
    let error = go(&Failing(Fault::Error), &out, true).unwrap_err();
    assert_eq!(error.why, "the disk is on fire");
    assert_eq!(fs::read(&out).unwrap(), b"precious");
    assert_eq!(listing(at.path()), ["x.snug"]);

    go(&Memory::tiny(), &out, true).unwrap();
    assert!(Store::open(&out).is_ok());
    assert_eq!(listing(at.path()), ["x.snug"]);

    let dir = at.path().join("dir");
    fs::create_dir(&dir).unwrap();
    assert_eq!(go(&Memory::tiny(), &dir, true).unwrap_err().kind, Kind::Failure);
    let nowhere = at.path().join("no/such/x.snug");
    assert_eq!(go(&Memory::tiny(), &nowhere, false).unwrap_err().kind, Kind::Failure);
}

#[cfg(unix)]
#[test]
fn a_new_file_is_as_readable_as_any_other() {
    use std::os::unix::fs::PermissionsExt;
    let at = tempfile::tempdir().unwrap();
    let (plain, out) = (at.path().join("plain"), at.path().join("x.snug"));
    fs::write(&plain, b"").unwrap();
    go(&Memory::tiny(), &out, false).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&out), mode(&plain));
}

#[derive(Clone, Copy)]
enum Fault {
    Error,
    Panic,
}

/// A source whose second tensor cannot be read.
struct Failing(Fault);

impl ModelSource for Failing {
    fn kind(&self) -> &'static str {
        "hf"
    }

    fn name(&self) -> &str {
        "failing"
    }

    fn texts(&self) -> &Texts {
        static TEXTS: std::sync::LazyLock<Texts> =
            std::sync::LazyLock::new(|| Memory::tiny().texts);
        &TEXTS
    }

    fn tensors(&self) -> &[SourceTensor] {
        static TENSORS: std::sync::LazyLock<Vec<SourceTensor>> =
            std::sync::LazyLock::new(|| Memory::tiny().tensors);
        &TENSORS
    }

    fn read_rows(&self, index: usize, _: Range<u32>, out: &mut [u16]) -> Result<()> {
        match (index, self.0) {
            (1, Fault::Panic) => panic!("a bug in an importer"),
            (1, Fault::Error) => Err(snug::error::Error::new(
                Kind::Failure,
                "cannot read",
                "the disk is on fire",
                "run",
            )),
            _ => {
                out.fill(0x3f80);
                Ok(())
            }
        }
    }
}

#[test]
fn nothing_is_left_behind() {
    let at = tempfile::tempdir().unwrap();
    let out = at.path().join("x.snug");
    assert_eq!(go(&Failing(Fault::Error), &out, false).unwrap_err().why, "the disk is on fire");
    assert!(listing(at.path()).is_empty());

    let panicked = std::panic::catch_unwind(|| go(&Failing(Fault::Panic), &out, false));
    assert!(panicked.is_err());
    assert!(listing(at.path()).is_empty());

    // Stopped at the first, second, … question; the number of questions is finite.
    let mut after = 0;
    loop {
        let left = AtomicU64::new(after);
        let cancel =
            || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_err();
        let result = pack(
            &Memory::tiny(),
            Format::Pairlut,
            &out,
            PackOptions::default(),
            &|_, _| (),
            &cancel,
        );
        match result {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind, Kind::Interrupted, "{error}"),
        }
        assert!(listing(at.path()).is_empty());
        after += 1;
    }
    assert!(after >= 6, "three tensors, each read and hashed, ask at least six times: {after}");
    assert_eq!(listing(at.path()), ["x.snug"]);
}

/// Runs this very test again with a limit on file sizes, which the system reports as a disk would that is full.
#[cfg(unix)]
#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const CHILD: &str = "SNUG_TEST_FULL_DISK";
    let Some(dir) = std::env::var_os(CHILD) else {
        let at = tempfile::tempdir().unwrap();
        let name = "store::packing::a_full_disk_is_named_and_leaves_nothing";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, at.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{stderr}");
        assert!(stderr.contains("refused 6 times"), "{stderr}");
        assert!(listing(at.path()).is_empty());
        return;
    };
    // Without a handler the signal that comes with the limit would end the process.
    let seen = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen).unwrap();
    let dir = Path::new(&dir);
    let size = packed(&Memory::tiny(), Format::Pairlut).len() as u64;
    let hard = getrlimit(Resource::Fsize);
    let mut refused = 0;
    for limit in [size - 1, size / 2, 8192, 4097, 4095, 1] {
        setrlimit(Resource::Fsize, Rlimit { current: Some(limit), ..hard }).unwrap();
        let error = go(&Memory::tiny(), &dir.join("x.snug"), false).unwrap_err();
        assert_eq!(error.kind, Kind::DiskFull, "{limit}: {error}");
        assert!(listing(dir).is_empty());
        refused += 1;
    }
    eprintln!("refused {refused} times");
}

#[test]
fn halves_and_floats_are_rounded_and_the_file_says_so() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let mut floats: Vec<f32> =
        weights(5, 4096).iter().map(|w| f32::from_bits(u32::from(*w) << 16)).collect();
    let edges =
        [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x3f80_7fff, 0x7f7f_ffff, 0x8000_8000, 0x0001_8000];
    floats.extend(edges.map(f32::from_bits));
    let mut stream = snug::num::rng::Stream::new(9);
    floats.extend((0..61_433).map(|_| f32::from_bits(stream.next_u64() as u32)));
    let tensors: [Raw; 3] = [
        raw("f16.weight", "F16", &[256, 256], le(&halves)),
        raw(
            "f32.weight",
            "F32",
            &[256, 256],
            floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ),
        raw("norm.weight", "BF16", &[4], le(&[1, 2, 3, 4])),
    ];
    let at = tempfile::tempdir().unwrap();
    let source = snug::import::open(&model_dir(at.path(), &tensors)).unwrap();
    assert!(!source.exact());
    let out = at.path().join("x.snug");
    let report = go(source.as_ref(), &out, false).unwrap();
    assert!(!report.exact);
    let store = Store::open(&out).unwrap();
    assert!(!store.source().exact);
    let decoded = |name: &str| {
        let entry = store.entry(name).unwrap();
        let mut words = vec![0; entry.shape.len() as usize];
        let codec = entry.format.codec();
        codec.decode_rows(entry.shape, &store.parts(entry), 0..entry.shape.rows, &mut words);
        assert_eq!(entry.sha256, Some(Sha256::digest(le(&words)).into()));
        words
    };
    for (i, word) in decoded("f16.weight").into_iter().enumerate() {
        check_rounding(half(i as u16), word);
    }
    for (x, word) in floats.iter().zip(decoded("f32.weight")) {
        check_rounding(f64::from(*x), word);
    }
    let types: Vec<&str> = store.entries().iter().map(|e| e.source_dtype.as_str()).collect();
    assert_eq!(types, ["F16", "F32", "BF16"]);
    // Converting happens at packing; a directory is used as it is only in bf16.
    let error = Store::open(&at.path().join("tiny-model")).err().unwrap();
    assert_eq!(error.kind, Kind::BadFile);
    assert!(error.why.contains("f16.weight is F16"), "{error}");
    assert!(error.todo.contains("snug pack"), "{error}");
}

/// The value of a half by its definition.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (e, m) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match e {
        31 if m == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        0 => m * 2f64.powi(-24),
        _ => (1024.0 + m) * 2f64.powi(e - 25),
    }
}

/// Nothing representable is nearer, and a tie went to the even one.
fn check_rounding(x: f64, word: u16) {
    let value = |w: u16| f64::from(f32::from_bits(u32::from(w) << 16));
    if x.is_nan() {
        assert!(value(word).is_nan(), "{word:#06x}");
        return;
    }
    assert_eq!(value(word).is_sign_negative(), x.is_sign_negative(), "{x:e} → {word:#06x}");
    // Beyond the largest finite value, infinity stands for the next step of the same grid: 2^128.
    let on_grid = |w: u16| match w & 0x7fff {
        0x7f80 => 2f64.powi(128).copysign(value(w)),
        _ => value(w),
    };
    if x.is_infinite() {
        return assert_eq!(value(word), x);
    }
    let distance = |w: u16| (on_grid(w) - x).abs();
    let magnitude = word & 0x7fff;
    for neighbour in [magnitude.saturating_sub(1), (magnitude + 1).min(0x7f80)] {
        let other = word & 0x8000 | neighbour;
        let (here, there) = (distance(word), distance(other));
        assert!(
            other == word || here < there || (here == there && word & 1 == 0),
            "{x:e} → {word:#06x}, but {other:#06x} is as near or nearer"
        );
    }
}

#[test]
fn classes_are_names_without_numbers() {
    for (name, class) in [
        ("model.layers.17.mlp.up_proj.weight", "model.layers.*.mlp.up_proj.weight"),
        ("model.norm.weight", "model.norm.weight"),
        ("h.0.attn.c_attn1.bias", "h.*.attn.c_attn1.bias"),
        ("a..b", "a..b"),
    ] {
        assert_eq!(class_name(name), class);
    }
}

#[test]
fn the_built_in_model_opens_and_is_what_was_packed() {
    let store = snug::store::demo::open().unwrap();
    assert_eq!(
        snug::store::demo::bytes().as_ptr() as usize % 4096,
        0,
        "aligned like a mapped file"
    );
    assert_eq!((store.source().name.as_str(), store.source().exact), ("demo", true));
    let weights: u64 = store.entries().iter().map(|e| e.shape.len()).sum();
    assert_eq!(weights, 6_951_168);
    let checked = store.verify_hashes(&|_, _| (), &|| false).unwrap();
    assert_eq!((checked.same, checked.differences.len()), (store.entries().len(), 0));
    let (mut bytes, mut matrices) = (0, 0);
    for entry in store.entries().iter().filter(|e| e.dims.len() == 2) {
        assert_eq!(entry.format, Format::Pairlut, "{}", entry.name);
        bytes += entry.bytes;
        matrices += entry.shape.len();
    }
    let bits = 8.0 * bytes as f64 / matrices as f64;
    assert!(bits <= 11.30, "{bits} bits a weight");
    let config: serde_json::Value = serde_json::from_str(&store.texts().config).unwrap();
    assert_eq!(config["hidden_size"], 256);
}
