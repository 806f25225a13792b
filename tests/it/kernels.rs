//! The committed fatbins: fresh, complete, without surprises.

use std::fs;
use std::path::{Path, PathBuf};

use snug::backend::cuda::images::IMAGES;

use crate::util::skip;

#[path = "../../kernels/compile.rs"]
#[allow(dead_code)]
mod compile;

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

fn manifest(family: &str) -> String {
    fs::read_to_string(kernels().join(format!("prebuilt/{family}.toml"))).unwrap_or_default()
}

/// Recompiles every family and compares bytes; `UPDATE=1` rewrites the pairs.
#[test]
fn prebuilt_kernels_are_fresh() {
    let dir = kernels();
    let update = std::env::var_os("UPDATE").is_some();
    let Some(nvcc) = compile::find_nvcc(Path::new(env!("CARGO_MANIFEST_DIR"))) else {
        return skip(&format!("no nvcc {}; .ci/nvcc fetches it", compile::TOOLKIT));
    };
    let scratch = tempfile::tempdir().unwrap();
    for family in compile::families(&dir).unwrap() {
        let hash = compile::source_hash(&dir, &family).unwrap();
        if update && compile::field(&manifest(&family), "source") == Some(hash.as_str()) {
            continue;
        }
        let out = scratch.path().join("fatbin");
        let fresh = compile::compile(&nvcc, &dir, &family, &out).unwrap();
        let bytes = fs::read(&out).unwrap();
        let pair = dir.join("prebuilt");
        if update {
            fs::create_dir_all(&pair).unwrap();
            fs::write(pair.join(format!("{family}.fatbin")), &bytes).unwrap();
            fs::write(pair.join(format!("{family}.toml")), &fresh).unwrap();
            continue;
        }
        let committed = fs::read(pair.join(format!("{family}.fatbin"))).unwrap_or_default();
        assert!(
            bytes == committed && fresh == manifest(&family),
            "{family} is stale; run `UPDATE=1 cargo test prebuilt`"
        );
    }
}

/// The gate itself: a source that differs from its committed hash is noticed, whatever file of the closure changed.
#[test]
fn the_source_hash_sees_every_included_file() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fs::create_dir_all(dir.join("common")).unwrap();
    fs::write(dir.join("a.cu"), "// a\n// images: sm_80\n#include \"common/b.cuh\"\n").unwrap();
    fs::write(dir.join("common/b.cuh"), "#include \"c.cuh\"\n").unwrap();
    fs::write(dir.join("common/c.cuh"), "int c;\n").unwrap();
    assert_eq!(compile::closure(dir, "a").unwrap().len(), 3);
    let before = compile::source_hash(dir, "a").unwrap();
    fs::write(dir.join("common/c.cuh"), "int c;\r\n").unwrap();
    assert_eq!(compile::source_hash(dir, "a").unwrap(), before, "line ends are not a change");
    fs::write(dir.join("common/c.cuh"), "int d;\n").unwrap();
    assert_ne!(compile::source_hash(dir, "a").unwrap(), before);
}

/// Every family is embedded with the kernels its manifest names, for every image it asks for, without spills.
#[test]
fn images_are_complete_and_do_not_spill() {
    let families = compile::families(&kernels()).unwrap();
    assert_eq!(families, IMAGES.iter().map(|i| i.family).collect::<Vec<_>>());
    for image in IMAGES {
        let text = manifest(image.family);
        let source = fs::read_to_string(kernels().join(format!("{}.cu", image.family))).unwrap();
        assert!(!image.kernels.is_empty(), "{}: no kernels", image.family);
        for kernel in image.kernels {
            assert!(kernel.starts_with("snug_"), "{kernel}");
            for target in compile::images(&source).unwrap().iter().filter(|i| i.starts_with("sm_"))
            {
                let row = format!("name = \"{kernel}\"\nimage = \"{target}\"");
                assert!(text.contains(&row), "{}: {kernel} is missing for {target}", image.family);
            }
        }
        assert!(
            text.lines().filter(|l| l.starts_with("spill_bytes")).all(|l| l == "spill_bytes = 0"),
            "{}: a kernel spills registers",
            image.family
        );
    }
}

/// The two languages agree on every argument: a C++ compiler prints sizes and offsets of `abi.cuh`.
#[test]
fn abi_structs_have_the_same_layout_in_both_languages() {
    use snug::backend::cuda::abi;
    let scratch = tempfile::tempdir().unwrap();
    let mut program = String::from(
        "#include <cstdio>\n#include <cstddef>\nstruct uint4;\n#include \"common/abi.cuh\"\n#include \"common/abi_pack.cuh\"\nint main() {\n",
    );
    let mut want = String::new();
    for (name, size, fields) in abi::layouts() {
        program += &format!("printf(\"{name} %zu\\n\", sizeof({name}));\n");
        want += &format!("{name} {size}\n");
        for (field, offset) in fields {
            program += &format!("printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));\n");
            want += &format!("{name}.{field} {offset}\n");
        }
    }
    program += "}\n";
    let source = scratch.path().join("abi.cpp");
    let binary = scratch.path().join("abi");
    fs::write(&source, program).unwrap();
    let compiler = std::process::Command::new("c++")
        .arg("-std=c++17")
        .arg("-I")
        .arg(kernels())
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output();
    let Ok(output) = compiler else {
        return skip("no C++ compiler");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let got = std::process::Command::new(&binary).output().unwrap().stdout;
    let got = String::from_utf8(got).unwrap();
    for (got, want) in got.lines().zip(want.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(got.lines().count(), want.lines().count(), "lines in all");
}
