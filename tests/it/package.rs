//! What the project is made of and what it ships: licences of all crates, and the files of a package.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::util::skip;

/// What cargo prints; `None` skips the test where there is no cargo.
fn cargo(args: &[&str]) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let Ok(out) = Command::new(program).args(args).current_dir(root).output() else {
        skip("no cargo");
        return None;
    };
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8(out.stdout).unwrap())
}

/// The quoted strings of a list in deny.toml, which are on the line of its key.
fn list<'a>(deny: &'a str, key: &str) -> BTreeSet<&'a str> {
    let line = deny.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(" = ["));
    let line = line.unwrap_or_else(|| panic!("deny.toml has no list {key}"));
    line.split('"').skip(1).step_by(2).collect()
}

/// Whether an SPDX expression can be satisfied. `AND` binds closer than `OR`; old crates write `/` for `OR`.
fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (value, used) = any_of(&words, allowed);
    assert_eq!(used, words.len(), "{expression}");
    value
}

/// The value of a sum at the start of `words`, and how many words it takes.
fn any_of(words: &[&str], allowed: &dyn Fn(&str) -> bool) -> (bool, usize) {
    let (mut value, mut at) = (false, 0);
    loop {
        let mut all = true;
        loop {
            let (one, used) = match words[at] {
                "(" => {
                    let (inner, used) = any_of(&words[at + 1..], allowed);
                    (inner, used + 2)
                }
                name if words.get(at + 1) == Some(&"WITH") => {
                    (allowed(&format!("{name} WITH {}", words[at + 2])), 3)
                }
                name => (allowed(name), 1),
            };
            all &= one;
            at += used;
            if words.get(at) != Some(&"AND") {
                break;
            }
            at += 1;
        }
        value |= all;
        if words.get(at) != Some(&"OR") {
            return (value, at);
        }
        at += 1;
    }
}

#[test]
fn licence_expressions_are_understood() {
    let mit = |name: &str| ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].contains(&name);
    for (expression, want) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("GPL-3.0 AND MIT OR Zlib", true),
        ("(GPL-3.0 OR MIT) AND BSL-1.0", false),
        ("(GPL-3.0 OR MIT) AND (Zlib)", true),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("Apache-2.0 OR GPL-3.0 WITH LLVM-exception", false),
    ] {
        assert_eq!(satisfied(expression, &mit), want, "{expression}");
    }
}

/// The rules of deny.toml, for the crates that this machine builds, where `cargo deny` is not at hand.
#[test]
fn every_crate_has_an_allowed_licence_and_comes_from_the_registry() {
    let deny = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml")).unwrap();
    let allowed = list(&deny, "allow");
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut args = vec!["metadata", "--format-version", "1", "--locked", "--offline"];
    if cfg!(target_os = "linux") {
        args.extend(["--filter-platform", &host]);
    }
    let Some(text) = cargo(&args) else { return };
    let metadata: Value = serde_json::from_str(&text).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "{} crates", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or("none");
        let excepted = deny.lines().find(|l| {
            l.starts_with("exceptions = [") && l.contains(&format!("crate = \"{name}\""))
        });
        let may = |l: &str| {
            allowed.contains(l) || excepted.is_some_and(|line| line.contains(&format!("\"{l}\"")))
        };
        assert!(
            satisfied(licence, &may),
            "{name} is under {licence}, which deny.toml does not allow"
        );
        let banned = format!("{{ crate = \"{name}\", reason");
        assert!(!deny.contains(&banned), "{name} is banned by deny.toml");
        if let Some(source) = package["source"].as_str() {
            assert!(source.starts_with("registry+"), "{name} comes from {source}");
        }
    }
}

/// A package has all that its build reads and nothing that only tests read.
#[test]
fn a_package_carries_what_a_build_needs_and_no_more() {
    let Some(text) = cargo(&["package", "--list", "--allow-dirty", "--offline"]) else { return };
    let files: Vec<&str> = text.lines().collect();
    for needed in
        ["README.md", "FORMAT.md", "LICENSE-MIT", "LICENSE-APACHE", "assets/demo.snug", "build.rs"]
    {
        assert!(files.contains(&needed), "{needed} is missing");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for dir in ["src", "kernels"] {
        let mut queue = vec![root.join(dir)];
        while let Some(path) = queue.pop() {
            if path.is_dir() {
                queue.extend(fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
                continue;
            }
            let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
            assert!(files.contains(&name.as_str()), "{name} is missing");
        }
    }
    for name in files {
        assert!(!["tests/", "benches/", ".ci/"].iter().any(|d| name.starts_with(d)), "{name}");
    }
}
