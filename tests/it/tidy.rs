//! The rules of ARCHITECTURE.md that a machine can hold: layers, unsafe, sizes, names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Which modules of ours a module may name. `self` is implied, `error` is open to all.
const LAYERS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("num", &[]),
    ("codec", &["num"]),
    ("store", &["codec", "num"]),
    ("import", &["store", "codec", "num"]),
    ("text", &[]),
    ("model", &["codec", "num"]),
    ("backend", &["model", "codec", "num"]),
    ("bench", &["backend", "model", "codec", "num"]),
    ("engine", &["text", "store", "backend", "model", "codec", "num"]),
    ("history", &[]),
    ("telemetry", &[]),
    ("ui", &["engine", "history", "text"]),
    (
        "commands",
        &[
            "ui",
            "history",
            "telemetry",
            "engine",
            "text",
            "import",
            "store",
            "bench",
            "backend",
            "model",
            "codec",
            "num",
        ],
    ),
    ("main", &["commands", "engine", "text"]),
    ("lib", &[]),
];

/// The only files with unsafe code.
const UNSAFE: &[&str] = &[
    "src/backend/cpu/simd.rs",
    "src/backend/cuda/abi.rs",
    "src/backend/cuda/driver.rs",
    "src/backend/cuda/driver/cublas.rs",
    "src/backend/cuda/driver/devices.rs",
    "src/codec/simd.rs",
    "src/store/mapped.rs",
];

const MAX_FILE_LINES: usize = 720;
const MAX_FUNCTION_LINES: usize = 100;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `dir` with this extension, with its path from the root and its text.
fn files(dir: &str, extension: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut queue = vec![root().join(dir)];
    while let Some(dir) = queue.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                queue.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// The code of a file before its test module.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// `src/a/b.rs` → `a`.
fn module(path: &str) -> &str {
    let rest = path.trim_start_matches("src/");
    rest.split('/').next().unwrap_or(rest).trim_end_matches(".rs")
}

/// Modules of ours that a file names through `crate::` or `snug::`, with braces after it opened.
fn named_modules(text: &str, own_crate: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|l| !l.trim_start().starts_with("//")) {
        for rest in line.split(own_crate).skip(1) {
            let list = match rest.strip_prefix('{') {
                Some(inner) => inner.split('}').next().unwrap_or(inner),
                None => rest,
            };
            for item in list.split(',') {
                let name: String =
                    item.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                names.insert(name);
                if !rest.starts_with('{') {
                    break;
                }
            }
        }
    }
    names
}

#[test]
fn modules_know_only_those_below_them() {
    let mut wrong = Vec::new();
    let files = files("src", "rs");
    assert!(files.len() > 20, "the walk found {} files", files.len());
    for (path, text) in &files {
        let name = module(path);
        let Some((_, allowed)) = LAYERS.iter().find(|(m, _)| *m == name) else {
            wrong.push(format!("{path}: module `{name}` has no row in LAYERS"));
            continue;
        };
        let prefix = if name == "main" { "snug::" } else { "crate::" };
        for used in named_modules(code(text), prefix) {
            let known = LAYERS.iter().any(|(m, _)| *m == used);
            if known && used != name && used != "error" && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{path}: `{name}` must not know `{used}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_layer_check_sees_what_it_should() {
    let text = "use crate::{codec, store::X};\n// crate::engine\nlet a = crate::model::op::Op;";
    let got: Vec<String> = named_modules(text, "crate::").into_iter().collect();
    assert_eq!(got, ["codec", "model", "store"]);
}

#[test]
fn unsafe_code_lives_in_few_files() {
    for (path, text) in files("src", "rs") {
        let allows = text.contains("allow(unsafe_code)");
        assert!(!allows || UNSAFE.contains(&path.as_str()), "{path} must not allow unsafe code");
        if !path.starts_with("src/backend/cuda/driver") {
            assert!(!code(&text).contains("cudarc::"), "{path} names cudarc; only driver may");
        }
    }
}

#[test]
fn files_and_functions_stay_readable() {
    let mut wrong = Vec::new();
    for (path, text) in files("src", "rs") {
        let body = code(&text);
        let lines = body.lines().count();
        if lines > MAX_FILE_LINES {
            wrong.push(format!("{path}: {lines} lines, at most {MAX_FILE_LINES}"));
        }
        for (name, length) in functions(body) {
            if length > MAX_FUNCTION_LINES {
                wrong.push(format!(
                    "{path}: fn {name} has {length} lines, at most {MAX_FUNCTION_LINES}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names and lengths of functions in rustfmt's layout: `fn` at some indent, `}` alone at the same indent.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let Some(name) = line.split("fn ").nth(1) else { continue };
        let is_item = ["fn", "pub", "unsafe", "const", "extern", "async"]
            .iter()
            .any(|k| line.trim_start().split([' ', '(']).next() == Some(k));
        if !is_item || line.trim_end().ends_with(';') || line.contains("//") {
            continue;
        }
        let close = format!("{}}}", " ".repeat(indent));
        if let Some(end) = lines[at..].iter().position(|l| *l == close) {
            let name = name.split(['(', '<']).next().unwrap_or(name);
            found.push((name.to_owned(), end + 1));
        }
    }
    found
}

#[test]
fn no_leftovers() {
    let own = "tests/it/tidy.rs";
    let all = ["src", "tests", "benches", "kernels"]
        .into_iter()
        .flat_map(|d| ["rs", "cu", "cuh", "py"].into_iter().flat_map(move |e| files(d, e)));
    for (path, text) in all.filter(|(path, _)| path != own) {
        for word in ["todo!(", "unimplemented!(", "dbg!(", "#[ignore", "println!(\"DEBUG"] {
            assert!(!text.contains(word), "{path} has `{word}`");
        }
        for (at, line) in text.lines().enumerate() {
            assert!(!line.contains("TODO") && !line.contains("FIXME"), "{path}:{}: {line}", at + 1);
        }
    }
}

#[test]
fn kernel_families_carry_their_header() {
    for (path, text) in files("kernels", "cu") {
        let head: Vec<&str> = text.lines().take(60).take_while(|l| l.starts_with("//")).collect();
        for (at, field) in ["", "images:", "agreement:"].iter().enumerate() {
            let line = head.get(at).copied().unwrap_or_default();
            assert!(
                line.contains(field),
                "{path}:{}: expected `// {field} …`, found `{line}`",
                at + 1
            );
        }
        assert!(head.iter().any(|l| l.starts_with("// bytes:")), "{path}: no `// bytes:` line");
    }
}

/// The repository is what people clone and what a package would carry.
#[test]
fn shipped_binaries_stay_small() {
    let mut total = 0;
    for dir in ["assets", "kernels/prebuilt"] {
        for entry in fs::read_dir(Path::new(&root()).join(dir)).into_iter().flatten().flatten() {
            total += entry.metadata().map(|m| m.len()).unwrap_or(0);
        }
    }
    let limit = 16 << 20;
    assert!(total < limit, "assets and fatbins take {total} bytes, at most {limit}");
}
