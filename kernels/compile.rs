// Source closure, hash and nvcc call of a kernel family; shared by build.rs and tests/it/kernels.rs.
//
// A family is one `kernels/<family>.cu`. Its committed pair `kernels/prebuilt/<family>.{fatbin,toml}` is valid exactly
// when the hash of the family's source closure stands in the `.toml`; then nobody needs nvcc.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// The one compiler: tested bits are shipped bits.
pub const TOOLKIT: &str = "13.0.88";

/// Flags that decide what is computed. Contraction is off: kernels say fma where they mean it.
pub const FLAGS: &[&str] =
    &["-O3", "-std=c++17", "--fmad=false", "--compress-mode=size", "-Xptxas", "-v"];

/// Every family, sorted.
pub fn families(kernels: &Path) -> Result<Vec<String>, String> {
    let dir = fs::read_dir(kernels).map_err(|e| format!("{}: {e}", kernels.display()))?;
    let mut names: Vec<String> = dir
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let is_source = path.extension()? == "cu";
            is_source.then(|| path.file_stem().map(|s| s.to_string_lossy().into_owned()))?
        })
        .collect();
    names.sort();
    Ok(names)
}

/// The images that line 2 of a family asks for: `// images: sm_80 sm_90a ptx_80`.
pub fn images(source: &str) -> Result<Vec<String>, String> {
    let line = source.lines().nth(1).unwrap_or_default();
    let list = line.strip_prefix("// images: ").ok_or("line 2 must read `// images: sm_80 …`")?;
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

/// A family's own file and everything it includes with quotes, sorted by path.
pub fn closure(kernels: &Path, family: &str) -> Result<Vec<PathBuf>, String> {
    let mut seen = BTreeSet::new();
    let mut queue = vec![kernels.join(format!("{family}.cu"))];
    while let Some(path) = queue.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let dir = path.parent().unwrap_or(kernels);
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("#include \"") else { continue };
            let name = rest.split('"').next().unwrap_or_default();
            queue.push(normal(&dir.join(name)));
        }
    }
    Ok(seen.into_iter().collect())
}

/// `a/b/../c` → `a/c`, so that one file has one name in the hash.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            other => out.push(other),
        }
    }
    out
}

/// SHA-256 over toolkit, flags, and names and contents of the source closure.
pub fn source_hash(kernels: &Path, family: &str) -> Result<String, String> {
    let mut hash = Sha256::new();
    hash.update(TOOLKIT);
    hash.update(FLAGS.join(" "));
    for path in closure(kernels, family)? {
        let name = path.strip_prefix(kernels).unwrap_or(&path);
        hash.update(name.to_string_lossy().replace('\\', "/"));
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        // A checkout with CRLF line ends is still the same source.
        hash.update(text.replace("\r\n", "\n"));
    }
    Ok(hex(&hash.finalize()))
}

/// SHA-256 of bytes.
pub fn bytes_hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// The value of `key = "value"` in a `.toml` that this file wrote.
pub fn field<'a>(manifest: &'a str, key: &str) -> Option<&'a str> {
    manifest.lines().find_map(|line| {
        line.strip_prefix(key)?.trim_start().strip_prefix("= \"")?.strip_suffix('"')
    })
}

/// Kernel names in a `.toml` that this file wrote, each once, sorted.
pub fn kernel_names(manifest: &str) -> Vec<String> {
    let names: BTreeSet<String> = manifest
        .lines()
        .filter_map(|l| l.strip_prefix("name = \"")?.strip_suffix('"').map(str::to_owned))
        .collect();
    names.into_iter().collect()
}

/// nvcc of the right version: `SNUG_NVCC`, `.toolchain/`, `CUDA_HOME`, `PATH`.
pub fn find_nvcc(root: &Path) -> Option<PathBuf> {
    let mut candidates = Vec::new();
    candidates.extend(std::env::var_os("SNUG_NVCC").map(PathBuf::from));
    candidates.push(root.join(".toolchain/bin/nvcc"));
    candidates
        .extend(std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin/nvcc")));
    candidates.push(PathBuf::from("nvcc"));
    candidates.into_iter().find(|nvcc| {
        let version = Command::new(nvcc).arg("--version").output();
        version
            .is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(&format!("V{TOOLKIT}")))
    })
}

/// Compiles a family into a fatbin and returns its manifest.
pub fn compile(nvcc: &Path, kernels: &Path, family: &str, out: &Path) -> Result<String, String> {
    let source = kernels.join(format!("{family}.cu"));
    let text = fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
    let mut cmd = Command::new(nvcc);
    cmd.current_dir(kernels).args(FLAGS).arg("--fatbin").arg("-t").arg("2");
    for image in images(&text)? {
        let Some((kind, cc)) = image.split_once('_') else {
            return Err(format!("{family}.cu: image `{image}` is neither sm_N nor ptx_N"));
        };
        let code = if kind == "sm" { format!("sm_{cc}") } else { format!("compute_{cc}") };
        cmd.arg("-gencode").arg(format!("arch=compute_{cc},code={code}"));
    }
    cmd.arg("-o").arg(out).arg(format!("{family}.cu"));
    let run = cmd.output().map_err(|e| format!("{}: {e}", nvcc.display()))?;
    let log = String::from_utf8_lossy(&run.stderr) + String::from_utf8_lossy(&run.stdout);
    if !run.status.success() {
        return Err(format!("nvcc failed on {family}.cu:\n{log}"));
    }
    let bytes = fs::read(out).map_err(|e| format!("{}: {e}", out.display()))?;
    let mut manifest = format!(
        "# Written by `UPDATE=1 cargo test prebuilt`; registers and spills are here so that reviews see them change.\n\
         source = \"{}\"\nbinary = \"{}\"\ntoolkit = \"{TOOLKIT}\"\nimages = \"{}\"\n",
        source_hash(kernels, family)?,
        bytes_hash(&bytes),
        images(&text)?.join(" "),
    );
    manifest.push_str(&resources(&log));
    Ok(manifest)
}

/// One table per kernel and image from the output of `ptxas -v`, sorted by kernel, then image.
fn resources(log: &str) -> String {
    let mut rows = BTreeSet::new();
    let mut entry = None;
    let mut spills = 0u32;
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let mut quoted = rest.split('\'');
            entry = Some((
                quoted.next().unwrap_or_default().to_owned(),
                quoted.nth(1).unwrap_or_default().to_owned(),
            ));
        } else if line.contains("bytes spill stores") {
            spills = number_before(line, " bytes spill stores")
                + number_before(line, " bytes spill loads");
        } else if line.contains("Used ")
            && let Some((name, image)) = entry.take()
        {
            let registers = number_before(line, " registers");
            let shared = number_before(line, " bytes smem");
            rows.insert((name, image, registers, shared, spills));
        }
    }
    rows.iter().fold(String::new(), |mut s, (name, image, registers, shared, spills)| {
        let _ = write!(
            s,
            "\n[[kernel]]\nname = \"{name}\"\nimage = \"{image}\"\nregisters = {registers}\n\
             shared_bytes = {shared}\nspill_bytes = {spills}\n"
        );
        s
    })
}

/// The number right before `unit`, or 0.
fn number_before(line: &str, unit: &str) -> u32 {
    let head = line.split(unit).next().filter(|head| head.len() < line.len());
    head.and_then(|h| h.rsplit(|c: char| !c.is_ascii_digit()).next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}
